"""Reduction of a long series to the instants that draw the same picture with the same maximum.

M4 keeps the first, smallest, greatest and last value of each column of the picture: a line through them
covers the same pixels as a line through all values, and no peak is lost. LTTB and similar methods choose
*among* the extremes: measured, they lost the peak in 8 of 60 windows.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
LONG = 1 << 14
"""From this number of values on a part is searched by blocks: of 4,000 that takes 10 µs instead of 4, and of
64,000 it takes 15 instead of 28.
"""
WIDE = 100_000
"""From this number of values on, the extremes of blocks are used in place of the values."""


def even_edges(start: int, stop: int, n_columns: int) -> NDArray[Any]:
    """Return borders of at most *n_columns* columns with equal counts of ``[start, stop)``; none is empty."""
    n_columns = max(1, min(n_columns, stop - start))
    return np.linspace(start, stop, n_columns + 1).astype("i8")


def time_edges(position: NDArray[Any], start: int, stop: int, n_columns: int) -> NDArray[Any]:
    """Return column borders of ``[start, stop)`` by equal widths of the sorted *position*; none is empty."""
    if stop - start <= n_columns:
        return np.arange(start, stop + 1)
    ticks = np.linspace(float(position[start]), float(position[stop - 1]), n_columns + 1)[1:-1]
    inner = start + np.searchsorted(position[start:stop], ticks)
    return _distinct(np.concatenate([[start], inner, [stop]]))


class Extremes(NamedTuple):
    """Least and greatest of every BLOCK values; an incomplete block at the end is left out."""

    low: NDArray[Any]
    high: NDArray[Any]


def block_extremes(values: NDArray[Any]) -> Extremes:
    """Return the extremes of every block of a column; 1 ms per million values."""
    whole = values[: len(values) // BLOCK * BLOCK].reshape(-1, BLOCK)
    return Extremes(whole.min(axis=1), whole.max(axis=1))


def m4(
    columns: Sequence[NDArray[Any]],
    edges: NDArray[Any],
    blocks: Sequence[Extremes | None] = (),
    wide: int = WIDE,
) -> NDArray[Any]:
    """Return sorted indices to draw: first, last and extremes of each ``[edges[i], edges[i+1])``.

    *edges* has shape (picture columns + 1,). Where *blocks*, the extremes of each of the series, are known, a
    picture costs its blocks, not its values, from *wide* values on.
    """
    if len(edges) < 2 or edges[0] >= edges[-1]:
        return np.zeros(0, "i8")
    chosen = [edges[:-1], edges[1:] - 1]
    for values, known in zip_longest(columns, blocks):
        if known is not None and edges[-1] - edges[0] >= wide:
            chosen += [_first_in_blocks(values, edges, *each) for each in _both(known)]
        else:
            chosen += [_first_hit(values, edges, np.minimum), _first_hit(values, edges, np.maximum)]
    return _distinct(np.sort(np.concatenate(chosen)))


Pick = Callable[[NDArray[Any]], Any]
"""``np.argmax`` or ``np.argmin``."""


def first_extreme(
    values: NDArray[Any],
    of_block: NDArray[Any] | None,
    part: tuple[int, int],
    pick: Pick,
    long: int = LONG,
) -> int:
    """Return the first index of the extreme value in a part of a column.

    *part* is first index and end, and not empty; *pick* is the index of the extreme. From *long* values on,
    not below two blocks, *of_block* is used: that extreme of every BLOCK values, so that of ten million
    values none but a few hundred are read.
    """
    start, end = part
    if of_block is None or end - start < long:
        return start + int(pick(values[start:end]))
    first, last = -(-start // BLOCK), min(end // BLOCK, len(of_block))
    best = first + int(pick(of_block[first:last]))
    parts = [(start, first * BLOCK), (best * BLOCK, (best + 1) * BLOCK), (last * BLOCK, end)]
    found = [a + int(pick(values[a:b])) for a, b in parts if a < b]
    return found[int(pick(values[found]))]


def extremes_between(
    values: NDArray[Any],
    of_block: NDArray[Any] | None,
    first: NDArray[Any],
    stop: NDArray[Any],
    extreme: np.ufunc,
) -> NDArray[Any]:
    """Return the extreme value of each part of a column; parts may overlap.

    Calls of :func:`first_extreme` for 500 parts took 5 ms, six times in every refresh of a live run.

    *of_block* has that extreme of every BLOCK values, None where unknown; no part ``[first, stop)`` is empty.
    """
    if of_block is None:
        return _reduced(values, first, stop, extreme)
    # Without a whole block a part is shorter than two: its first and its last BLOCK values are all of it.
    near = np.arange(BLOCK)
    heads = values[np.minimum(first[:, None] + near, stop[:, None] - 1)]
    tails = values[np.maximum(stop[:, None] - 1 - near, first[:, None])]
    best = extreme(extreme.reduce(heads, axis=1), extreme.reduce(tails, axis=1))
    block, end = -(-first // BLOCK), np.minimum(stop // BLOCK, len(of_block))
    is_wide = end > block
    best[is_wide] = extreme(best[is_wide], _reduced(of_block, block[is_wide], end[is_wide], extreme))
    return best


def _reduced(
    values: NDArray[Any], first: NDArray[Any], stop: NDArray[Any], extreme: np.ufunc
) -> NDArray[Any]:
    """Return the extreme of each part of *values*, all of which are read."""
    if not len(first):
        return values[:0]
    # reduceat takes no index beyond the last value, so the last value of each part is added.
    edges = np.stack([first, np.minimum(stop, len(values) - 1)], axis=1).ravel()
    return extreme(extreme.reduceat(values, edges)[::2], values[stop - 1])


def _distinct(ascending: NDArray[Any]) -> NDArray[Any]:
    """Return each value once; np.unique hashes first, which takes four times as long for some thousands."""
    return ascending[np.append(True, ascending[1:] != ascending[:-1])]


def _both(blocks: Extremes) -> tuple[tuple[NDArray[Any], np.ufunc], ...]:
    return (blocks.low, np.minimum), (blocks.high, np.maximum)


def _first_hit(values: NDArray[Any], edges: NDArray[Any], extreme: np.ufunc) -> NDArray[Any]:
    """Return the first index of each column that holds its extreme."""
    inside = values[edges[0] : edges[-1]]
    starts = edges[:-1] - edges[0]
    best = extreme.reduceat(inside, starts)
    hits = np.flatnonzero(inside == np.repeat(best, np.diff(edges)))
    return edges[0] + hits[np.searchsorted(hits, starts)]


def _first_in_blocks(
    values: NDArray[Any], edges: NDArray[Any], of_block: NDArray[Any], extreme: np.ufunc
) -> NDArray[Any]:
    """Return the same from the values before the first whole block, the blocks, and the values after."""
    first = np.minimum(-(-edges[:-1] // BLOCK), len(of_block))
    last = np.maximum(np.minimum(edges[1:] // BLOCK, len(of_block)), first)
    is_wide = last > first
    head = np.where(is_wide, first * BLOCK, edges[1:])
    tail = np.where(is_wide, last * BLOCK, edges[1:])
    starts = np.stack([edges[:-1], first, tail], axis=1).ravel()
    lengths = np.stack([head - edges[:-1], last - first, edges[1:] - tail], axis=1).ravel()
    index = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    in_block = np.repeat(np.tile([False, True, False], len(edges) - 1), lengths)
    seen = values[np.where(in_block, 0, index)]
    seen[in_block] = of_block[index[in_block]]
    column = np.concatenate([[0], np.cumsum(lengths.reshape(-1, 3).sum(axis=1))])
    hit = _first_hit(seen, column, extreme)
    found: NDArray[Any] = index[hit]
    inside = found[in_block[hit]][:, None] * BLOCK + np.arange(BLOCK)
    place = values[inside].argmin(axis=1) if extreme is np.minimum else values[inside].argmax(axis=1)
    found[in_block[hit]] = inside[:, 0] + place
    return found
