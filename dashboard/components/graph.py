"""A Plotly graph with the shared configuration and a text for screen readers."""

from typing import Any

from dash import ClientsideFunction, Input, Output, State, dcc, html

from ..figures.drawing.theme import CONFIG


def graph(name: str, figure: dict[str, Any], sentence: str, kind: str, height_px: int = 0) -> html.Figure:
    """Return *figure* in a frame, with a text for screen readers.

    Parameters
    ----------
    name
        Id of the graph.
    figure
        Plotly JSON.
    sentence
        What the figure shows, in words.
    kind
        Class of the frame; the stylesheet gives ``figure.<kind>`` its height.
    height_px
        Height of the frame in pixels; 0 takes that of the stylesheet. Plotly fills the frame.
    """
    tall = {"style": {"height": f"{height_px}px"}} if height_px else {}
    drawing = dcc.Graph(id=name, figure=figure, config=CONFIG, responsive=True, style={"height": "100%"})
    return html.Figure(drawing, className=f"figure {kind}", role="group", **tall, **{"aria-label": sentence})


def register_zoom(app: Any, prefix: str) -> None:
    """Register the zoom of the chart ``<prefix>-graph``, which runs in the browser.

    The store ``<prefix>-view`` gets the edges of the zoom, the store ``<prefix>-ready`` follows the drawing.
    """
    app.clientside_callback(
        ClientsideFunction("vramscope", "zoomed"), Output(f"{prefix}-view", "data"),
        Input(f"{prefix}-graph", "relayoutData"), State(f"{prefix}-view", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    register_ready(app, f"{prefix}-graph", f"{prefix}-ready")


def register_ready(app: Any, name: str, store: str) -> None:
    """Register that the store gets a value when the browser has drawn the chart of that name."""
    app.clientside_callback(
        ClientsideFunction("vramscope", "drawn"), Output(store, "data"), Input(name, "figure")
    )
