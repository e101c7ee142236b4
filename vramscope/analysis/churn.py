"""Counts how often memory came from the driver and went back, and releases of the cache for a request.

The bytes in segments that hold no block at all are computed at once for segments from cudaMalloc that never
overlap one another, else by following each event in turn.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vramscope.allocator.settings import UNLIMITED, Settings
from vramscope.analysis.folding import passes_through
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Array, rows_within
from vramscope.model.trace import Action, Trace

_STRETCH = 1 << 13
"""Events per pass: intermediate arrays stay in the processor's cache and never need fresh memory."""


class _Ranges(NamedTuple):
    """Address ranges that were segments at some time: sorted and disjoint."""

    start: Array
    end: Array

    def of(self, address: Array) -> Array:
        """The range of each address, −1 outside of all."""
        return rows_within(self.start, self.end, address)


def free_fixed_bytes(recording: Recording) -> Array | None:
    """Bytes of entirely free segments at every instant, in 60 ms per million events.

    None where each event must be followed in turn: expandable memory, an address that served segments of
    several sizes, a contradictory record.
    """
    ranges = _ranges(recording)
    if ranges is None:
        return None
    trace = recording.trace
    exists, in_use = _at_first(recording, ranges)
    size = (ranges.end - ranges.start).astype("i8")
    level = np.zeros(len(trace) + 1, dtype="i8")
    level[0] = size[exists & (in_use == 0)].sum()
    for first in range(0, len(trace), _STRETCH):
        part = slice(first, min(first + _STRETCH, len(trace)))
        if not _all_follow(trace.rows(part), ranges, (exists, in_use), level[part.start + 1 : part.stop + 1]):
            return None
        level[part.start + 1] += level[part.start]
        np.cumsum(level[part.start + 1 : part.stop + 1], out=level[part.start + 1 : part.stop + 1])
    return level


def _all_follow(part: Trace, ranges: _Ranges, now: tuple[Array, Array], change: Array) -> bool:
    """Write the change of free bytes at each event of *part* to *change*; False if the record contradicts
    itself.

    *now*, whether each range exists and its number of used blocks, is updated to the end of *part*.
    """
    exists, in_use = now
    events, of = _moves(part, ranges)
    if not len(of):
        return True
    action = part.action[events]
    first = np.diff(of, prepend=-1) != 0
    last = np.flatnonzero(np.append(first[1:], True))
    there = _running(exists[of], first, _signs(action, Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    used = _running(in_use[of], first, _signs(action, Action.ALLOC, Action.FREE_COMPLETED))
    # A segment appears twice, a block lies in no segment, or more blocks are freed than exist.
    if ((there < 0) | (there > 1) | (used < 0) | ((there == 0) & (used != 0))).any():
        return False
    is_free = (there == 1) & (used == 0)
    was_free = np.where(first, exists[of] & (in_use[of] == 0), np.append(False, is_free)[:-1])
    size = (ranges.end[of] - ranges.start[of]).astype("i8")
    change[events] = size * (is_free.view("i1") - was_free.view("i1"))
    exists[of[last]] = there[last] == 1
    in_use[of[last]] = used[last]
    return True


def _ranges(recording: Recording) -> _Ranges | None:
    trace, segments = recording.trace, recording.initial.segments
    is_mapped = (trace.action == Action.SEGMENT_MAP) | (trace.action == Action.SEGMENT_UNMAP)
    if is_mapped.any() or segments.is_expandable.any():
        return None
    made = np.flatnonzero((trace.action == Action.SEGMENT_ALLOC) & (trace.block_size > 0))
    start = np.concatenate([segments.address, trace.address[made]])
    end = start + np.concatenate([segments.size, trace.block_size[made]]).astype("u8")
    both = np.unique(np.stack([start, end], axis=1), axis=0)
    start, end = both[:, 0], both[:, 1]
    is_apart = (end[:-1] <= start[1:]).all() and (start < end).all()
    return _Ranges(start, end) if len(both) and is_apart else None


def _moves(trace: Trace, ranges: _Ranges) -> tuple[Array, Array]:
    """Events that change whether a range is free, ordered by range, then time; and their ranges."""
    is_move = (trace.action != Action.FREE_REQUESTED) & (trace.action <= Action.SEGMENT_FREE)
    events = np.flatnonzero(is_move & (trace.block_size > 0))
    of = ranges.of(trace.address[events])
    # Freeing an address that is not the start of a range releases nothing.
    is_amiss = trace.action[events] == Action.SEGMENT_FREE
    is_amiss &= ranges.start[of] != trace.address[events]
    is_in = (of >= 0) & ~is_amiss
    events, of = events[is_in], of[is_in]
    # NumPy sorts 16-bit integers by counting, which takes a fifth of the time.
    order = np.argsort(of.astype("u2") if len(ranges.start) < 1 << 16 else of, kind="stable")
    return events[order], of[order]


def _at_first(recording: Recording, ranges: _Ranges) -> tuple[Array, Array]:
    """Whether each range was a segment before the first event, and its number of used blocks."""
    segments, blocks = recording.initial.segments, recording.initial.blocks
    exists = np.isin(ranges.start, segments.address)
    mine = blocks.segment[blocks.in_use]
    counts = np.bincount(ranges.of(segments.address[mine]), minlength=len(ranges.start))
    return exists, counts


def _signs(action: Array, up: Action, down: Action) -> Array:
    return (action == up).astype("i1") - (action == down).astype("i1")


def _running(at_first: Array, is_first: Array, change: Array) -> Array:
    """The number after each change, counted from the start of its range."""
    total = np.cumsum(change, dtype="i8")
    row = np.flatnonzero(is_first)
    base = (total - change)[row]
    return total - np.repeat(base, np.diff(np.append(row, len(total)))) + at_first


def free_segment_bytes(recording: Recording) -> Array:
    """Bytes of entirely free segments at every instant.

    A contiguous mapped range of expandable memory counts as one segment, as torch's snapshots list it.
    """
    fixed = free_fixed_bytes(recording)
    return in_turn(recording) if fixed is None else fixed


def in_turn(recording: Recording) -> Array:
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
        in_use = blocks.rows(blocks.in_use)
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


GAINS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
LOSSES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class Churn:
    """How often memory came from the driver and went back."""

    n_made: int = 0
    """Segments allocated, or ranges mapped."""
    made_bytes: int = 0
    n_released: int = 0
    """Segments freed, or ranges unmapped."""
    released_bytes: int = 0
    n_retries: int = 0
    """Times that the cache was released because a request did not fit, and the driver was asked again at
    once.
    """
    n_ooms: int = 0


def churn_of(recording: Recording) -> Churn:
    """Traffic with the driver over the whole recording; ``driver_calls`` has every call of it."""
    trace = recording.trace
    made, released = (np.isin(trace.action, kinds) for kinds in (GAINS, LOSSES))
    return Churn(
        n_made=int(made.sum()),
        made_bytes=int(trace.size[made].sum()),
        n_released=int(released.sum()),
        released_bytes=int(trace.size[released].sum()),
        n_retries=_n_retries(recording),
        n_ooms=int((trace.action == Action.OOM).sum()),
    )


def _n_retries(recording: Recording) -> int:
    _, counted = _counted(recording)
    if len(counted) > 1:
        return int(np.maximum(np.diff(counted), 0).sum())
    return len(retry_events(recording))


def retry_events(recording: Recording) -> Array:
    """The last event of each run of releases that ends in a request to the driver, or out of memory.

    Releases by ``empty_cache``, and those of only a part of the cache, are not included.
    """
    return for_a_request(recording, release_events(recording))


def release_events(recording: Recording) -> Array:
    """The events that ``retry_events`` chooses from: what comes after them may say that there was room."""
    action = recording.trace.action
    losses = np.isin(action, LOSSES)
    last = np.flatnonzero(losses[:-1] & ~losses[1:])
    asked_again = last[np.isin(action[last + 1], (*GAINS, Action.OOM))]
    wanted = passes_through(recording.stacks, "empty_cache")
    releases = asked_again[~wanted[recording.trace.stack_id[asked_again]]]
    return releases[_gave_up_all(recording, losses, releases)]


def for_a_request(recording: Recording, releases: Array) -> Array:
    """Choose those of *releases* that torch counted (``num_alloc_retries``), or may have made for a request.

    cuDNN's benchmark of a convolution empties the cache as well, from C++: 41 times in a training on an H200
    that had 130 GiB free. Without torch's counter, a later level shows that there was room.
    """
    if not len(releases):
        return releases
    trace, (time_ns, n_retries) = recording.trace, _counted(recording)
    if len(n_retries) > 1:
        rises = np.append(np.diff(n_retries) > 0, False)
        at = np.searchsorted(time_ns, trace.time_ns[releases], side="right") - 1
        # A sample has its time from just before torch is asked.
        near = np.clip(at[:, None] + (-1, 0, 1), 0, len(rises) - 1)
        return releases[rises[near].any(axis=1)]
    moves = np.flatnonzero(trace.of_segments)
    gains = np.isin(trace.action[moves], GAINS)
    level = np.append(0, np.cumsum(np.where(gains, trace.size[moves], -trace.size[moves])))
    highest = np.maximum.accumulate(level[::-1])[::-1]
    after = np.searchsorted(moves, releases, side="right")
    before = np.maximum.accumulate(np.where(np.append(True, gains), np.arange(len(level)), 0))[after]
    is_full = level[before] + trace.size[releases + 1] >= highest[after]
    return releases[is_full | (trace.action[releases + 1] == Action.OOM)]


def _counted(recording: Recording) -> tuple[Array, Array]:
    """The times of the samples that have torch's counter of retries, and its values."""
    counters = recording.counters
    known = counters.rows(counters.retries >= 0) if recording.trace.has_clock else counters.rows(slice(0))
    return known.time_ns, known.retries


def _gave_up_all(recording: Recording, losses: Array, last: Array) -> Array:
    """Whether each run of releases, given its last event, covered the whole cache.

    With ``garbage_collection_threshold`` old segments are released before the driver is asked; with
    ``max_split_size`` first only blocks that are never split. Neither counts as a retry, in torch and here.
    """
    found = np.ones(len(last), dtype="?")
    settings = Settings.from_snapshot(recording.process.allocator, recording.process.torch)
    is_split, collects = settings.max_split_size != UNLIMITED, settings.garbage_collection_threshold > 0
    if not len(last) or not (is_split or collects):
        return found
    found &= free_segment_bytes(recording)[last + 1] == 0
    if is_split:
        begins = np.flatnonzero(losses & ~np.append(False, losses[:-1]))
        begins = begins[np.searchsorted(begins, last, side="right") - 1]
        spans = np.stack([begins, last + 1], axis=1).ravel()
        # No run ends the trace: an event follows each.
        smallest = np.minimum.reduceat(recording.trace.size, spans)[::2]
        failed = recording.trace.action[last + 1] == Action.OOM
        found &= failed | (smallest < settings.max_split_size)
    return found
