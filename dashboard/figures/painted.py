"""The bands of all allocations as a picture in a figure, where no script of a page paints them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bands import SMALLER, Bands, Box, fullest, raster
from .drawing.paint import Paint
from .drawing.png import data_uri
from .drawing.series import Series
from .drawing.window import window
from .timeline import figure as axes
from .timeline import shown_unit

COLUMNS, ROWS = 900, 420
_SHOWN = ("allocated",)
_SMALLER_COLOR, _SMALLER_NAME = "#999999", "smaller than a pixel"
_LIGHTEST, _LIGHTER = 0.02, 0.075
"""The share of white in the first shade of a color, and how much more the next one has."""


def figure(series: Series, index: Bands, paint: Paint, shade: NDArray[Any]) -> dict[str, Any]:
    """Return the exact outline of allocated bytes over a picture of the bands.

    *shade* is 0 to 4 for each allocation: neighbors of one color differ in it.
    """
    view = window(series, None, None)
    made = axes(series, _SHOWN, None)
    for trace in made["data"]:
        if trace["uid"] in _SHOWN:
            trace |= {"fill": "tozeroy", "fillcolor": "rgba(0,0,0,0)"}
    unit, _ = shown_unit(series, _SHOWN)
    top = 1.03 * max(int(series.allocated.max(initial=0)), 1)
    borders = np.linspace(view.start, view.end, COLUMNS + 1)
    instants = fullest(series, borders)
    pixels, _ = raster(index, Box(instants, 0, top, ROWS))
    picture = data_uri(_colored(pixels.T[::-1], paint, shade))
    made["layout"]["yaxis"] |= {"autorange": False, "range": [0, top / unit], "showgrid": False}
    made["layout"]["images"] = [
        {"source": picture, "xref": "x", "yref": "y", "x": view.start,
         "y": top / unit, "sizex": view.end - view.start, "sizey": top / unit, "sizing": "stretch",
         "layer": "below"}
    ]  # fmt: skip
    made["data"] += _key(pixels, paint)
    return made


def shades(stack_id: NDArray[Any]) -> NDArray[Any]:
    """Return 0 to 4 by stack, as the script of the pages does: neighbors of one color mostly differ."""
    return (stack_id * np.int64(7) + 3) % 5


def _colored(pixels: NDArray[Any], paint: Paint, shade: NDArray[Any]) -> NDArray[Any]:
    """Return red, green, blue and opacity of each pixel, shape (rows, columns, 4)."""
    base = np.array([_rgb(color) for color in (*paint.colors, _SMALLER_COLOR)], "f8")
    is_block = pixels >= 0
    row = np.maximum(pixels, 0)
    group = np.where(is_block, paint.group[row], len(paint.colors)) if len(paint.group) else pixels * 0
    white = np.where(is_block, _LIGHTEST + _LIGHTER * shade[row], 0) if len(shade) else np.zeros(pixels.shape)
    color = base[group] + (255 - base[group]) * white[..., None]
    opacity = np.where(is_block | (pixels == SMALLER), 255, 0)
    return np.concatenate([color, opacity[..., None]], axis=2).astype("u1")


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _key(pixels: NDArray[Any], paint: Paint) -> list[dict[str, Any]]:
    """Return a trace without points for each color in the picture, so that the legend names it."""
    seen = np.unique(paint.group[np.unique(pixels[pixels >= 0])]).tolist()
    entries = [(paint.names[group], paint.colors[group]) for group in seen]
    if (pixels == SMALLER).any():
        entries.append((_SMALLER_NAME, _SMALLER_COLOR))
    return [
        {"type": "scatter", "mode": "markers", "name": name, "x": [None], "y": [None], "showlegend": True,
         "marker": {"symbol": "square", "size": 11, "color": color}}
        for name, color in entries
    ]  # fmt: skip
