"""Follows a recording in pieces: levels, peaks, what was live at them, and the first failed allocation.

Each piece costs in proportion to its own events and the live blocks, however long the recording already is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from vramscope.allocator.levels import levels, levels_of_state
from vramscope.analysis.lifetimes import ALIVE, Allocations, lifetimes
from vramscope.model.codes import QUANTITIES
from vramscope.model.past import StretchPeaks, most_of
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.table import Array, Bool, Int32, Int64, Table, UInt64
from vramscope.model.trace import Action, Trace


@dataclass(frozen=True, slots=True)
class LiveBlocks(Table):
    """One row per block that the allocator has handed out and that is not free again."""

    address: UInt64
    size: Int64
    """Bytes that the program requested."""
    block_size: Int64
    """Bytes of the block."""
    stack_id: Int32
    born: Int64
    """The ALLOC event, counted from the first event ever; −1 for a block that predates the recording."""
    is_pending: Bool
    """Whether the program freed the block, which waits for another stream."""


class Highest(NamedTuple):
    """The maximum of one quantity, and where it was first reached."""

    n_bytes: int = 0
    instant: int = 0
    time_ns: int = 0


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """The first allocation that failed, and what was allocated at that moment."""

    event: int
    time_ns: int
    requested_bytes: int
    reserved_bytes: int
    live: LiveBlocks


@dataclass(frozen=True, slots=True)
class Course:
    """The state of one device after ``n_events`` events, and the extremes until then."""

    n_events: int = 0
    level: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(QUANTITIES, 0))
    """Bytes now, by quantity."""
    live: LiveBlocks = field(default_factory=LiveBlocks.of)
    waiting: Blocks = field(default_factory=Blocks.of)
    """The blocks whose last event is the request of a free, those whose allocation is missing too."""
    highest: Mapping[str, Highest] = field(default_factory=lambda: dict.fromkeys(QUANTITIES, Highest()))
    at_peak: LiveBlocks = field(default_factory=LiveBlocks.of)
    """The blocks that were allocated at the peak of allocated bytes."""
    stretches: StretchPeaks = field(default_factory=StretchPeaks.of)
    """The maximum of each quantity between the cuts."""
    n_failed: int = 0
    """The number of allocations that failed."""
    failed: FailedAllocation | None = None


def begin(initial: Snapshot, first_event: int = 0) -> Course:
    """The course before the first event that is known.

    The size cap removed *first_event* events before it. Its peaks are the levels of *initial*.
    """
    held = initial.blocks.rows(initial.blocks.in_use)
    live = LiveBlocks.of(
        address=held.address,
        size=held.requested_size,
        block_size=held.size,
        stack_id=held.stack_id,
        born=np.full(len(held), -1),
        is_pending=held.state == BlockState.PENDING_FREE,
    )
    level = dict(zip(QUANTITIES, levels_of_state(initial), strict=False))
    return Course(
        n_events=first_event,
        level=level,
        live=live,
        waiting=held.rows(held.state == BlockState.PENDING_FREE),
        highest={name: Highest(n_bytes, first_event, initial.time_ns) for name, n_bytes in level.items()},
        at_peak=live.rows(~live.is_pending),
    )


class Piece(NamedTuple):
    """The next events of a course, with the bytes at each of their instants and the lives of blocks."""

    trace: Trace
    level: Mapping[str, Array]
    """Bytes by quantity, the first of them before the events."""
    blocks: Allocations
    """First the live blocks of the course, in their order, then those that the events allocated."""


def next_piece(course: Course, trace: Trace) -> Piece:
    """What the next events of *course* do, in the piece's own instants."""
    # The last event is applied with its piece, so a piece's stretches begin at its first instant.
    changes = levels(trace, Snapshot(blocks=course.waiting))
    # Where events are missing, the live blocks are not the sum of the events before: the level is.
    level = {
        name: values + (course.level[name] - values[0])
        for name, values in zip(QUANTITIES, changes, strict=True)
    }
    return Piece(trace, level, lifetimes(Recording(trace=trace, initial=_state(course))))


def advanced(course: Course, trace: Trace, cuts: Array) -> Course:
    """The course after more events.

    It is the same as if all events had been given at once. *cuts* are instants of marks, counted from the
    first event ever, in any order. Those within the new events divide them: peaks are kept for each stretch
    between two cuts.
    """
    return after(course, next_piece(course, trace), cuts) if len(trace) else course


def after(course: Course, piece: Piece, cuts: Array) -> Course:
    """The course after a piece of at least one event; *cuts* as in ``advanced``."""
    trace, level, blocks = piece
    # The ALLOC event of each row; ``lifetimes`` has the blocks of the state first, in its order.
    born = blocks.alloc_event + course.n_events
    born[: len(course.live)] = course.live.born
    highest = {name: _higher(course, name, values, trace) for name, values in level.items()}
    is_higher = highest["allocated"] != course.highest["allocated"]
    at = highest["allocated"].instant - course.n_events
    fails = np.flatnonzero(trace.action == Action.OOM)
    failed = course.failed
    if failed is None and len(fails):
        first = int(fails[0])
        failed = FailedAllocation(
            event=course.n_events + first,
            time_ns=int(trace.time_ns[first]),
            requested_bytes=int(trace.size[first]),
            reserved_bytes=int(level["reserved"][first]),
            live=_allocated(blocks, born, first),
        )
    held = np.flatnonzero(blocks.completed_event == ALIVE)
    return Course(
        n_events=course.n_events + len(trace),
        level={name: int(values[-1]) for name, values in level.items()},
        live=_rows(blocks, born, held, blocks.free_event[held] != ALIVE),
        waiting=_waiting(course.waiting, trace),
        highest=highest,
        at_peak=_allocated(blocks, born, at) if is_higher else course.at_peak,
        stretches=_stretches(course, level, np.asarray(cuts, "i8")),
        n_failed=course.n_failed + len(fails),
        failed=failed,
    )


def _state(course: Course) -> Snapshot:
    """The state as far as lifetimes need it: its blocks, in no segment of their own."""
    live = course.live
    blocks = Blocks.of(
        segment=np.zeros(len(live)),
        address=live.address,
        size=live.block_size,
        requested_size=live.size,
        state=np.where(live.is_pending, BlockState.PENDING_FREE, BlockState.ALLOCATED),
        stack_id=live.stack_id,
    )
    return Snapshot(segments=Segments.of(address=[0], size=[0]), blocks=blocks)


def _waiting(before: Blocks, trace: Trace) -> Blocks:
    """The blocks that wait for the completion of their free, by the last event of each address."""
    counts = trace.block_size > 0
    asks = (trace.action == Action.FREE_REQUESTED) & counts
    follows = (trace.action[1:] == Action.FREE_COMPLETED) & (trace.address[1:] == trace.address[:-1])
    # Nearly every request is directly followed by its completion.
    may_wait = np.append(before.address, trace.address[asks & ~np.append(follows, False)])
    if not len(may_wait):
        return before
    is_move = (trace.action <= Action.FREE_COMPLETED) & counts & np.isin(trace.address, may_wait)
    moves = np.flatnonzero(is_move)[::-1]
    address, last = np.unique(trace.address[moves], return_index=True)
    new = address[trace.action[moves[last]] == Action.FREE_REQUESTED]
    still = before.address[~np.isin(before.address, address)]
    waiting = np.concatenate([still, new])
    return Blocks.of(address=waiting, state=np.full(len(waiting), BlockState.PENDING_FREE))


def _allocated(blocks: Allocations, born: Array, instant: int) -> LiveBlocks:
    rows = np.flatnonzero(blocks.allocated_at(instant))
    return _rows(blocks, born, rows, np.zeros(len(rows), "?"))


def _rows(blocks: Allocations, born: Array, rows: Array, is_pending: Array) -> LiveBlocks:
    return LiveBlocks(
        address=blocks.address[rows],
        size=blocks.size[rows],
        block_size=blocks.block_size[rows],
        stack_id=blocks.stack_id[rows],
        born=born[rows],
        is_pending=is_pending,
    )


def _higher(course: Course, name: str, values: Array, trace: Trace) -> Highest:
    at, before = int(values.argmax()), course.highest[name]
    if values[at] <= before.n_bytes:
        return before
    return Highest(int(values[at]), course.n_events + at, int(trace.time_ns[at - 1]))


def _stretches(course: Course, level: Mapping[str, Array], cuts: Array) -> StretchPeaks:
    """All stretches until now; the last one so far goes on until the first new cut.

    An instant with several marks has a stretch of its own, as phases may begin and end there.
    """
    known, n_new = course.stretches, len(level["allocated"]) - 1
    at = cuts - course.n_events
    # A cut at the end of this piece belongs to it too: nothing shows whether more events follow.
    at = at[(at >= (1 if len(known) else 0)) & (at <= n_new)]
    distinct, count = np.unique(at, return_counts=True)
    begins = np.repeat(distinct, np.minimum(count, 2))
    start = np.append(0, begins)
    end = np.append(begins, n_new)
    most = {name: most_of(values, start, end + 1) for name, values in level.items()}
    if not len(known):
        return StretchPeaks(event=start + course.n_events, **most)
    joined = {}
    for name, values in most.items():
        before = getattr(known, name).copy()
        before[-1] = max(before[-1], values[0])
        joined[name] = np.concatenate([before, values[1:]])
    return StretchPeaks(event=np.append(known.event, start[1:] + course.n_events), **joined)
