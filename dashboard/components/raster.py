"""A canvas painted with ids from the server, the hit test in the browser; under Plotly's axes, or alone."""

import json
from typing import Any

from dash import dcc, html

from ..figures.drawing.theme import CONFIG


def under_axes(name: str, figure: dict[str, Any], sentence: str, asks: dict[str, Any]) -> html.Figure:
    """Under the plot area of *figure*; *asks* is the address and the parameters of what is painted."""
    drawing = dcc.Graph(id=name, figure=figure, config=CONFIG, responsive=True, style={"height": "100%"})
    return _frame(name, [*_canvases(), drawing], sentence, asks, "figure bands")


def alone(name: str, sentence: str, asks: dict[str, Any]) -> html.Figure:
    """The canvas is the whole picture."""
    return _frame(name, _canvases(), sentence, asks, "figure strip")


def _canvases() -> list[Any]:
    """What is painted, and what is marked over it."""
    both = [html.Canvas(className="raster"), html.Canvas(className="raster raster-mark")]
    return [html.Div(both, className="raster-clip")]


def _frame(name: str, content: list[Any], sentence: str, asks: dict[str, Any], kind: str) -> html.Figure:
    said = {"data-asks": json.dumps(asks), "aria-label": sentence}
    return html.Figure(content, id=f"{name}-frame", className=kind, role="group", **said)
