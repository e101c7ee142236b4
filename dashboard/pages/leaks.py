"""The page "Leaks": growth from step to step, with its line, cause and holder."""

from typing import Any

import numpy as np
from dash import html

from vramscope.analysis.leaks import Leaks
from vramscope.analysis.leaks.all_steps import levels_by_counters
from vramscope.analysis.leaks.growth import window
from vramscope.analysis.leaks.holders import Statement
from vramscope.analysis.leaks.leak import Leak
from vramscope.analysis.lines import NO_STACK
from vramscope.analysis.verdicts import GrowthVerdict, MemoryGrowth, memory_growth
from vramscope.analysis.verdicts.missing import missing_parts, until
from vramscope.model.stacks import Frame
from vramscope.units import format_bytes, format_count

from ..address import Address
from ..components import renewal, states
from ..components.graph import graph
from ..components.panel import color_key, facts, panel
from ..components.panels import cause, stack_table
from ..components.panels.past import counted
from ..components.panels.stack_table import stack_of, to_code
from ..components.prose import claim_heading, sentence
from ..data import Data, View
from ..figures import curves
from ..figures.drawing.names import place
from . import Context, Page, counting

MOST_SHOWN = 8


def _layout(context: Context) -> Any:
    view = context.data.view(context.address)
    content = _content(context.data, view, context.address)
    nothing = None if content else states.nothing_recorded(view.is_live, view)
    return nothing or html.Div(content, id="lk-content", className="page")


def _content(data: Data, view: View, address: Address) -> list[Any]:
    found: Leaks = data.ask(view, "leaks")
    growth = memory_growth(view.recording, found, missing_parts(view.recording))
    is_counted = growth.verdict is GrowthVerdict.UNKNOWN and len(levels_by_counters(view.recording)[0]) > 0
    if not len(view.recording.trace) or (is_counted and found.batch is None):
        claim, _, why = growth.text.partition(": ")
        return counted(data, view, f"{claim[:1].upper()}{claim[1:]}", why)
    if not found.leaks:
        grown = _growing_batch(found, found.batch, address, view) if found.batch else []
        return [*(grown or [_nothing(view, found, growth)]), *_no_leak(found)]
    total = sum(leak.bytes_per_step for leak in found.leaks)
    turn = "step" if found.has_steps else "loop iteration"
    many = f"{len(found.leaks)} leaks" if len(found.leaks) > 1 else "A leak"
    claim = f"{many}: {format_bytes(total)} more with every {turn}"
    shown = found.leaks[:MOST_SHOWN]
    names = [_group(leak) for leak in shown]
    turns = _turns(view, found)
    levels = _all_levels(view, int(turns[0]))
    figure = curves.growth(np.array([leak.level_bytes for leak in shown]), names, turns, (), levels)
    names = [f"{name}, in steps with events" if levels else name for name in names]
    names += [each.name for each in levels]
    support = f"Compared at the same point of {found.compared}."
    return [
        html.Section([claim_heading(claim), html.P(support, className="support")],
                     className="opening"),
        panel("What the leaking lines hold",
              graph("lk-graph", figure, f"Growth of {len(shown)} leaks over the steps.", "steps"),
              beside=color_key(zip(curves.COLORS, map(html.Bdi, names), strict=False), "parts"),
              kind="chart", label="Growth"),
        *[_card(leak, address, view) for leak in shown],
        *(_growing_batch(found, found.batch, address, view) if found.batch else []),
        *_no_leak(found),
    ]  # fmt: skip


def _all_levels(view: View, first: int) -> list[curves.NamedCurve]:
    """Return by how much the level at each step's end is above that of step *first*, as torch counted it."""
    number, level = levels_by_counters(view.recording)
    number, level = number[number >= first], level[number >= first]
    name = f"all allocated bytes, above those after step {first}"
    return [curves.NamedCurve(name, number, level - level[0])] if len(number) else []


def _growing_batch(found: Leaks, batch: Leak, address: Address, view: View) -> list[Any]:
    """Return the message for a batch that grows: each step gets more than the one before, without a leak."""
    claim = f"The batch grows: {format_bytes(batch.bytes_per_step)} more with every step, no leak"
    figure = curves.growth(
        np.array([batch.level_bytes]), ["most allocated in each step"], _turns(view, found)
    )
    return [
        html.Section([claim_heading(claim),
                      html.P(sentence(batch.edit), className="support")], className="opening"),
        panel("The most that was allocated in each step",
              graph("lk-batch", figure, "The peak of each step.", "steps"),
              kind="chart", label="Peaks of steps"),
        _card(batch, address, view),
    ]  # fmt: skip


def _card(leak: Leak, address: Address, view: View) -> Any:
    lines = [
        (_line(view, each.frame, each.is_in_backward), f"{format_bytes(each.bytes_per_step)} per step")
        for each in leak.lines[:6]
    ]
    frame = leak.lines[0].frame if leak.lines else None
    to = address.go(path="/allocations", q=f"{frame.function} alive" if frame else "alive", at=None)
    held = [html.Span("Held by ", className="dim"), html.Code(html.Bdi((leak.path or "")[:300]))]
    path = html.P(held) if leak.path else None
    n_all = len(leak.level_bytes)
    first = window(n_all)
    which = f"the last {n_all - first} of {n_all} compared: those before may be warm-up"
    which = which if first else f"all {n_all} compared"
    basis = f"Confidence {100 * leak.confidence:.0f} % (Kendall's tau over {which})."
    link = html.A("Show its allocations", href=to.url, className="link")
    at, kept = leak.kept_at, None
    if at and (at.file, at.line) != (leak.finding.file, leak.finding.line):  # whose code stands above
        words = ["Kept at ", html.Bdi(place_of(at), className="dim")]
        code = stack_table.code(Frame("", at.file, at.line), view)
        kept = html.Div([html.P(words, className="card-where"), code])
    more = kept, path, facts(*lines, kind="lines"), html.P(basis, className="dim")
    return cause.card(leak.finding, *more, links=link, view=view)


def _line(view: View, frame: Any, in_backward: bool) -> list[Any]:
    """Return one line that allocates; a click shows its code."""
    if not frame:
        return [_place(frame)]
    stack = stack_of(view.recording.stacks, frame.file, frame.line)
    shown = to_code(html.Bdi(_place(frame)), stack, frame.function)
    return [shown, " (by its backward)" if in_backward else ""]


def place_of(kept: Statement) -> str:
    """Return the line that keeps the memory, as ``train.py:57: losses.append(loss)``."""
    return f"{kept.file.rsplit('/', 1)[-1]}:{kept.line}: {kept.code.strip()[:160]}"


def _place(frame: Any) -> str:
    return f"{frame.function} {place(frame)}"[:160] if frame else NO_STACK


def _name(leak: Leak) -> str:
    frame = leak.lines[0].frame if leak.lines else None
    return _place(frame)


def _group(leak: Leak) -> str:
    """Return the name of one curve, which may sum up several lines."""
    more = len(leak.lines) - 1
    return _name(leak) + (f" and {format_count(more, 'more line')}" if more > 0 else "")


def _turns(view: View, found: Leaks) -> Any:
    """Return numbers for the horizontal axis: those of the steps where they are known."""
    ends = view.recording.steps
    if not found.has_steps or not len(ends):
        return np.arange(len(found.iteration_boundaries))
    row = np.clip(np.searchsorted(ends.end_event, found.iteration_boundaries), 0, len(ends) - 1)
    return ends.index[row]


_TITLES = {
    GrowthVerdict.NOTHING: "Nothing leaks",
    GrowthVerdict.LITTLE: "Nothing grows by much",
    GrowthVerdict.RISES: "Too early to tell",
    GrowthVerdict.TOO_FEW_STEPS: "Too short to tell",
    GrowthVerdict.UNKNOWN: "Whether anything leaks is not known",
}


def _nothing(view: View, found: Leaks, growth: MemoryGrowth) -> html.Section:
    missing = missing_parts(view.recording)
    text = sentence(growth.text)
    if growth.verdict is GrowthVerdict.NOTHING:
        text += f" At the same point of {found.compared} the same lines hold the same bytes."
    title = _TITLES.get(growth.verdict, _TITLES[GrowthVerdict.UNKNOWN])
    end = until(missing) if growth.verdict in (GrowthVerdict.NOTHING, GrowthVerdict.LITTLE) else ""
    return states.state(f"{title} {end}".strip(), text)


def _no_leak(found: Leaks) -> list[Any]:
    """Return notes about growth that is not a leak."""
    fragments = "The allocator reserves {} more per step beyond what is allocated: fragmentation, not a leak."
    outside = "The process holds {} more per step outside of torch: libraries, NCCL or raw cudaMalloc."
    pools = "Private pools (CUDA graphs, MemPools) reserve {} more per step beyond their tensors."
    rates = [
        (found.cache_bytes_per_step, fragments),
        (found.pool_bytes_per_step, pools),
        (found.outside_bytes_per_step, outside),
    ]
    return [html.P(text.format(format_bytes(rate)), className="notes") for rate, text in rates if rate > 0]


PAGE = Page(name="leaks", title="Leaks", order=50, path="/leaks", layout=_layout,
            register=lambda app, data: renewal.register(app, data, "lk", _content),
            behind=counting("leak", "growing_batch", needs_events=False))  # fmt: skip
