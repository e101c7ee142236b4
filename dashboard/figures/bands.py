"""The allocation at each pixel of the active-memory timeline, where every live allocation has a band.

The bands of an instant are in the order of allocation: a new block is on top, and a free lowers those above
it. So no geometry is stored: a column of pixels is the live set of one instant, its sizes summed up and
counted in pixels. A live set comes from a key-frame and the allocations since. Where very many blocks are
live at once, those below an eighth of a pixel are drawn as one band at the top, whose outline is exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.lifetimes import ALIVE, BEFORE, Allocations

from .drawing.envelope import narrow_steps
from .drawing.series import Series
from .drawing.window import Window

KIB, MIB = 1 << 10, 1 << 20
EMPTY, SMALLER = -1, -2
"""Ids of pixels above all memory, and of blocks too small to be seen at this zoom."""


@dataclass(frozen=True, slots=True)
class Detail:
    """Settings of the index: they trade memory and time against the blocks that are drawn."""

    cuts: tuple[int, ...] = (2 * MIB, 64 * KIB, 0)
    """Smallest block of each level in bytes. The coarsest level that loses nothing visible is used."""
    most_bands: int = 6000
    """Up to this number of live blocks all are drawn; beyond, a view would take more than 100 ms."""
    least_distance: int = 2048
    """Least number of instants between two key-frames."""


class Box(NamedTuple):
    """The drawn region: an instant per column, bytes from bottom to top, rows of pixels."""

    instants: NDArray[Any]
    low: float
    high: float
    height: int


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Allocations of at least ``cut`` bytes, oldest first, with a key-frame every ``distance`` instants."""

    cut: int
    rows: NDArray[Any]
    """Rows of the lifetimes; after those of the allocations EMPTY and SMALLER, of 0 bytes."""
    born: NDArray[Any]
    dies: NDArray[Any]
    """Last instant at which each allocation is live."""
    size: NDArray[Any]
    distance: int
    frames: tuple[NDArray[Any], ...]
    most: int
    """Greatest number of allocations live at once."""

    def live_at(self, instants: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield the indices into ``rows`` of the allocations live at each of the ascending *instants*.

        They are in order of allocation.
        """
        frames = instants // self.distance
        begun = np.searchsorted(self.born, (frames * self.distance).astype(self.born.dtype)).tolist()
        ends = np.searchsorted(self.born, instants.astype(self.born.dtype)).tolist()
        before, frame_before, live = 0, -1, self.frames[0]
        for instant, frame, first, last in zip(instants.tolist(), frames.tolist(), begun, ends, strict=True):
            # From the instant before, where that is nearer than the key-frame.
            known, since = (live, before) if frame == frame_before else (self.frames[frame], first)
            found = np.concatenate([known, np.arange(since, last, dtype=np.int32)])
            live = found[self.dies[found] >= instant]
            before, frame_before = last, frame
            yield live


@dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """Index of the bands of one recording: its levels, coarsest first, and the exact outline."""

    levels: tuple[Level, ...]
    allocated: NDArray[Any]
    """Allocated bytes by instant."""
    most_bands: int

    def level_for(self, bytes_per_pixel: float) -> Level:
        """Return the coarsest level that leaves out only what could not be seen."""
        if self.levels[-1].most <= self.most_bands:
            return self.levels[-1]
        return next((level for level in self.levels if level.cut * 8 <= bytes_per_pixel), self.levels[-1])


def bands(found: Allocations, allocated: NDArray[Any], detail: Detail | None = None) -> Bands:
    """Return the index; about 0.3 s and 50 MB per million allocations.

    *allocated* has the bytes at each instant.
    """
    detail = detail or Detail()
    last = len(allocated) - 1
    dies = np.where(found.free_event == ALIVE, last, found.free_event)
    is_shown = found.free_event != BEFORE
    levels = []
    for cut in detail.cuts:
        rows = np.flatnonzero(is_shown & (found.block_size >= cut))
        if cut and len(rows) == int(is_shown.sum()):
            continue
        born, size = found.alloc_event[rows], found.block_size[rows]
        most = _most(born, dies[rows], last)
        distance = max(detail.least_distance, most)
        born, died, frames = _frames(born, dies[rows], last, distance)
        shown = np.append(rows, [EMPTY, SMALLER])
        levels.append(Level(cut, shown, born, died, np.append(size, [0, 0]), distance, frames, most))
    if levels[-1].most <= detail.most_bands:
        levels = levels[-1:]
    return Bands(tuple(levels), allocated, detail.most_bands)


def _frames(
    born: NDArray[Any], dies: NDArray[Any], last: int, distance: int
) -> tuple[NDArray[Any], NDArray[Any], tuple[NDArray[Any], ...]]:
    """Return births and deaths in the smallest type, and the live set at every *distance* instants."""
    kind = np.int32 if last < 2**31 - 1 else np.int64
    born, dies = born.astype(kind), dies.astype(kind)
    frames = [np.flatnonzero((born < 0) & (dies >= 0)).astype(np.int32)]
    starts = np.searchsorted(born, np.arange(0, last + distance + 1, distance, dtype=kind))
    for i in range(1, last // distance + 1):
        seen = np.concatenate([frames[-1], np.arange(starts[i - 1], starts[i], dtype=np.int32)])
        frames.append(seen[dies[seen] >= i * distance])
    return born, dies, tuple(frames)


def _most(born: NDArray[Any], dies: NDArray[Any], last: int) -> int:
    if not len(born):
        return 0
    change = np.bincount(born + 1, minlength=last + 2) - np.bincount(dies + 1, minlength=last + 2)
    return int(np.cumsum(change).max(initial=0))


def fullest(series: Series, borders: NDArray[Any]) -> NDArray[Any]:
    """Return the instant of the most allocated bytes in each column, so that peaks are exact at every zoom.

    Where steps are narrow, the whole steps that a column lies in count, as in the envelope of the curves:
    columns that each show another part of a step make a comb of the steps.

    *borders* has shape (columns + 1,). The level on entry to a column counts as part of it.
    """
    start, end = borders[:-1], borders[1:]
    narrow = narrow_steps(series, Window(float(borders[0]), float(borders[-1])), len(start))
    if len(narrow):
        begun, ended = series.steps.start[narrow], series.steps.end[narrow]
        first = np.searchsorted(begun, start, "right") - 1
        last = np.searchsorted(begun, end, "left") - 1
        start = np.where((first >= 0) & (start < ended[first]), begun[first], start)
        end = np.where((last >= 0) & (end < ended[last]), ended[last], end)
        start, end = np.maximum(start, borders[0]), np.minimum(end, borders[-1])
    return _fullest(series, start, end)


def _fullest(series: Series, start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    first = np.maximum(np.searchsorted(series.position, start) - 1, 0)
    stop = np.maximum(np.searchsorted(series.position, end), first + 1)
    parts = list(zip(first.tolist(), stop.tolist(), strict=True))
    # Columns that lie in one narrow step have the same part.
    known = {part: part[0] + series.allocated[slice(*part)].argmax() for part in set(parts)}
    return np.array([known[part] for part in parts])


class Raster(NamedTuple):
    """A picture as runs of equal pixels: its different columns one after another, from bottom to top."""

    rows: NDArray[Any]
    """The lifetimes' row of each run, or EMPTY or SMALLER."""
    n_pixels: NDArray[Any]
    """Length of each run, which never spans two columns."""
    column: NDArray[Any]
    """Which of the different columns each column of the picture shows, shape (columns,)."""
    cut: int
    """Smallest block in bytes that has pixels of its own."""

    def with_nothing_at(self, outside: NDArray[Any], height: int) -> "Raster":
        """Return the picture with EMPTY columns where *outside* is true, shape (columns,)."""
        if not outside.any():
            return self
        column = np.where(outside, self.column.max(initial=-1) + 1, self.column)
        return Raster(np.append(self.rows, EMPTY), np.append(self.n_pixels, height), column, self.cut)


def raster(index: Bands, box: Box) -> Raster:
    """Return what owns the center of each pixel."""
    step = (box.high - box.low) / box.height

    def n_below(level_bytes: NDArray[Any]) -> NDArray[Any]:
        """Return how many pixels of a column have their center below each level."""
        return np.clip(np.ceil((level_bytes - box.low) * (1 / step) - 0.5), 0, box.height).astype("i4")

    level = index.level_for(step)
    unique, column = np.unique(box.instants, return_inverse=True)
    # A column has nothing below 0, then the live blocks, those too small to be seen, and nothing.
    nothing, smaller = len(level.born), len(level.born) + 1
    begin, end = np.array([nothing], "i4"), np.array([smaller, nothing], "i4")
    lives = [*level.live_at(unique)]
    stacked = np.concatenate([part for live in lives for part in (begin, live, end)])
    stops = np.cumsum([len(live) + 3 for live in lives])
    starts = np.append(0, stops[:-1])
    tops = np.cumsum(level.size[stacked])
    tops -= np.repeat(tops[starts], stops - starts)
    last = np.minimum(n_below(tops), np.repeat(n_below(index.allocated[unique]), stops - starts))
    last[starts], last[stops - 2], last[stops - 1] = (
        n_below(np.zeros(1)), n_below(index.allocated[unique]), box.height,
    )  # fmt: skip
    n_pixels = np.diff(last, prepend=0)
    n_pixels[starts] = last[starts]
    shown = np.flatnonzero(n_pixels)
    return Raster(level.rows[stacked[shown]], n_pixels[shown], column, level.cut)
