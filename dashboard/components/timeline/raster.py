"""A canvas that the browser paints with ids from the server, under the timeline or alone."""

import json
from typing import Any

from dash import html

from ...data import View
from ...figures.drawing.series import Series
from . import TrackStyle, frame


def under_axes(name: str, series: Series, view: View, sentence: str, asks: dict[str, Any]) -> html.Figure:
    """Return the timeline with a canvas under its axes.

    *asks* has URL and parameters of what the script fetches and paints.
    """
    more = {"data-asks": json.dumps(asks)}
    look = TrackStyle(f"{name}-frame", "bands", shown=("allocated",), more=more)
    return frame(series, view, sentence, look, *_canvases())


def alone(name: str, sentence: str, asks: dict[str, Any]) -> html.Figure:
    """Return a canvas without axes; parameters as those of :func:`under_axes`."""
    content = _canvases()
    attributes = {"data-asks": json.dumps(asks), "aria-label": sentence}
    return html.Figure(content, id=f"{name}-frame", className="figure strip", role="group", **attributes)


def _canvases() -> list[Any]:
    """Return the canvas of the picture and the one for marks over it."""
    both = [html.Canvas(className="raster"), html.Canvas(className="raster raster-mark")]
    return [html.Div(both, className="raster-clip")]
