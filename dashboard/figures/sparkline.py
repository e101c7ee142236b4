"""The sparkline of a run: memory over its whole length, in the space of a word."""

from typing import Any

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


def drawn(allocated: NDArray[Any], reserved: NDArray[Any]) -> list[str]:
    """Return both outlines, a letter a column from ``a`` (0) to ``z`` (the greatest value of both).

    A thousand rows of these are 190 kB, as pictures they would be 3 MB.
    """
    top = max(int(reserved.max(initial=0)), int(allocated.max(initial=0)), 1)
    return [
        bytes((97 + np.rint(values / top * 25)).astype("u1")).decode() for values in (allocated, reserved)
    ]
