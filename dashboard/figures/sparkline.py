"""The sparkline of a run: memory over its whole length, in the space of a word."""

from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from .drawing.m4 import time_edges

COLUMNS = 96


def outline(position: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return the greatest value in each of COLUMNS equal intervals; a level holds between events."""
    if not len(values):
        return np.zeros(0, "i8")
    edges = time_edges(position, 0, len(values), COLUMNS)
    best = np.maximum.reduceat(values, edges[:-1])
    span = float(position[-1] - position[0]) or 1.0
    column = np.minimum((position[edges[:-1]] - position[0]) / span * COLUMNS, COLUMNS - 1).astype("i8")
    at = np.searchsorted(column, np.arange(COLUMNS), "right") - 1
    filled = np.maximum(best[np.maximum(at, 0)], 0)
    np.maximum.at(filled, column, best)
    return filled.astype("i8")


def image(allocated: NDArray[Any], reserved: NDArray[Any]) -> str:
    """Return both outlines as an SVG data URI, scaled to the greatest value, in colors for both themes."""
    top = max(int(reserved.max(initial=0)), int(allocated.max(initial=0)), 1)
    body = _area(reserved, top, "#56B4E9", 0.35) + _area(allocated, top, "#7A8896", 0.9)
    box = f'viewBox="0 0 {COLUMNS} 28" preserveAspectRatio="none"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{body}</svg>'
    return f"data:image/svg+xml,{quote(svg)}"


def _area(values: NDArray[Any], top: int, color: str, opacity: float) -> str:
    heights = 28 - values / top * 27
    points = " ".join(f"{x},{y:.1f} {x + 1},{y:.1f}" for x, y in enumerate(heights.tolist()))
    return f'<polygon fill="{color}" fill-opacity="{opacity}" points="0,28 {points} {COLUMNS},28"/>'
