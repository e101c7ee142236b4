"""Gives the allocator's state at any instant of a trace within milliseconds.

The events of each block are found once, for the whole trace. At regular distances the blocks alive then are
stored as a checkpoint; a state is the nearest checkpoint before it plus what happened since. No checkpoint is
larger than the distance between two, so all of them together are no larger than one column of the trace.
Of the segments' events only those count that still determine the current segments: about as many as these.
"""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.layout import Used, blocks_of, segments_after, used
from vramscope.allocator.lives import BlockLives, ends_at, lives
from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Segments, Snapshot
from vramscope.model.table import Array
from vramscope.model.trace import Action, Trace


def relevant_segment_events(trace: Trace, rows: Array, before: Segments) -> Array:
    """The segment events of *rows* that still determine the segments after them.

    *before* are the segments before the first of *rows*, which are in order.
    """
    action = trace.action[rows]
    is_cuda = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_FREE)
    mapped = (action == Action.SEGMENT_MAP) | (action == Action.SEGMENT_UNMAP)
    found = np.concatenate([_last(trace, rows[is_cuda], before), _not_undone(trace, rows[mapped])])
    found.sort()
    return found


def _last(trace: Trace, rows: Array, before: Segments) -> Array:
    """Events of cudaMalloc segments: the last one at each address, unless it frees a segment that appeared
    among the rows.
    """
    last = rows[::-1][np.unique(trace.address[rows][::-1], return_index=True)[1]]
    is_there = trace.action[last] == Action.SEGMENT_ALLOC
    return last[is_there | np.isin(trace.address[last], before.address)]


def _not_undone(trace: Trace, rows: Array) -> Array:
    """Events of expandable memory: maps and unmaps of the same range that do not cancel out.

    The first event that begins or ends at an address always stays: it gives the stream and pool of that
    memory.
    """
    start, end = trace.address[rows], trace.address[rows] + trace.size[rows].astype("u8")
    stays = np.zeros(len(rows), dtype="?")
    for edge in (start, end):
        stays[np.unique(edge, return_index=True)[1]] = True
    sign = np.where(trace.action[rows] == Action.SEGMENT_MAP, 1, -1)
    order = np.lexsort((sign, end, start))
    order = order[~stays[order]]
    is_new = np.ones(len(order), dtype="?")
    is_new[1:] = (np.diff(start[order]) != 0) | (np.diff(end[order]) != 0)
    group = np.cumsum(is_new) - 1
    net = np.bincount(group, weights=sign[order]).astype("i8")
    # Unmaps come first within a group: |net| of them stay where they are more, else the last maps.
    first = np.flatnonzero(is_new)
    place = np.arange(len(order)) - first[group]
    size = np.diff(np.append(first, len(order)))[group]
    is_left = np.where(net[group] < 0, place < -net[group], place >= size - net[group])
    stays[order[is_left]] = True
    return rows[stays]


_LEAST_DISTANCE = 1 << 15
_LEAST_MOVES = 256


class StateIndex:
    """States of one trace; ``at(k)`` equals ``replay.state_at(trace, initial, k)``.

    Building it takes 0.1 s per million events; a state then takes milliseconds, however long the trace.

    Two checkpoints are at least *least_distance* events apart, more where more blocks live at once, and two
    lists of relevant segment events at least *least_moves* of these.
    """

    __slots__ = (
        "_checkpoints", "_distance", "_lives", "_moves", "_moves_since", "_older", "_older_ends",
        "_older_requests", "_segment_events", "_segment_trace", "_segments", "_trace",
    )  # fmt: skip

    def __init__(
        self,
        trace: Trace,
        initial: Snapshot,
        *,
        least_distance: int = _LEAST_DISTANCE,
        least_moves: int = _LEAST_MOVES,
    ) -> None:
        self._trace = trace
        self._segment_events = np.flatnonzero(trace.of_segments)
        self._segment_trace = trace.rows(self._segment_events)
        self._segments = initial.segments
        self._moves, self._moves_since = self._relevant_moves(least_moves)
        self._older = used(initial.blocks)
        freed, self._lives = lives(trace)
        self._older_requests, self._older_ends = ends_at(self._older.address, freed)
        self._distance = max(least_distance, _most_at_once(self._lives, len(trace)))
        self._checkpoints = self._made()

    def at(self, k: int) -> Snapshot:
        """Segments and blocks at instant *k*."""
        # Blocks from before the first event that are still in use at *k*.
        is_left = (self._older_ends < 0) | (self._older_ends >= k)
        is_asked = (self._older_requests >= 0) & (self._older_requests < k)
        state = np.where(is_asked, BlockState.PENDING_FREE, self._older.state).astype("u1")
        columns = {**dict(self._older.columns()), "state": state}
        older, fresh = Used(**columns).rows(is_left), self._fresh_at(k)
        in_use = Used.joined(older, fresh)
        n_past = int(np.searchsorted(self._segment_events, k))
        nearest = bisect_right(self._moves_since, n_past) - 1
        between = np.arange(self._moves_since[nearest], n_past)
        moves = np.concatenate([self._moves[nearest], between])
        segments = segments_after(self._segments, self._segment_trace.rows(moves))
        return Snapshot(
            event=k,
            time_ns=int(self._trace.time_ns[k - 1]) if k else 0,
            segments=segments,
            blocks=blocks_of(segments, in_use),
        )

    def _fresh_at(self, k: int) -> Used:
        """Blocks that the trace allocated and that are not free yet at *k*."""
        rows = self._alive(self._checkpoints[k // self._distance], k // self._distance * self._distance, k)
        alloc, request = self._lives.alloc[rows], self._lives.request[rows]
        is_asked = (request >= 0) & (request < k)
        return Used(
            address=self._lives.address[rows],
            size=self._trace.block_size[alloc],
            requested_size=self._lives.requested_size[rows],
            state=np.where(is_asked, BlockState.PENDING_FREE, BlockState.ALLOCATED).astype("u1"),
            stack_id=self._trace.stack_id[alloc],
        )

    def _alive(self, before: NDArray[np.int32], then: int, k: int) -> NDArray[np.int32]:
        """The lives at instant *k*, given those at the earlier instant *then*."""
        first, last = np.searchsorted(self._lives.alloc, (then, k))
        rows = np.concatenate([before, np.arange(first, last, dtype="i4")])
        end = self._lives.end[rows]
        return rows[(end < 0) | (end >= k)]

    def _relevant_moves(self, least_moves: int) -> tuple[list[NDArray[np.int64]], list[int]]:
        """The segment events that are still relevant after each of several positions; the distance between
        two positions is about the number of relevant events.
        """
        found, since = [np.zeros(0, dtype="i8")], [0]
        n_moves = len(self._segment_trace)
        while (end := since[-1] + max(least_moves, len(found[-1]))) < n_moves:
            rows = np.concatenate([found[-1], np.arange(since[-1], end)])
            found.append(relevant_segment_events(self._segment_trace, rows, self._segments))
            since.append(end)
        return found, since

    def _made(self) -> list[NDArray[np.int32]]:
        found = [np.zeros(0, dtype="i4")]
        for then in range(0, len(self._trace) - self._distance + 1, self._distance):
            found.append(self._alive(found[-1], then, then + self._distance))
        return found


def _most_at_once(known: BlockLives, n_events: int) -> int:
    """The largest number of blocks alive at one instant."""
    ends = known.end[known.end >= 0]
    change = np.bincount(known.alloc, minlength=n_events + 1) - np.bincount(ends, minlength=n_events + 1)
    return int(np.cumsum(change).max(initial=0))


DISTANCE = 1 << 17
"""Events between two checkpoints: replaying this many takes a twentieth of a second."""

_FEWEST = 8
"""Least number of checkpoints: a shorter trace is replayed from its start in a tenth of a second."""


def checkpoints(recording: Recording, *, distance: int = DISTANCE) -> tuple[Snapshot, ...]:
    """States at every *distance*-th instant of a long trace but the first. 0.1 s per million events."""
    n_events = len(recording.trace)
    if n_events < _FEWEST * distance:
        return ()
    index = StateIndex(recording.trace, recording.initial)
    return tuple(index.at(k) for k in range(distance, n_events, distance))


def state_from_nearest(recording: Recording, k: int) -> Snapshot:
    """Segments and blocks at instant *k*; reads no event before the nearest checkpoint."""
    known = (recording.initial, *recording.checkpoints)
    start = max((state for state in known if state.event <= k), key=lambda state: state.event)
    if start.event == k:
        return start
    between = recording.trace.rows(slice(start.event, k))
    found = state_at(between, start, k - start.event, Settings())
    return Snapshot(event=k, time_ns=found.time_ns, segments=found.segments, blocks=found.blocks)
