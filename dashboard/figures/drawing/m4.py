"""Reduction of a long series to the instants that draw the same picture with the same maximum.

M4 keeps the first, smallest, greatest and last value of each column of the picture: a line through them
covers the same pixels as a line through all values, and no peak is lost. LTTB and similar methods choose
*among* the extremes: measured, they lost the peak in 8 of 60 windows.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from vramscope.model.table import Array

_AT_ONCE = 600_000
"""Values below which all columns at once are faster than one by one: 0.1 against 0.9 ms of 60,000 values in
1,100 columns, 0.8 against 1.2 of 600,000, but 2.8 against 1.4 of a million."""


def even_edges(start: int, stop: int, n_columns: int) -> Array:
    """Return borders of at most *n_columns* columns with equal counts of ``[start, stop)``; none is empty."""
    n_columns = max(1, min(n_columns, stop - start))
    return np.linspace(start, stop, n_columns + 1).astype("i8")


def time_edges(position: Array, start: int, stop: int, n_columns: int) -> Array:
    """Return column borders of ``[start, stop)`` by equal widths of the sorted *position*; none is empty."""
    if stop - start <= n_columns:
        return np.arange(start, stop + 1)
    ticks = np.linspace(float(position[start]), float(position[stop - 1]), n_columns + 1)[1:-1]
    inner = start + np.searchsorted(position[start:stop], ticks)
    return _distinct(np.concatenate([[start], inner, [stop]]))


def m4(columns: Sequence[Array], edges: Array) -> Array:
    """Return sorted indices to draw: first, last and extremes of each ``[edges[i], edges[i+1])``.

    *edges* has shape (picture columns + 1,). A million values take 2 to 4 ms.
    """
    if len(edges) < 2 or edges[0] >= edges[-1]:
        return np.zeros(0, "i8")
    chosen = [edges[:-1], edges[1:] - 1]
    at_once = edges[-1] - edges[0] < _AT_ONCE
    for values in columns:
        chosen += _extremes_at_once(values, edges) if at_once else _extremes_one_by_one(values, edges)
    return _distinct(np.sort(np.concatenate(chosen)))


def _extremes_at_once(values: Array, edges: Array) -> list[Array]:
    """Return the first index of the least, and that of the greatest, of each column."""
    start, n_each, inside = edges[:-1] - edges[0], np.diff(edges), values[edges[0] : edges[-1]]
    found = []
    for extreme in (np.minimum, np.maximum):
        at = np.flatnonzero(inside == np.repeat(extreme.reduceat(inside, start), n_each))
        found.append(edges[0] + at[np.searchsorted(at, start)])
    return found


def _extremes_one_by_one(values: Array, edges: Array) -> list[Array]:
    """Return the same as :func:`_extremes_at_once`."""
    parts = list(pairwise(edges.tolist()))
    return [
        np.array([start + values[start:stop].argmin() for start, stop in parts]),
        np.array([start + values[start:stop].argmax() for start, stop in parts]),
    ]


def _distinct(ascending: Array) -> Array:
    """Return each value once; np.unique hashes first, which takes four times as long for some thousands."""
    return ascending[np.append(True, ascending[1:] != ascending[:-1])]
