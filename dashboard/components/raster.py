"""A canvas that the browser paints with ids from the server, under Plotly's axes or alone."""

import json
from typing import Any

from dash import dcc, html

from ..figures.drawing.theme import CONFIG


def under_axes(name: str, figure: dict[str, Any], sentence: str, asks: dict[str, Any]) -> html.Figure:
    """Return a canvas under the plot area of *figure*.

    Parameters
    ----------
    name
        Id of the graph.
    figure
        Plotly JSON with the axes.
    sentence
        What the picture shows, for screen readers.
    asks
        URL and parameters of what the script fetches and paints.
    """
    drawing = dcc.Graph(id=name, figure=figure, config=CONFIG, responsive=True, style={"height": "100%"})
    return _frame(name, [*_canvases(), drawing], sentence, asks, "figure bands")


def alone(name: str, sentence: str, asks: dict[str, Any]) -> html.Figure:
    """Return a canvas without axes; parameters as those of :func:`under_axes`."""
    return _frame(name, _canvases(), sentence, asks, "figure strip")


def _canvases() -> list[Any]:
    """Return the canvas of the picture and the one for marks over it."""
    both = [html.Canvas(className="raster"), html.Canvas(className="raster raster-mark")]
    return [html.Div(both, className="raster-clip")]


def _frame(name: str, content: list[Any], sentence: str, asks: dict[str, Any], kind: str) -> html.Figure:
    attributes = {"data-asks": json.dumps(asks), "aria-label": sentence}
    return html.Figure(content, id=f"{name}-frame", className=kind, role="group", **attributes)
