"""One block in the inspector: size, category and why, module, life, siblings, segment, stack and source."""

from typing import Any

import numpy as np
from dash import html

from vramscope.analysis.allocations import line_term
from vramscope.analysis.by_module import ModuleEvidence
from vramscope.analysis.lifetimes import ALIVE, BEFORE
from vramscope.units import format_bytes, format_count

from ..answers import folded, moment, owners, state_of
from ..components.panel import facts
from ..components.panels import found_table
from ..data import Data, View
from .parts import amount, blocks_link, keepers, pick, section, stack_section, title

MOST_KEEPERS = 4
_MOST_TEXTS, _LONGEST_TEXT = 8, 300
_EVIDENCE = {
    ModuleEvidence.CALL: "allocated while it ran",
    ModuleEvidence.NAME: "by the name of the tensor",
    ModuleEvidence.NEXT_FREED: "inferred from what is freed next",
}


def content(data: Data, view: View, row: int, at: int) -> Any:
    """Return everything known about a row of the lifetimes; None where there is no such row."""
    found = data.ask(view, "lifetimes")
    if not 0 <= row < len(found):
        return None
    texts = found_table.words(data, view, row)
    extra = int(found.block_size[row]) - int(found.size[row])
    size, key = f"{format_bytes(int(found.size[row]))} requested", texts["category"].replace(" ", "_")
    return [
        title("Block", amount(texts["bytes"]), f"{texts['where']} {texts['place']}"),
        _life(data, view, row),
        facts(
            ("Size", size + (f", {format_bytes(extra)} rounding" if extra else "")),
            ("Category", [html.I(className=f"swatch part-{key}"), " ", texts["category"]]),
            ("Because", data.ask(view, "categories").why(row)[:200]),
            ("Module", _module(data, view, row)),
            ("Annotations", _annotations(data, view, row)),
            ("Allocated", _when(texts["born"], int(found.alloc_event[row]) + 1)),
            ("Freed", _freed(data, view, row, texts)),
            ("Lived", texts["lived"]),
            ("Address", f"{int(found.address[row]):#x}, stream {int(found.stream[row])}"),
        ),
        _siblings(data, view, row, at),
        _pins(data, view, row, at),
        stack_section(view, texts["stack"]),
    ]  # fmt: skip


def _when(words: str, instant: int) -> Any:
    return pick(words, "i", instant) if instant > 0 else words


def _freed(data: Data, view: View, row: int, texts: dict[str, Any]) -> Any:
    freed = int(data.ask(view, "lifetimes").free_event[row])
    if freed == ALIVE:
        return "not freed"
    return "before the recording" if freed == BEFORE else _when(texts["freed"], freed + 1)


def _life(data: Data, view: View, row: int) -> html.Div:
    """Return the block's life as a stretch of the recording's events."""
    found, last = data.ask(view, "lifetimes"), max(len(view.recording.trace), 1)
    born, freed = max(int(found.alloc_event[row]), 0), int(found.free_event[row])
    end = last if freed == ALIVE else max(freed, 0)
    style = {"left": f"{100 * born / last:.2f}%", "width": f"max({100 * (end - born) / last:.2f}%, 2px)"}
    words = f"Lives from event {born:,} to {end:,} of {last:,}."
    return html.Div(html.I(style=style), className="life", title=words, role="img", **{"aria-label": words})


def _module(data: Data, view: View, row: int) -> Any:
    known = owners(data, view)
    path = known.paths[int(known.module[row])]
    if not path:
        return ""
    evidence = _EVIDENCE.get(ModuleEvidence(int(known.known[row])), "")
    name = blocks_link(view, html.Bdi(path[:160], className="function"), f'module:"{path}"')
    return [name, html.Span(f" {evidence}", className="dim")]


def _annotations(data: Data, view: View, row: int) -> Any:
    """Return the texts that the program put on the block."""
    texts = data.ask(view, "annotations").texts_of(row)
    return [html.Div(html.Bdi(text[:_LONGEST_TEXT])) for text in texts[:_MOST_TEXTS]] or ""


def _siblings(data: Data, view: View, row: int, at: int) -> Any:
    """Return how many blocks of the same line and size there are, how many live now, and a link to them."""
    found, line = data.ask(view, "lifetimes"), folded(data, view).line_of_stack
    size, mine = int(found.block_size[row]), line[found.stack_id[row]]
    if not mine:
        return html.Span()
    same = np.flatnonzero((found.block_size == size) & (line[found.stack_id] == mine))
    if len(same) < 2:
        return section("Siblings", html.P("No other block of this line has this size.", className="dim"))
    n_live = int(np.count_nonzero(found.allocated_at(at)[same]))
    words = (
        f"{format_count(len(same), 'block')} of this line and size; "
        f"{n_live:,} live at the instant, {format_bytes(n_live * size)}."
    )
    frame = folded(data, view).frame(int(found.stack_id[row]))
    term = line_term(frame) if frame else ""
    more = blocks_link(view, "List them", f"line:{term} size={size}") if term else ""
    return section("Siblings", html.P([words, " ", more], className="dim"))


def _pins(data: Data, view: View, row: int, at: int) -> Any:
    """Return the segment of the block while it lives: what of it is free, and which other blocks keep it."""
    found = data.ask(view, "lifetimes")
    is_there = bool(found.allocated_at(at)[row])
    when = at if is_there else max(int(found.alloc_event[row]), 0) + 1
    state = state_of(data, view, min(when, len(view.recording.trace)))
    blocks, segments = state.blocks, state.segments
    hit = np.flatnonzero((blocks.address == found.address[row]) & blocks.in_use)
    if not len(hit):
        return html.Span()
    owner = int(blocks.segment[hit[0]])
    inside = blocks.segment == owner
    is_used = inside & blocks.in_use
    free_bytes = int(blocks.size[inside & ~is_used].sum())
    there = "" if is_there else f" when it was allocated ({moment(data, view, when).words})"
    size = format_bytes(int(segments.size[owner]))
    words = f"In a segment of {size}, {format_bytes(free_bytes)} of it free{there}."
    others = np.flatnonzero(is_used & (blocks.address != found.address[row]))
    if not free_bytes:
        return section("Segment", html.P(words, className="dim"))
    if not len(others):
        alone = f"{words} This block alone keeps the segment from being released."
        return section("Segment", html.P(alone, className="dim"))
    keep = keepers(folded(data, view), blocks, others, MOST_KEEPERS)
    verb = "keeps" if len(others) == 1 else "keep"
    kept = f"{words} {format_count(len(others), 'other block')} {verb} it from being released as well:"
    return section("Segment", html.P(kept, className="dim"), keep)
