"""Computes the sizes of large blocks by following each of them and the free memory after it.

Addresses are represented by their rank among all addresses where something begins or ends: steps are then a
few look-ups in short lists, whatever the record holds.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vramscope.allocator.lives import BlockLives
from vramscope.allocator.settings import SMALL_LIMIT, Settings
from vramscope.model.table import Array, stretches
from vramscope.model.trace import Action, Trace

_LAST = np.uint64(2**64 - 1)
_STRETCH = 1 << 14
"""Blocks, or events, per pass. Arrays over all of them at once took 0.2 s and 150 MB more for 5 million
events, and a list of all steps would take 40 bytes for each.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """What is known of the large blocks before the first event."""

    sizes: Array
    """The rounded request of each block; for a block that existed already, its least possible size."""
    unsure: Array
    """Blocks that existed already and whose end is unknown."""
    segments: Array
    """Start addresses of segments: no block extends across one."""
    free: Array
    """Start addresses of free ranges; ``free_sizes`` holds their bytes."""
    free_sizes: Array


def followed(
    trace: Trace, found: BlockLives, large: Array, start: Start, settings: Settings
) -> tuple[Array, int, int]:
    """The sizes of the blocks *found* in the rows *large*; 0.12 s per million events.

    And the numbers of blocks from before the record whose end was never determined, and of those that were
    allocated where nothing was free.
    """
    pool = _Pool(trace, found.address, large, start, settings)
    for steps in _steps(trace, found, large, pool.segment_events):
        pool.follow(steps)
    sizes, changed = start.sizes.copy(), np.array(pool.changed, "i8")
    end = np.array([pool.end[i] for i in pool.changed], "i8")
    grown, end = changed[end > 0] - 1, end[end > 0]
    sizes[grown] = (pool.addresses(end) - found.address[large[grown]]).astype("i8")
    return sizes, len(pool.unsure) + pool.n_never_known, len(changed) - len(grown)


class _Pool:
    """The free large blocks while a record is followed. Blocks and points count from 1: 0 is none.

    A point is the rank of an address among all addresses where something begins or ends.
    """

    def __init__(self, trace: Trace, address: Array, large: Array, start: Start, settings: Settings) -> None:
        """The large blocks are in the rows *large* of *address*, which is sorted."""
        is_segment = (trace.action == Action.SEGMENT_ALLOC) | (trace.action == Action.SEGMENT_FREE)
        self.segment_events = np.flatnonzero(is_segment)
        held = trace.rows(self.segment_events)
        held_end, free_end = _end(held.address, held.size), _end(start.free, start.free_sizes)
        known = [start.segments, start.free, free_end, held.address, held_end]
        for at in stretches(len(large), _STRETCH):
            begin = address[large[at]]
            known += [_distinct(begin), _distinct(_end(begin, start.sizes[at]))]
        self._points = _distinct(np.concatenate(known))
        n_points, n_blocks = len(self._points) + 1, len(large) + 1
        # One object per point, not one per block: they stay in the processor's cache.
        points = np.arange(n_points + 1).astype("O")
        self._begin, self.end = [0] * n_blocks, [0] * n_blocks
        """First and end point of each block; the end is 0 of one allocated where nothing was free."""
        for at in stretches(len(large), _STRETCH):
            begin, blocks = address[large[at]], slice(at.start + 1, at.stop + 1)
            self._begin[blocks] = points[self._place_in_order(begin)].tolist()
            self.end[blocks] = points[self._place(_end(begin, start.sizes[at]))].tolist()
        self.changed: list[int] = []
        """Blocks whose end is not their least possible end."""
        self._split_from = [0, *points[self._from_where_to_split()].tolist()]
        """The first point that leaves enough after each point for a split."""
        self._is_whole = bytearray(1) + (start.sizes >= settings.max_split_size).tobytes()
        """Whether each block is never split."""
        self._free_end, self._free_begin = [0] * n_points, [0] * n_points
        """The other end of the free range that begins, or ends, at a point."""
        self._is_wall = bytearray(n_points)
        """Whether a segment begins at a point."""
        for point in self._place(start.segments).tolist():
            self._is_wall[point] = 1
        for begins, ends in zip(
            self._place(start.free).tolist(), self._place(free_end).tolist(), strict=True
        ):
            self._free_end[begins], self._free_begin[ends] = ends, begins
        come = held.action == Action.SEGMENT_ALLOC
        segments = np.column_stack((come, self._place(held.address), self._place(held_end)))
        self._segments: list[list[int]] = segments.tolist()
        """Whether the segment of each segment event appears, and its two points."""
        self.unsure = {self.end[i]: i for i in (start.unsure + 1).tolist()}
        """Blocks from before the trace whose end is unknown, by their least possible end."""
        self._unsure_ends = sorted(self.unsure)
        self.n_never_known = 0
        """The number of those that were freed before anything showed their end."""

    def _place(self, address: Array) -> Array:
        """The points of addresses."""
        return np.searchsorted(self._points, address) + 1

    def _place_in_order(self, address: Array) -> Array:
        """The points of addresses that are sorted, as those of lives are."""
        is_new = np.ones(len(address), "?")
        is_new[1:] = address[1:] != address[:-1]
        return self._place(address[is_new])[np.cumsum(is_new) - 1]

    def addresses(self, points: Array) -> Array:
        """The addresses of points."""
        return self._points[points - 1]

    def _from_where_to_split(self) -> Array:
        """The first point that leaves enough after each point for a split, as in ``Settings.splits``."""
        limit = _end(self._points, np.full(len(self._points), SMALL_LIMIT))
        return np.searchsorted(self._points, limit, side="right") + 1

    def follow(self, steps: list[int]) -> None:  # noqa: C901 a call per step would double its time
        """Apply the steps to the pool."""
        free_end, free_begin, is_wall = self._free_end, self._free_begin, self._is_wall
        begins, ends, unsure = self._begin, self.end, self.unsure
        split_from, is_whole = self._split_from, self._is_whole
        n_blocks, changed = len(begins), self.changed
        for i in steps:
            if i < 0:  # freed
                begin, end = begins[-i], ends[-i]
                if not end:
                    continue
                if unsure and end in unsure:
                    self._forget(-i, end)
                before, after = free_begin[begin], free_end[end]
                if before and not is_wall[begin]:
                    free_begin[begin] = 0
                    begin = before
                if after and not is_wall[end]:
                    free_end[end] = 0
                    end = after
                free_end[begin] = end
                free_begin[end] = begin
            elif i < n_blocks:  # allocated
                begin, end = begins[i], ends[i]
                if unsure and not free_end[begin]:
                    self._learn(begin)
                after = free_end[begin]
                free_end[begin] = 0
                if after == end:
                    free_begin[end] = 0
                elif after >= split_from[end] and not is_whole[i]:
                    free_end[end] = after
                    free_begin[after] = end
                else:  # too little is left for a block; or nothing was free there: events are missing
                    free_begin[after] = 0
                    ends[i] = after if after > end else 0
                    changed.append(i)
            else:
                self._move_segment(i - n_blocks)

    def _forget(self, i: int, end: int) -> None:
        if self.unsure[end] == i:
            del self.unsure[end]
            self.n_never_known += 1

    def _move_segment(self, row: int) -> None:
        comes, begin, end = self._segments[row]
        self._is_wall[begin] = comes
        if comes:
            self._free_end[begin], self._free_begin[end] = end, begin
        else:
            self._free_begin[self._free_end[begin]] = self._free_end[begin] = 0

    def _learn(self, begin: int) -> None:
        """Determine the end of a live block of unsure size: a new block begins there."""
        rank = bisect_right(self._unsure_ends, begin) - 1
        least = self._unsure_ends[rank] if rank >= 0 else 0
        end = self._free_end[least]
        if least not in self.unsure or begin >= end:
            return
        if int(self._points[begin - 1]) - int(self._points[least - 1]) > SMALL_LIMIT:
            return
        i = self.unsure.pop(least)
        self.end[i] = begin
        self.changed.append(i)
        self._free_end[least] = 0
        self._free_end[begin], self._free_begin[end] = end, begin


def _end(address: Array, size: Array) -> Array:
    """The exclusive end of each range; the largest address where a damaged record would overflow."""
    end: Array = address + size.astype("u8")
    return np.where(end < address, _LAST, end)


def _distinct(addresses: Array) -> Array:
    """Sorted distinct addresses; the hash tables of ``np.unique`` take ten times as long.

    Most come in long sorted runs: a sort that looks for such is twice as fast.
    """
    ordered = np.sort(addresses, kind="stable")
    is_new = np.ones(len(ordered), "?")
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def _steps(trace: Trace, found: BlockLives, large: Array, segment_events: Array) -> Iterator[list[int]]:
    """Yield the steps in order of the events: −i frees block i, i allocates it; numbers beyond the blocks
    stand for segments that appear or go.
    """
    steps = np.zeros(len(trace), "i4")
    replaced: list[tuple[int, int]] = []
    for at in stretches(len(large), _STRETCH):
        rows, block = large[at], np.arange(at.start + 1, at.stop + 1)
        alloc, end = found.alloc[rows], found.end[rows]
        steps[alloc[alloc >= 0]] = block[alloc >= 0]
        is_ended = end >= 0
        is_late = is_ended & (trace.action[end] == Action.ALLOC)
        steps[end[is_ended & ~is_late]] = -block[is_ended & ~is_late]
        replaced += zip(end[is_late].tolist(), (-block[is_late]).tolist(), strict=True)
    steps[segment_events] = len(large) + 1 + np.arange(len(segment_events))
    # A free that the record lacks comes before the ALLOC that shows it.
    lacking = np.array(sorted(replaced), "i8").reshape(-1, 2)
    for at in stretches(len(steps), _STRETCH):
        here = lacking[slice(*np.searchsorted(lacking[:, 0], (at.start, at.stop)))]
        part = np.insert(steps[at], here[:, 0] - at.start, here[:, 1]) if len(here) else steps[at]
        yield part[part != 0].tolist()
