"""A line of code in the inspector: what it holds at the instant, its blocks by size, stack and source."""

from typing import Any

import numpy as np
from dash import html

from vramscope.analysis.allocations import line_term
from vramscope.model.stacks import Frame
from vramscope.units import format_bytes, format_count

from ..answers import folded, moment
from ..components.panel import facts
from ..components.panels import stack_table
from ..data import Data, View
from .parts import amount, blocks_link, line_name, pick, section, stack_section, title

MOST_SIZES = 5


def content(data: Data, view: View, stack: int, at: int) -> Any:
    """Return what is known about the line of a stack; None where there is no such stack."""
    if not 0 <= stack < len(view.recording.stacks):
        return None
    if not stack:
        return [title("Line", "no stack recorded"), stack_table.detail(view, 0)]
    found, code = data.ask(view, "lifetimes"), folded(data, view)
    place = code.place
    is_same = place[found.stack_id] == place[stack] if place[stack] else found.stack_id == stack
    rows = np.flatnonzero(is_same)
    live = rows[found.allocated_at(at)[rows]]
    there = moment(data, view, at).words
    return [
        title("Line", html.Bdi(line_name(code, stack) or "libraries only")),
        facts(
            (f"Live at {there}", _sum(found, live)),
            ("Allocated in all", _sum(found, rows)),
        ),
        _sizes(found, rows, live),
        _blocks(view, code.frame(stack), at),
        stack_section(view, stack),
    ]  # fmt: skip


def _blocks(view: View, frame: Frame | None, at: int) -> Any:
    """Return the links to the blocks of the line."""
    term = line_term(frame) if frame else ""
    if not term:
        return html.Span()
    links = [("All its blocks", f"line:{term}"), ("Those live at the instant", f"live:{at} line:{term}")]
    return html.P([blocks_link(view, *each) for each in links], className="card-links")


def _sum(found: Any, rows: Any) -> list[Any]:
    return [amount(int(found.block_size[rows].sum())), f" in {format_count(len(rows), 'block')}"]


def _sizes(found: Any, rows: Any, live: Any) -> Any:
    """Return the sizes that hold most, each with a button for its largest live block, or any."""
    sizes, count = np.unique(found.block_size[rows], return_counts=True)
    order = np.argsort(-sizes * count, kind="stable")[:MOST_SIZES]
    listed = []
    for i in order.tolist():
        mine = rows[found.block_size[rows] == sizes[i]]
        alive = live[found.block_size[live] == sizes[i]]
        example = int(alive[-1]) if len(alive) else int(mine[-1])
        words = f"{int(count[i]):,} × {format_bytes(int(sizes[i]))}"
        listed.append(
            html.Li([pick(words, f"b{example}"), html.Span(f"{len(alive):,} live", className="dim")])
        )
    return section("Blocks by size", html.Ul(listed, className="picks")) if listed else html.Span()
