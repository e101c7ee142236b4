"""A Plotly graph as we show it everywhere: local, quiet, with a sentence for those who cannot see it."""

from typing import Any

from dash import dcc, html

from ..figures.drawing.theme import CONFIG


def graph(name: str, figure: dict[str, Any], sentence: str, kind: str, height_px: int = 0) -> html.Figure:
    """*figure* under the id *name*; *sentence* says in words what it shows.

    The frame has the height, *height_px* or the stylesheet's for ``figure.<kind>``; Plotly fills it.
    """
    tall = {"style": {"height": f"{height_px}px"}} if height_px else {}
    drawing = dcc.Graph(id=name, figure=figure, config=CONFIG, responsive=True, style={"height": "100%"})
    return html.Figure(drawing, className=f"figure {kind}", role="group", **tall, **{"aria-label": sentence})
