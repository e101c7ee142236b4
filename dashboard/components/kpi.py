"""Cards with the key figures of a recording."""

from typing import Any

from dash import html

from vramscope.units import format_bytes

from .definitions import term


def card(name: str, label: str, n_bytes: int | None, below: Any = "", *, key: str = "") -> html.Div:
    """Return the card of one quantity in large type; its exact bytes appear on hover.

    *name* is that of the definition; *n_bytes* is None where it is unknown, which shows as a dash.
    """
    number, unit = ("–", "") if n_bytes is None else format_bytes(n_bytes).split(" ")
    value = html.Div(
        [html.Span(number, className="kpi-number"), html.Span(unit, className="kpi-unit")],
        title="not recorded" if n_bytes is None else f"{n_bytes:,} bytes", className="kpi-value",
        **({"id": key} if key else {}),
    )  # fmt: skip
    above = html.Div(term(name, label), className="kpi-label")
    return html.Div([above, value, html.Div(below, className="kpi-below")], className="kpi")


def row(*cards: html.Div) -> html.Section:
    """Return the cards side by side."""
    return html.Section(list(cards), className="kpis", **{"aria-label": "Key figures"})
