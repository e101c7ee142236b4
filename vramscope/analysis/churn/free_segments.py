"""Computes the bytes in segments that hold no block at all."""

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.churn.fixed_segments import free_fixed_bytes
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.trace import Action


def free_segment_bytes(recording: Recording) -> NDArray[Any]:
    """Bytes of entirely free segments at every instant.

    A contiguous mapped range of expandable memory counts as one segment, as torch's snapshots list it.
    """
    fixed = free_fixed_bytes(recording)
    return in_turn(recording) if fixed is None else fixed


def in_turn(recording: Recording) -> NDArray[Any]:
    """The same bytes for any recording, in a loop over events: 0.5 s per million."""
    trace = recording.trace
    is_move = (trace.action != Action.FREE_REQUESTED) & (trace.action <= Action.SEGMENT_UNMAP)
    events = np.flatnonzero(is_move & (trace.block_size > 0))
    runs = _SegmentRuns(recording.initial)
    first = runs.free_bytes
    changed, levels = _follow(
        runs,
        events.tolist(),
        trace.action[events].tolist(),
        trace.address[events].tolist(),
        trace.block_size[events].tolist(),
    )
    lengths = np.diff([0, *changed, len(trace) + 1])
    return np.repeat(np.array([first, *levels], dtype="i8"), lengths)


def _follow(
    runs: "_SegmentRuns", events: list[int], actions: list[int], addresses: list[int], sizes: list[int]
) -> tuple[list[int], list[int]]:
    """The instants at which the number of free bytes changes, and the new numbers."""
    starts, ends, counts = runs.starts, runs.ends, runs.counts
    changed, levels = [], []
    level = runs.free_bytes
    for event, action, address, size in zip(events, actions, addresses, sizes, strict=True):
        if action > Action.FREE_COMPLETED:
            runs.change(action, address, size)
        else:
            at = bisect_right(starts, address) - 1
            if at < 0 or address >= ends[at]:
                continue
            if action == 0:  # ALLOC
                counts[at] += 1
                if counts[at] == 1:
                    runs.free_bytes -= ends[at] - starts[at]
            elif counts[at]:
                counts[at] -= 1
                if not counts[at]:
                    runs.free_bytes += ends[at] - starts[at]
            runs.note(action, address)
        if runs.free_bytes != level:
            level = runs.free_bytes
            changed.append(event + 1)
            levels.append(level)
    return changed, levels


class _SegmentRuns:
    """The segments by address, each with its number of used blocks."""

    __slots__ = ("_expandable", "_used", "counts", "ends", "free_bytes", "starts")

    def __init__(self, state: Snapshot) -> None:
        segments, blocks = state.segments, state.blocks
        in_use = blocks.rows(blocks.state != BlockState.INACTIVE)
        self.starts: list[int] = segments.address.tolist()
        self.ends = [start + size for start, size in zip(self.starts, segments.size.tolist(), strict=True)]
        self.counts: list[int] = np.bincount(in_use.segment, minlength=len(segments)).tolist()
        self.free_bytes = 0
        self.free_bytes = sum(self._free(at) for at in range(len(self.starts)))
        self._used: set[int] = set(in_use.address[segments.is_expandable[in_use.segment]].tolist())
        """Used blocks in expandable memory: they decide which part of a split range is in use."""
        self._expandable = bool(segments.is_expandable.any())

    def note(self, action: int, address: int) -> None:
        """Record that a block came into use or was freed."""
        if self._expandable:
            (self._used.add if action == Action.ALLOC else self._used.discard)(address)

    def change(self, action: int, address: int, size: int) -> None:
        """Apply a SEGMENT_* event."""
        if action == Action.SEGMENT_ALLOC:
            self._insert(address, address + size, 0)
        elif action == Action.SEGMENT_FREE:
            at = bisect_right(self.starts, address) - 1
            if at >= 0 and self.starts[at] == address:
                self._remove(at)
        elif action == Action.SEGMENT_MAP:
            self._expandable = True
            self._map(address, address + size)
        elif action == Action.SEGMENT_UNMAP:
            self._unmap(address, address + size)

    def _free(self, at: int) -> int:
        return 0 if self.counts[at] else self.ends[at] - self.starts[at]

    def _insert(self, start: int, end: int, count: int) -> None:
        at = bisect_right(self.starts, start)
        self.starts.insert(at, start)
        self.ends.insert(at, end)
        self.counts.insert(at, count)
        self.free_bytes += self._free(at)

    def _remove(self, at: int) -> tuple[int, int, int]:
        self.free_bytes -= self._free(at)
        return self.starts.pop(at), self.ends.pop(at), self.counts.pop(at)

    def _map(self, start: int, end: int) -> None:
        """Add new memory, merged with the ranges that it touches."""
        count = 0
        at = bisect_right(self.starts, start) - 1
        if at >= 0 and self.ends[at] == start:
            start, _, count = self._remove(at)
        at = bisect_right(self.starts, end) - 1
        if at >= 0 and self.starts[at] == end:
            _, end, more = self._remove(at)
            count += more
        self._insert(start, end, count)

    def _unmap(self, start: int, end: int) -> None:
        """Remove memory; the rest of its range on each side becomes a range of its own."""
        at = bisect_right(self.starts, start) - 1
        if at < 0 or self.ends[at] < end:
            return
        first, last, count = self._remove(at)
        below = sum(first <= address < start for address in self._used) if count else 0
        if first < start:
            self._insert(first, start, below)
        if end < last:
            self._insert(end, last, count - below)
