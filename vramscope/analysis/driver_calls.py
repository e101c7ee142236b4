"""Lists the calls of the driver: what each brought or took, for which request, and why it was needed."""

from dataclasses import dataclass

import numpy as np

from vramscope.allocator.settings import SMALL_LIMIT, SMALL_SEGMENT
from vramscope.analysis import asking
from vramscope.analysis.churn import GAINS, retry_events
from vramscope.analysis.folding import Folded, fold
from vramscope.analysis.lines import NO_STACK, place_words
from vramscope.analysis.pins import PinningLine, pinning_lines, pins_of
from vramscope.analysis.step_and_phase import steps_of
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.stacks import Stacks
from vramscope.model.table import Bool, Int32, Int64, Table, UInt8
from vramscope.model.trace import Action
from vramscope.units import format_bytes, format_count


@dataclass(frozen=True, slots=True)
class DriverCalls(Table):
    """One row per call, or per run of like calls from one place with nothing between them; oldest first."""

    event: Int64
    """The first event; as an instant it is the state that the call met."""
    n_calls: Int64
    kind: UInt8
    """An ``Action``: SEGMENT_ALLOC or SEGMENT_MAP, which reserve, SEGMENT_FREE or SEGMENT_UNMAP."""
    n_bytes: Int64
    """Bytes that were reserved or given back."""
    requested_bytes: Int64
    """Bytes of the request that they were reserved for; −1 where none follows, and for frees."""
    stack_id: Int32
    step: Int64
    """Row of ``Recording.steps``; −1 outside of every step."""
    is_retry: Bool
    """Whether the whole cache was given back because a request did not fit."""

    @property
    def gains(self) -> "DriverCalls":
        """The calls that reserved memory."""
        return self.rows(np.isin(self.kind, GAINS))


@dataclass(frozen=True, slots=True)
class ReservedBy(Table):
    """One row per line of the program whose requests had memory reserved, the most bytes first."""

    stack_id: Int32
    """A stack of the line; the largest call's."""
    n_bytes: Int64
    n_calls: Int64
    largest_bytes: Int64
    first_event: Int64
    last_event: Int64


@dataclass(frozen=True, slots=True)
class Jump:
    """Why memory was reserved at one call: what of the reserved memory was free, and what keeps it."""

    calls: DriverCalls
    """The one call."""
    free_bytes: int
    """Free bytes of the pool, stream and class of size that serve such a request."""
    n_free: int
    largest_bytes: int
    """Bytes of the largest free block among them."""
    pinned_by: PinningLine | None
    """The line whose blocks keep most free bytes of mostly free segments among them; None where none is."""


def driver_calls(recording: Recording) -> DriverCalls:
    """Every call that reserved memory or gave it back; 10 ms per million events."""
    trace = recording.trace
    events = np.flatnonzero(trace.of_segments)
    action, stack = trace.action[events], trace.stack_id[events]
    step = steps_of(recording.steps, events)
    joins = (np.diff(events) == 1) & (np.diff(action) == 0) & (np.diff(stack) == 0) & (np.diff(step) == 0)
    # Each cudaMalloc serves a request of its own; only mapped ranges and frees come in runs.
    joins &= action[1:] != Action.SEGMENT_ALLOC
    first = np.flatnonzero(np.append(True, ~joins)[: len(events)])
    n_calls = np.diff(np.append(first, len(events)))
    after = np.minimum(events[first] + n_calls, max(len(trace) - 1, 0))
    is_gain = np.isin(action[first], GAINS)
    is_for = is_gain & np.isin(trace.action[after], (Action.ALLOC, Action.OOM)) if len(first) else is_gain
    return DriverCalls.of(
        event=events[first],
        n_calls=n_calls,
        kind=action[first],
        n_bytes=np.add.reduceat(trace.size[events], first) if len(first) else [],
        requested_bytes=np.where(is_for, trace.size[after], -1) if len(first) else [],
        stack_id=stack[first],
        step=step[first],
        is_retry=np.isin(events[first] + n_calls - 1, retry_events(recording)),
    )


def reserved_by(stacks: Stacks, calls: DriverCalls) -> ReservedBy:
    """Sum up what was reserved by the line of the program whose request it was for."""
    gains = calls.gains
    line = fold(stacks).line_of_stack[gains.stack_id]
    order = np.lexsort((-gains.n_bytes, line))
    gains, line = gains.rows(order), line[order]
    first = np.flatnonzero(np.append(True, line[1:] != line[:-1])[: len(line)])
    if not len(first):
        return ReservedBy.of()
    summed = ReservedBy.of(
        stack_id=gains.stack_id[first],
        n_bytes=np.add.reduceat(gains.n_bytes, first),
        n_calls=np.add.reduceat(gains.n_calls, first),
        largest_bytes=gains.n_bytes[first],
        first_event=np.minimum.reduceat(gains.event, first),
        last_event=np.maximum.reduceat(gains.event, first),
    )
    return summed.rows(np.argsort(-summed.n_bytes, kind="stable"))


def largest_jump(calls: DriverCalls, until: int | None = None) -> int:
    """The row of the call to explain; −1 where there is none.

    With *until* the last call that reserved memory before or at that instant. Without, the largest one after
    the first step that made any: what the first step reserves, any training must.
    """
    gains = np.flatnonzero(np.isin(calls.kind, GAINS))
    if until is not None:
        return int(gains[calls.event[gains] <= until].max(initial=-1))
    later = gains[calls.step[gains] > calls.step[gains].min(initial=0, where=calls.step[gains] >= 0)]
    chosen = later if len(later) else gains
    return int(chosen[calls.n_bytes[chosen].argmax()]) if len(chosen) else -1


def jump_at(recording: Recording, calls: DriverCalls, row: int, state: Snapshot) -> Jump:
    """Explain one call that reserved memory; *state* has the segments and blocks that it met."""
    call, trace = calls.rows(slice(row, row + 1)), recording.trace
    event, asked = int(call.event[0]), int(call.requested_bytes[0])
    is_large = asked > SMALL_LIMIT if asked >= 0 else int(trace.size[event]) > SMALL_SEGMENT
    segments = state.segments
    kind = (segments.pool == trace.pool[event]) & (segments.stream == trace.stream[event])
    kind &= segments.is_large == is_large
    free = state.blocks.size[(state.blocks.state == BlockState.INACTIVE) & kind[state.blocks.segment]]
    pinned = pins_of(recording, state)
    pinned = pinned.rows(np.isin(pinned.segment, segments.address[kind]))
    by_line = pinning_lines(recording.stacks, pinned)
    return Jump(
        calls=call,
        free_bytes=int(free.sum()),
        n_free=len(free),
        largest_bytes=int(free.max(initial=0)),
        pinned_by=by_line[0] if by_line else None,
    )


def jump_words(code: Folded, found: Jump) -> str:
    """Say in a sentence what was reserved, for which request, and why nothing free served it."""
    call = found.calls
    asked, n_bytes = int(call.requested_bytes[0]), format_bytes(int(call.n_bytes[0]))
    verb = "cudaMalloc reserved" if call.kind[0] == Action.SEGMENT_ALLOC else "A segment grew by"
    request = f" for {format_bytes(asked)} requested" if asked >= 0 else ""
    by = caller_words(code, int(call.stack_id[0]))
    begins = f"{verb} {n_bytes}{request} " + (f"({by})" if by == NO_STACK else f"by {by}")
    if not found.free_bytes:
        return f"{begins}: nothing of the reserved memory that could serve it was free."
    pieces = format_count(found.n_free, "piece")
    free, largest = format_bytes(found.free_bytes), format_bytes(found.largest_bytes)
    free = f"{free} was free" + (
        f" in {pieces}, the largest {largest}" if found.n_free > 1 else " in one piece"
    )
    if 0 <= asked <= found.free_bytes and found.largest_bytes < asked:
        free = f"{free}: enough together, but no piece was large enough"
    return f"{begins}; {free}{_kept(code, found.pinned_by)}."


def _kept(code: Folded, by: PinningLine | None) -> str:
    if by is None:
        return ""
    blocks = format_count(by.n_blocks, "block")
    verb = "keeps" if by.n_blocks == 1 else "keep"
    return f"; {blocks} of {caller_words(code, by.stack_id)} {verb} {format_bytes(by.kept_bytes)} of it"


def caller_words(code: Folded, stack_id: int) -> str:
    """Name the function and the line of a stack as ``forward (net/model.py:13)``."""
    frame = code.frame(stack_id)
    if frame is not None:
        return f"{frame.function} ({place_words(frame.file, frame.line)})"
    return code.strings[int(code.via[stack_id])] or NO_STACK


ANALYSIS = asking("Which driver calls reserved memory or gave it back, for which line?", driver_calls)
