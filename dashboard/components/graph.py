"""A Plotly graph as we show it everywhere: local, quiet, with a sentence for those who cannot see it."""

from typing import Any

from dash import dcc, html

from ..figures.theme import CONFIG


def graph(
    name: str, figure: dict[str, Any], sentence: str, class_name: str = "", height_px: int = 0
) -> html.Figure:
    """*figure* under the id *name*; *sentence* says in words what it shows."""
    return html.Figure(
        dcc.Graph(
            id=name,
            figure=figure,
            config=CONFIG,
            className=class_name,
            responsive=True,
            style={"height": "100%"} if height_px else None,
        ),
        className="figure",
        style={"height": f"{height_px}px"} if height_px else None,
        role="img",
        **{"aria-label": sentence},
    )
