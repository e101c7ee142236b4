"""The page "Phases": the peak of each step and phase, and what rose from one step to another."""

from typing import Any

import numpy as np
from dash import Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate
from numpy.typing import NDArray

from vramscope.analysis.by_module import same_depth
from vramscope.analysis.lines import NO_STACK
from vramscope.analysis.shapes import largest_shapes
from vramscope.analysis.step_peaks import StepPeaks
from vramscope.model.marks import Category, Phase
from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_bytes, format_name

from ..address import Address, restore
from ..answers import category_bytes, folded, fullest, held, owners, totals
from ..components import panel as panels
from ..components import states, timeline
from ..components.definitions import term
from ..components.graph import DRAWN, as_data, plot
from ..components.panel import panel, segments
from ..components.panels.differences import Difference, table
from ..components.panels.past import MEANING, AllSteps, steps_with_past
from ..components.prose import claim_heading
from ..data import Data, View
from ..figures import steps as figures
from ..figures.anatomy import ENOUGH_MODULES, MOST_MODULES, ModuleColumn, columns
from ..figures.drawing.names import place
from ..queries.headline import bound
from ..server.callbacks import Picked, Pressed, Stored, view_or_nothing
from . import Behind, Context, Page

MAX_LINES = 14
BASES = ("previous", "first")
_SHIMMER = html.Div(className="shimmer tall")
_HINT = html.P("Click a step to look into it", className="dim only-live")


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    all_steps = steps_with_past(data, view)
    if not len(view.recording.trace) and not len(all_steps.index):
        return states.nothing_recorded(view.is_live, view)
    if not len(all_steps.index):
        if view.is_live:
            return _first_step(data, view)
        return states.state(
            "No steps were found",
            "The recording has no optimizer step and no recorder.step(), so there is nothing to compare.",
            ["Mark them yourself: ", states.command("recorder.step()")],
            html.A("The whole run on the overview", href=address.go(path="/overview").url, className="link"),
        )
    row = _row(data, view, address.at)
    base = _base(address)
    sentence = f"Peak allocated bytes of {len(all_steps.index)} steps, and of each phase of them."
    is_later = len(view.recording.trace) > data.pace.events_at_once
    inside, rose = (_SHIMMER, _SHIMMER) if is_later else _details(data, view, row, base)
    has_none = not len(view.recording.trace)
    return [
        html.Section(_opening(view, all_steps), id="ph-opening", className="opening"),
        panel(
            _phase_key(all_steps.found), plot("ph-graph", _picture(all_steps, row), sentence, "steps"),
            beside=_HINT, kind="chart", label="Peaks by step",
        ),
        html.Section(inside, id="ph-inside", className="panel", hidden=has_none,
                     **{"aria-label": "Anatomy of the step"}),
        html.Section(_phases_of(all_steps, row), id="ph-phases", className="panel",
                     hidden=not len(all_steps.found.per_phase), **{"aria-label": "Peaks by phase"}),
        panel(
            html.H3("What changed", id="ph-rose-title"), html.Div(rose, id="ph-rose"),
            beside=segments("Against", [(word.capitalize(), address.go(by=word).url, word == base)
                                        for word in BASES]),
            label="What changed", hidden=has_none,
        ),
        dcc.Store(id="ph-graph-pick"),
        dcc.Store(id="ph-row", data=None if is_later else row),
        dcc.Store(id="ph-at"),
        dcc.Store(id="ph-chosen"),
    ]  # fmt: skip


def _base(address: Address) -> str:
    return address.by if address.by in BASES else BASES[0]


def _details(data: Data, view: View, row: int, base: str) -> tuple[Any, Any]:
    """Return what is inside of a step and what rose, which need the life of every allocation."""
    if not len(view.recording.trace):
        return "", ""
    steps, n_thinned = view.recording.steps, len(view.recording.past.steps)
    is_bare = unrecorded(view.recording).overlap(steps.start_ns, steps.end_ns)
    has_events = np.concatenate([np.zeros(n_thinned, "?"), ~is_bare])
    if not has_events[row]:
        number = int(steps_with_past(data, view).index[row])
        why = ["Not retained. ", MEANING] if row < n_thinned else "Not recorded: every= left its events out."
        inside = [html.Div(html.H3(f"Step {number} by category"), className="panel-bar"),
                  html.P(why, className="dim nothing")]  # fmt: skip
        return inside, html.P("The lines of this step are not known.", className="dim nothing")
    earlier = np.flatnonzero(has_events[:row])
    other = int(earlier[-1 if base == BASES[0] else 0]) if len(earlier) else row
    return _inside(data, view, row - n_thinned), _rose(data, view, row - n_thinned, other - n_thinned)


def _first_step(data: Data, view: View) -> Any:
    """Return what is known of a run that goes on and has no step yet."""
    known, at = totals(data, view).allocated_bytes, fullest(data, view)
    now, most = format_bytes(int(known[-1])), format_bytes(int(known[at]))
    there = html.A(f"at most {most}", href=Address("/overview", run=view.run_id).url, className="link")
    return states.state(
        "No step has ended so far",
        "The program builds its model, loads its data, or is inside of its first step: no forward, backward, "
        "optimizer step or recorder.step() was recorded yet. This page updates by itself.",
        [f"So far: {len(view.recording.trace):,} events, {now} allocated now, ", there, "."],
        ["Steps that stay unseen are marked by ", states.command("recorder.step()")],
        waits=True,
    )


def _picture(all_steps: AllSteps, row: int) -> dict[str, Any]:
    return figures.peaks(all_steps.found, all_steps.index, row, all_steps.n_thinned)


def _starts(view: View) -> NDArray[Any]:
    """Return the instant at which each step begins: below 0 where the size cap removed the events."""
    past = view.recording.past
    return np.concatenate([past.steps.start_event - past.n_events, view.recording.steps.start_event])


def _row(data: Data, view: View, at: int | None) -> int:
    """Return the row, among all steps, of the step of an instant, else of the highest step."""
    if at is not None:
        within = np.flatnonzero(_starts(view) < (max(at, 1) if at >= 0 else at + 1))
        if len(within):
            return int(within[-1])
    return int(steps_with_past(data, view).found.per_step.allocated_bytes.argmax())


def _opening(view: View, all_steps: AllSteps) -> list[Any]:
    found, index = all_steps.found, all_steps.index
    peaks = found.per_step.allocated_bytes
    top = int(peaks.argmax())
    phase = _highest_phase(found, top)
    is_bound = found.per_step.is_lower_bound
    at_least = bound(view) or ("at least " if is_bound.any() else "")
    shown = f"{at_least}{format_bytes(int(peaks[top]))}{phase}"
    claim = f"Step {int(index[top])} needed most: {shown}"
    if at_least:
        claim = f"Of what was recorded, step {int(index[top])} needed most: {shown}"
    # The last step of a run that grows may reach the last event, so that its peak may rise.
    ends = view.recording.steps.end_event[-1:]
    last = len(peaks) - 1 - (view.is_live and bool((ends >= len(view.recording.trace)).any()))
    if top > last:
        word = "needed most" if top else "is the first"
        claim = f"Step {int(index[top])} {word} so far: {shown}"
    outside = int(found.outside.allocated_bytes.max(initial=0))
    if outside > int(peaks[top]):
        claim = f"Peak {bound(view)}{format_bytes(outside)}, outside of every step{_in_phase(found, outside)}"
        highest = f"Of the steps, step {int(index[top])} needed most: {shown}."
        return [claim_heading(claim), html.P(highest, className="support")]
    rise = int(peaks[last] - peaks[1]) if last > 1 else 0
    apart = f"{format_bytes(abs(rise))} {'above' if rise > 0 else 'below'}"
    word = "as high as" if abs(rise) < 1 << 10 else apart
    which = f"Step {int(index[last])}" if view.is_live else "The last step"
    is_sure = last > 1 and not is_bound[[1, last]].any()
    steady = f"{which} is {word} step {int(index[1])}." if is_sure else ""
    return [claim_heading(claim), html.P(steady, className="support")]


def _in_phase(found: StepPeaks, n_bytes: int) -> str:
    """Return the phase of a peak outside of all steps; '' where no phase reached it."""
    rows = found.per_phase.rows((found.per_phase.step < 0) & (found.per_phase.phase != Phase.OTHER))
    reached = rows.phase[rows.allocated_bytes == n_bytes]
    return f", in {format_name(Phase(int(reached[0])))}" if len(reached) else ""


def _highest_phase(found: StepPeaks, row: int) -> str:
    mine = found.per_phase.rows(found.per_phase.step == row)
    if not (mine.phase != Phase.OTHER).any():
        return ""
    # On a tie of a phase and the time between phases, the phase is named.
    best = np.lexsort((mine.phase == Phase.OTHER, -mine.allocated_bytes))[0]
    phase = Phase(int(mine.phase[best]))
    return ", between phases" if phase == Phase.OTHER else f", in {format_name(phase)}"


def _phase_key(found: StepPeaks) -> html.Div:
    present = [phase for phase in Phase if phase != Phase.OTHER and (found.per_phase.phase == phase).any()]
    entries = [html.Span([html.I(className="swatch swatch-allocated"), term("step", "step")])]
    entries += [
        html.Span([html.I(className=f"swatch phase-{phase.name.lower()}"), format_name(phase)])
        for phase in present
    ]
    if len(found.outside):
        entries.append(html.Span([html.I(className="swatch phase-eval diamond"), figures.OUTSIDE]))
    return html.Div(entries, className="lane-key parts-key")


def _bounds(view: View, row: int) -> tuple[int, int]:
    """Return first and last instant of a step with events; *row* counts only such steps."""
    steps, last = view.recording.steps, len(view.recording.trace)
    start = min(int(steps.start_event[row]), last)
    return start, max(min(int(steps.end_event[row]), last), start)


def _inside(data: Data, view: View, row: int) -> list[Any]:
    start, end = _bounds(view, row)
    found, known = data.ask(view, "lifetimes"), data.ask(view, "categories")
    by_module = _columns(data, view, row, start, end)
    allocated = totals(data, view).allocated_bytes
    shapes = largest_shapes(view.recording.labels, found, (start, end))
    drawn = figures.stack(found, known.assigned.category, (start, end), allocated, by_module, shapes)
    number = int(view.recording.steps.index[row])
    key = [_named(trace["name"], trace["meta"]) for trace in drawn["data"]]
    by = " and module" if by_module else ""
    about = "Each module has equal room, and by its name what it adds or gives back. " if by_module else ""
    return [
        html.Div(html.H3(f"Anatomy of step {number}, by category{by}"), className="panel-bar"),
        html.P(f"{about}Beside each category: the most that it holds in the step.", className="dim nothing"),
        html.Div(key, className="lane-key band-key"),
        plot("ph-stack", drawn, f"Bytes by category through step {number}.", "anatomy" if by else "stack"),
    ]  # fmt: skip


def _named(name: str, most: str) -> html.Span:
    swatch = html.I(className=f"swatch part-{name.replace(' ', '_')}")
    return html.Span([swatch, f"{name} ", html.Span(most, className="dim")])


def _columns(data: Data, view: View, row: int, start: int, end: int) -> list[ModuleColumn]:
    """Return the modules of a step in the order in which they allocate; none where none is known."""
    if view.is_live and len(view.recording.trace) > data.pace.events_at_once:
        return []  # the modules of a long live run take seconds
    known, lives = owners(data, view), data.ask(view, "lifetimes")
    paths, group = same_depth(known.paths, MOST_MODULES, ENOUGH_MODULES)
    first, last = np.searchsorted(lives.alloc_event, (start, end))
    modules = [paths[each] for each in group[known.module[first:last]].tolist()]
    phases = view.recording.phases.rows(view.recording.phases.step == row)
    return columns(phases, start, end, lives.alloc_event[first:last], modules) if any(modules) else []


def _phases_of(all_steps: AllSteps, row: int) -> list[Any]:
    found = all_steps.found
    mine = found.per_phase.rows(found.per_phase.step == row)
    top = max(int(mine.allocated_bytes.max(initial=0)), 1)
    rows = zip(mine.phase.tolist(), mine.allocated_bytes.tolist(), mine.is_lower_bound.tolist(), strict=True)
    body = [_phase_row(*each, top) for each in rows]
    title = html.Div(html.H3(f"Step {int(all_steps.index[row])} by phase"), className="panel-bar")
    return [title, panels.table(("Phase", "Peak", ""), "lrl", body)]


def _phase_row(phase: int, n_bytes: int, is_lower_bound: bool, top: int) -> list[Any]:
    name = Phase(phase).name.lower()
    swatch = html.I(className=f"swatch phase-{name}")
    label = "between phases" if phase == Phase.OTHER else name.replace("_", " ")
    size = f"at least {format_bytes(n_bytes)}" if is_lower_bound else n_bytes
    bar = panels.bar(n_bytes / top, f"phase-{name}")
    return [html.Span([swatch, label], className="phase-name"), size, bar]


def _rose(data: Data, view: View, row: int, other: int) -> Any:
    index = view.recording.steps.index
    if other == row:
        which = (
            "first step with retained allocations" if row or len(view.recording.past.steps) else "first step"
        )
        return html.P(f"This is the {which}; choose a later one above.", className="dim nothing")
    before, after = (_peak(data, view, each) for each in (other, row))
    words = f"Step {int(index[other])}", f"Step {int(index[row])}"
    lines = _by_line(data, view, before, after)
    kinds = _by_category(data, view, before, after)
    nothing = "Both steps hold the same at their peaks."
    parts = [table(kinds, *words, nothing, "Category")] if kinds else []
    parts.append(table(lines, *words, "" if kinds else nothing, "Line"))
    return html.Div([html.Div(part) for part in parts], className="rose")  # each above its own buttons


def _peak(data: Data, view: View, row: int) -> int:
    start, end = _bounds(view, row)
    return start + int(totals(data, view).allocated_bytes[start : end + 1].argmax())


def _by_line(data: Data, view: View, before: int, after: int) -> list[Difference]:
    code = folded(data, view)
    sides: list[dict[tuple[int, int], int]] = []
    example: dict[tuple[int, int], int] = {}
    for at in (before, after):
        found = held(data, view, at)
        keys = zip(found.folded_id.tolist(), found.via.tolist(), strict=True)
        example |= dict(zip(keys, found.example.tolist(), strict=True))
        sides.append({(int(f), int(v)): int(n) for f, v, n in
                      zip(found.folded_id, found.via, found.n_bytes, strict=True)})  # fmt: skip
    # Several call paths may lead to one line, which is one row.
    lines: dict[tuple[str, ...], Difference] = {}
    for node, via in sides[0].keys() | sides[1].keys():
        frame = code.stacks.frame(node) if node else None
        name = frame.function if frame else code.strings[via] or NO_STACK
        detail = place(frame) if frame else ""
        line = (name, detail, frame.file if frame else "")
        known = lines.get(line, Difference(name, detail, 0, 0, example.get((node, via), 0)))
        more = [side.get((node, via), 0) for side in sides]
        lines[line] = known._replace(before=known.before + more[0], after=known.after + more[1])
    rows = list(lines.values())
    return _largest(rows)


def _by_category(data: Data, view: View, before: int, after: int) -> list[Difference]:
    sides = [category_bytes(data, view, at) for at in (before, after)]
    if not any(side[Category.UNKNOWN + 1 :].any() for side in sides):
        return []
    rows = [Difference(format_name(each), "", *(int(side[each]) for side in sides)) for each in Category]
    return _largest(rows)


def _largest(rows: list[Difference]) -> list[Difference]:
    changed = [row for row in rows if row.change]
    return sorted(changed, key=lambda row: (-abs(row.change), row.name, row.detail))[:MAX_LINES]


def _register(app: Any, data: Data) -> None:
    timeline.follow_instant(app, "ph-at")

    # One request for all of it: as three callbacks, two of them after the first, a step came 40 ms later.
    @app.callback(
        Output("ph-row", "data"), Output("ph-at", "data"),
        Output("ph-graph", DRAWN), Output("ph-phases", "children"), Output("ph-opening", "children"),
        Output("ph-inside", "children"), Output("ph-rose", "children"),
        Input("ph-graph-pick", "data"), Input("key", "data"), Input("ph-chosen", "data"),
        Input("version", "data"), State("ph-row", "data"), State("address", "data"),
    )  # fmt: skip
    def choose(
        pick: Picked | None, key: Pressed | None, at: int | None, _: Any, row: int | None,
        stored: Stored | None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Show the step of a pick, a key or an instant; of a long recording the first one after the page."""
        address, by = restore(stored), ctx.triggered_id
        view = view_or_nothing(data, address)
        starts = _starts(view)
        to: Any = _row(data, view, address.at) if row is None and len(starts) else row
        if by == "ph-graph-pick":
            to = (pick or {}).get("row")
        elif by == "key":
            to = _keyed(data, view, key, to)
        elif by == "ph-chosen" and at is not None and len(starts):
            to = _row(data, view, at)
        if not isinstance(to, int) or not 0 <= to < len(starts):
            raise PreventUpdate
        # The timeline knows an instant that was chosen in it.
        is_led = by in ("ph-graph-pick", "key")
        start = int(starts[to]) + (int(starts[to]) >= 0) if is_led else no_update
        if to == row and by != "version":
            return no_update, start, *[no_update] * 5
        details = _details(data, view, to, _base(address))
        if row is None and not is_led:  # the page has the rest
            return to, start, *[no_update] * 3, *details
        all_steps = steps_with_past(data, view)
        drawn = as_data(_picture(all_steps, to)), _phases_of(all_steps, to), _opening(view, all_steps)
        return to, start, *drawn, *details


def _keyed(data: Data, view: View, key: Any, row: Any) -> Any:
    word = (key or {}).get("key")
    if word == "p":
        return _row(data, view, None)
    step = {"j": 1, "k": -1}.get(str(word))
    return row + step if step and isinstance(row, int) else None


def _behind(data: Data, view: View) -> Behind:  # noqa: ARG001 -- of every page
    n_steps = len(view.recording.steps) + len(view.recording.past.steps)
    return Behind(nothing="" if n_steps or view.is_live else "No steps were found")


PAGE = Page(
    name="phases", title="Phases", order=25, path="/phases", layout=_layout, register=_register,
    instant_store="ph-chosen", behind=_behind,
)  # fmt: skip
