"""Charts in a frame, with a text for screen readers: Plotly's with the shared configuration, and our own."""

import json
from typing import Any

from dash import dcc, html

from ..figures.drawing.theme import CONFIG

DRAWN = "data-figure"
"""Attribute with the figure of a :func:`plot`."""


def graph(name: str, figure: dict[str, Any], sentence: str, kind: str, height_px: int = 0) -> html.Figure:
    """Return *figure* in a frame, with a text for screen readers.

    *sentence* is what the figure shows, in words. The stylesheet gives ``figure.<kind>`` its height unless
    *height_px* does; Plotly fills the frame.
    """
    tall = {"style": {"height": f"{height_px}px"}} if height_px else {}
    drawing = dcc.Graph(id=name, figure=figure, config=CONFIG, responsive=True, style={"height": "100%"})
    label = {"aria-label": sentence}
    return html.Figure(drawing, id=f"{name}-frame", className=f"figure {kind}", role="group", **tall, **label)


def plot(name: str, figure: dict[str, Any], sentence: str, kind: str) -> html.Figure:
    """Return lines, marks and stacked areas over steps or events, which a page draws without Plotly.

    The script is ``assets/charts/plot.js``. A click writes the row of its ``customdata`` into the store
    ``<name>-pick``, where the page has one.

    *figure* has scatter traces over whole numbers, in bytes; *sentence* is what it shows, in words.
    """
    drawing = html.Div(id=name, className="plot", **{DRAWN: as_data(figure)})
    return html.Figure(
        drawing, id=f"{name}-frame", className=f"figure {kind}", role="group", **{"aria-label": sentence}
    )


def as_data(figure: dict[str, Any]) -> str:
    """Return a figure as the attribute DRAWN of :func:`plot`."""
    return json.dumps(figure, separators=(",", ":"))
