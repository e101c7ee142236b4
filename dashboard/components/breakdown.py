"""What do the reserved bytes serve at an instant, and what are the allocated ones for? Bars that sum up."""

from typing import NamedTuple

from dash import html

from vramscope.units import format_bytes

from ..data import Data, View
from .definitions import DEFINITION, explained


class Part(NamedTuple):
    """One stretch of a bar."""

    name: str
    n_bytes: int


def layout(data: Data, view: View, at: int) -> html.Div:
    """Both bars of an instant; the second only where something is known."""
    reserved = [Part(name, n_bytes) for name, n_bytes in data.ask(view, "identity", instant=at).parts.items()]
    panels = [_panel("Reserved", reserved)]
    known = data.ask(view, "categories", instant=at)
    if known.is_known:
        panels.append(_panel("Allocated", [Part(*pair) for pair in known.totals.items()]))
    return html.Div(panels, className="pair")


def _panel(title: str, parts: list[Part]) -> html.Section:
    whole = sum(part.n_bytes for part in parts)
    heading = html.H3([f"{title} ", html.Span(format_bytes(whole), className="dim")])
    bar = [_stretch(part) for part in parts if part.n_bytes]
    return html.Section(
        [
            html.Div(heading, className="panel-bar"),
            html.Div(bar, className="parts", role="presentation"),
            html.Dl([_entry(part, whole) for part in parts], className="part-list"),
        ],
        className="panel",
        **{"aria-label": f"What the {title.lower()} memory serves"},
    )


def _stretch(part: Part) -> html.Span:
    return html.Span(className=f"part part-{part.name}", style={"flexGrow": str(part.n_bytes)})


def _entry(part: Part, whole: int) -> html.Div:
    swatch = html.I(className=f"swatch part-{part.name}")
    name = html.Span([swatch, part.name.replace("_", " ")], className="term", tabIndex="0")
    share = html.Span(f"{100 * part.n_bytes / max(whole, 1):.1f} %", className="dim")
    value = html.Dd([html.Span(format_bytes(part.n_bytes)), share], title=f"{part.n_bytes:,} bytes")
    return html.Div([html.Dt(explained(name, DEFINITION[part.name])), value])
