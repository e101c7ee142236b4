"""An instant in the inspector: totals, step and phase, the event before, live bytes by category and line."""

from typing import Any

import numpy as np
from dash import dcc, html

from vramscope.model.marks import Category
from vramscope.model.trace import Action
from vramscope.units import format_bytes, format_name, format_share

from ..address import Address
from ..answers import category_bytes, folded, held, moment, totals
from ..components.panel import facts, parts_bar
from ..data import Data, View
from ..queries.comments import LONGEST, comments
from .parts import amount, blocks_link, holder, line_name, pick, section, title

MOST_LINES = 7


def content(data: Data, view: View, _: int, at: int) -> Any:
    """Return what is known about the chosen instant."""
    known, there = totals(data, view), moment(data, view, at)
    allocated, reserved = int(known.allocated_bytes[at]), int(known.reserved_bytes[at])
    peak = int(known.allocated_bytes.max())
    below = "the peak" if allocated == peak else f"{format_bytes(peak - allocated)} below the peak"
    recording = view.recording
    links = [
        blocks_link(view, "All blocks", f"live:{at}"),
        *(
            html.A(word, href=Address(path, *view.here, at=at).url, className="link")
            for path, word in (("/peak", "By call"), ("/fragmentation", "Segments"))
        ),
    ]
    return [
        title("Instant", there.words, f"instant {at:,} · {below}"),
        facts(
            ("Allocated", amount(allocated)),
            ("Reserved", amount(reserved) if recording.has_reserved else "not recorded"),
            ("Unallocated", amount(reserved - allocated) if recording.has_reserved else ""),
            ("Event before", _event(data, view, at)),
        ),
        _categories(data, view, at, allocated),
        _lines(data, view, at),
        _comment(data, view, at),
        html.P(links, className="card-links"),
    ]


def _comment(data: Data, view: View, at: int) -> Any:
    """Return the field of the comment on the instant, and buttons that lead to the other ones."""
    known = comments(data, view)
    others = [html.Li(pick(html.Bdi(text[:80]), "i", other)) for other, text in known.items() if other != at]
    if data.is_read_only and not known:
        return html.Span()
    # Of another instant it is another field: the browser would keep what was typed into this one.
    field = dcc.Textarea(
        id={"comment": at}, value=known.get(at, ""), className="comment", readOnly=data.is_read_only,
        maxLength=LONGEST, rows=2, placeholder="What happened here? An empty comment is deleted.",
        title="Comment on this instant (n); kept when you leave the field",
    )  # fmt: skip
    said = html.P(className="dim comment-said", role="status")
    return section("Comment", field, said, html.Ul(others, className="picks comments"))


_DID = {
    Action.ALLOC: "allocated", Action.FREE_REQUESTED: "freed", Action.FREE_COMPLETED: "became reusable",
    Action.SEGMENT_ALLOC: "segment from cudaMalloc", Action.SEGMENT_FREE: "segment to cudaFree",
    Action.SEGMENT_MAP: "segment mapped", Action.SEGMENT_UNMAP: "segment unmapped",
}  # fmt: skip


def _event(data: Data, view: View, at: int) -> Any:
    if at == 0:
        return "none: the recording begins here"
    trace = view.recording.trace
    action = Action(int(trace.action[at - 1]))
    size = format_bytes(int(trace.block_size[at - 1] or trace.size[at - 1]))
    words = f"{size} {_DID.get(action, format_name(action))}"
    if action is not Action.ALLOC:
        return words
    found = data.ask(view, "lifetimes")
    first = int(np.searchsorted(found.alloc_event, at - 1))
    is_known = first < len(found) and int(found.alloc_event[first]) == at - 1
    return pick(words, f"b{first}") if is_known else words


def _categories(data: Data, view: View, at: int, allocated: int) -> Any:
    known = category_bytes(data, view, at)
    if not known[Category.UNKNOWN + 1 :].any():
        return html.Span()
    order = [Category(i) for i in np.argsort(-known, kind="stable").tolist() if known[i]]
    rows = [_category(each, int(known[each]), allocated) for each in order[:6]]
    bar = parts_bar((each.name.lower(), int(known[each])) for each in order)
    return section("By category", bar, facts(*rows))


def _category(each: Category, n_bytes: int, allocated: int) -> tuple[list[Any], list[Any]]:
    name = [html.I(className=f"swatch part-{each.name.lower()}"), " ", format_name(each)]
    return name, [amount(n_bytes), html.Span(f" {format_share(n_bytes, allocated)}", className="dim")]


def _lines(data: Data, view: View, at: int) -> Any:
    """Return the lines that hold most; several callers of one line are one row."""
    live, code = held(data, view, at), folded(data, view)
    n_bytes: dict[str, int] = {}
    example: dict[str, int] = {}
    for stack, n in zip(live.example.tolist(), live.n_bytes.tolist(), strict=True):
        name = line_name(code, stack)
        n_bytes[name] = n_bytes.get(name, 0) + n
        example.setdefault(name, stack)
    if not n_bytes:
        return html.P("Nothing is live at this instant.", className="dim")
    largest = sorted(n_bytes, key=lambda name: -n_bytes[name])[:MOST_LINES]
    rows = [html.Li([holder(code, example[name]), amount(n_bytes[name])]) for name in largest]
    return section("Largest lines", html.Ul(rows, className="picks"))
