"""Bars of an instant: reserved bytes by part, allocated bytes by category and by module."""

from typing import Any, NamedTuple

import numpy as np
from dash import html

from vramscope.analysis.by_module import same_depth
from vramscope.model.marks import Category
from vramscope.units import format_bytes, format_share

from ...answers import category_bytes, owners, parts_of_reserved
from ...data import Data, View
from ..definitions import DEFINITION, explained
from ..panel import bar, panel, parts_bar, table

MOST_MODULES = 12


def share(part: float, whole: float) -> str:
    """Return a share as ``12.3 %``; a share above 0 never reads as 0."""
    return format_share(part, max(whole, 1))


class BarPart(NamedTuple):
    """One segment of a bar."""

    name: str
    n_bytes: int


def layout(data: Data, view: View, at: int) -> html.Div:
    """Return the bars of an instant; that by category only where some category is known."""
    reserved = [BarPart(name, n_bytes) for name, n_bytes in parts_of_reserved(data, view, at).items()]
    # Parts of an unknown whole would be zeros that mean nothing.
    has_reserved = data.derive(view, "has_reserved", lambda recording: recording.has_reserved)
    panels = [_panel("Reserved", reserved)] if has_reserved else []
    known = category_bytes(data, view, at)
    if known[Category.UNKNOWN + 1 :].any():
        order = [Category(i) for i in np.argsort(-known, kind="stable").tolist() if known[i]]
        panels.append(_panel("Allocated", [BarPart(each.name.lower(), int(known[each])) for each in order]))
    return html.Div(panels, className="pair")


def modules(data: Data, view: View, at: int) -> Any:
    """Return the table of allocated bytes by module of the model; nothing where no module is known."""
    known = owners(data, view)
    lives = data.ask(view, "lifetimes")
    live = lives.rows_at(at)
    single = np.bincount(known.module[live], weights=lives.block_size[live], minlength=len(known.paths))
    if not single[1:].any():
        return html.Span()
    paths, group = same_depth(tuple(known.paths[i] if single[i] else "" for i in range(len(single))))
    n_bytes = np.bincount(group, weights=single, minlength=len(paths))
    order = [i for i in np.argsort(-n_bytes, kind="stable").tolist() if n_bytes[i]]
    whole = max(n_bytes.sum(), 1)
    rows = [_module(paths[i] or "no module", int(n_bytes[i]), whole) for i in order[:MOST_MODULES]]
    left = len(order) - len(rows)
    more = html.Span(f"and {left} more", className="dim") if left else html.Span()
    shown = table(("Module", "Allocated", "Share", ""), "lrdl", rows)
    return panel("By module", shown, beside=more, label="Live memory by module")


def _module(path: str, n_bytes: int, whole: float) -> list[Any]:
    name = html.Td(html.Bdi(path[:160], className="function"), title=path[:400])
    # A share of the whole, as in every bar of this page.
    return [name, n_bytes, share(n_bytes, whole), bar(n_bytes / whole)]


def _panel(title: str, parts: list[BarPart]) -> html.Section:
    whole = sum(part.n_bytes for part in parts)
    heading = html.H3([f"{title} ", html.Span(format_bytes(whole), className="dim")])
    return panel(
        heading,
        parts_bar(part for part in parts if part.n_bytes),
        html.Dl([_entry(part, whole) for part in parts], className="part-list"),
        label=f"Parts of the {title.lower()} memory",
    )


def _entry(part: BarPart, whole: int) -> html.Div:
    swatch = html.I(className=f"swatch part-{part.name}")
    name = html.Span([swatch, part.name.replace("_", " ")], className="term", tabIndex="0")
    percent = html.Span(share(part.n_bytes, whole), className="dim")
    value = html.Dd([html.Span(format_bytes(part.n_bytes)), percent], title=f"{part.n_bytes:,} bytes")
    return html.Div([html.Dt(explained(name, DEFINITION[part.name])), value])
