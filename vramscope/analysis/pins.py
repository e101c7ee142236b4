"""Lists the blocks that keep mostly free segments from returning to the driver."""

from dataclasses import dataclass

import numpy as np

from vramscope.allocator.levels import unmappable_bytes
from vramscope.allocator.lives import rows_among
from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis import asking
from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.lines import code_lines
from vramscope.analysis.recorded_settings import recorded_settings
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.timeline import instant_of
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array, Int32, Int64, Table, UInt8, UInt64, sums_of
from vramscope.model.trace import Action, Trace
from vramscope.steps.innermost import phases_at


@dataclass(frozen=True, slots=True)
class Pins(Table):
    """One row per block that keeps a segment which is more than half free; the most kept bytes first.

    Several such blocks of one segment are consecutive rows, the largest first; all must be freed to release
    it.
    """

    segment: UInt64
    """The segment's address."""
    segment_size: Int64
    kept_bytes: Int64
    """Free bytes of the segment, which the driver cannot get back while a block of the segment is in use.

    Whole units of an expandable segment return although other blocks of it are in use, and do not count.
    """
    n_blocks: Int64
    """The number of blocks in use in the segment."""
    address: UInt64
    """The block's address."""
    block_size: Int64
    requested_bytes: Int64
    state: UInt8
    """A ``BlockState``: a pending block waits for another stream."""
    stack_id: Int32
    alloc_event: Int64
    """The event that allocated the block; −1 if it predates the trace."""
    age_events: Int64
    """Events since the allocation; since the first event if the block predates the trace."""
    age_ns: Int64
    """Nanoseconds since the allocation; 0 without a clock."""
    step: Int64
    """The step of the allocation; −1 outside of steps and where it is unknown."""
    phase: UInt8
    """The ``Phase`` of the allocation; OTHER outside of phases and where it is unknown."""
    instant: int = 0

    @property
    def total_bytes(self) -> int:
        """Free bytes of all pinned segments together."""
        return int(self.kept_bytes[np.unique(self.segment, return_index=True)[1]].sum())


def pins(recording: Recording, instant: int | None = None) -> Pins:
    """Blocks that keep mostly free segments at one instant. Takes 0.1 s per million events.

    Parameters
    ----------
    instant
        Number of events before the moment; None means the peak of allocated bytes.
    """
    at = instant_of(recording, instant)
    return pins_of(recording, state_from_nearest(recording, at))


def pins_of(recording: Recording, state: Snapshot, known: Allocations | None = None) -> Pins:
    """The same rows for one allocator state that is known already.

    *state* has the segments and blocks. Without *known*, the allocations, all events before the instant are
    searched for those of the blocks: 70 ms of 80 at the end of five million.
    """
    segments, blocks = state.segments, state.blocks
    n_blocks = np.bincount(blocks.segment[blocks.in_use], minlength=len(segments))
    left = blocks.size - unmappable_bytes(state, recorded_settings(recording, state))
    kept = sums_of(blocks.segment[~blocks.in_use], left[~blocks.in_use], len(segments))
    is_pinned = (n_blocks > 0) & (2 * kept > segments.size)
    found = blocks.rows(blocks.in_use & is_pinned[blocks.segment])
    found = found.rows(np.lexsort((-found.size, found.segment, -kept[found.segment])))
    owner, at = found.segment, state.event
    if known is None:
        born = last_allocated(recording.trace, found.address, at)
    else:
        born = _allocated_as(known, found.address, at)
    return Pins(
        segment=segments.address[owner],
        segment_size=segments.size[owner],
        kept_bytes=kept[owner],
        n_blocks=n_blocks[owner].astype("i8"),
        address=found.address,
        block_size=found.size,
        requested_bytes=found.requested_size,
        state=found.state,
        stack_id=found.stack_id,
        instant=at,
        **_origin(recording, born, at),
    )


@dataclass(frozen=True, slots=True)
class PinningLine:
    """A line of the program whose blocks keep mostly free segments."""

    stack_id: int
    """The stack of its block in the segment with the most free bytes."""
    n_blocks: int
    block_bytes: int
    """Bytes of these blocks together."""
    n_segments: int
    kept_bytes: int
    """Free bytes of the segments that hold one of them; blocks of other lines may be there too."""


def pinning_lines(stacks: Stacks, found: Pins) -> tuple[PinningLine, ...]:
    """Sum up pinning blocks by the line that allocated them, the most kept bytes first."""
    line = code_lines(stacks).of_stack[found.stack_id]
    summed = []
    for which in np.unique(line).tolist():
        rows = np.flatnonzero(line == which)
        _, first = np.unique(found.segment[rows], return_index=True)
        summed.append(
            PinningLine(
                stack_id=int(found.stack_id[rows[0]]),
                n_blocks=len(rows),
                block_bytes=int(found.block_size[rows].sum()),
                n_segments=len(first),
                kept_bytes=int(found.kept_bytes[rows[first]].sum()),
            )
        )
    return tuple(sorted(summed, key=lambda each: -each.kept_bytes))


def last_allocated(trace: Trace, address: Array, instant: int) -> Array:
    """The last ALLOC at each address before the instant; −1 for none."""
    past = slice(0, instant)
    is_there = (trace.action[past] == Action.ALLOC) & (trace.block_size[past] > 0)
    events = np.flatnonzero(is_there & np.isin(trace.address[past], address))[::-1]
    known, first = np.unique(trace.address[events], return_index=True)
    return np.append(events[first], -1)[rows_among(address, known)]


def _allocated_as(known: Allocations, address: Array, instant: int) -> Array:
    """The same from the allocations that are known."""
    rows = known.rows_active_at(instant)
    rows = rows[np.argsort(known.address[rows], kind="stable")]
    return np.append(known.alloc_event[rows], -1)[rows_among(address, known.address[rows])]


def _origin(recording: Recording, event: Array, instant: int) -> dict[str, Array]:
    """The time, step and phase of these allocations."""
    trace, phases = recording.trace, recording.phases
    is_known = event >= 0
    since = np.maximum(event, 0)
    born_ns = trace.time_ns[since] if len(trace) else np.zeros(len(event), "i8")
    now_ns = int(trace.time_ns[instant - 1]) if instant else 0
    row = phases_at(phases, since) if len(trace) else np.full(len(event), -1)
    phase = np.append(phases.phase, np.uint8(Phase.OTHER))[row]
    return {
        "alloc_event": event,
        "age_events": instant - since,
        "age_ns": np.maximum(now_ns - born_ns, 0),
        "step": np.where(is_known, steps_of(recording.steps, since), -1).astype("i8"),
        "phase": np.where(is_known, phase, Phase.OTHER).astype("u1"),
    }


ANALYSIS = asking("Which blocks keep mostly free segments from going back to the driver?", pins)
