"""Computes the bytes in use at every instant."""

from dataclasses import dataclass

import numpy as np

from vramscope.allocator.levels import levels, most_allocated
from vramscope.analysis import asking
from vramscope.analysis.shared_results import memoized
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.table import Array, Int64, Table


@dataclass(frozen=True, slots=True)
class Totals(Table):
    """torch's four totals in bytes; row k is instant k, so there is one row more than events."""

    requested_bytes: Int64
    """Bytes that the program requested, over blocks in use or pending, as torch counts them."""
    allocated_bytes: Int64
    """Bytes of blocks that serve tensors."""
    active_bytes: Int64
    """Bytes of allocated blocks and of freed blocks that wait for another stream."""
    reserved_bytes: Int64
    """Bytes of the segments held from the driver."""
    time_ns: Int64
    """Time of the event before the instant, in ns; for instant 0 the start of the recording, if known."""


@memoized
def timeline(recording: Recording) -> Totals:
    """torch's four totals, exact at every instant; 0.1 s per million events.

    Events whose ``block_size`` is 0 contradict the others and are not counted (``allocator.replay``).
    """
    return totals_of(recording, levels(recording.trace, recording.initial))


def totals_of(recording: Recording, known: tuple[Array, ...]) -> Totals:
    """The same of the *known* ``levels`` of *recording*."""
    requested, allocated, active, reserved = known
    return Totals(requested, allocated, active, reserved, times(recording))


def times(recording: Recording) -> Array:
    """The time of every instant; see ``Totals.time_ns``."""
    events = recording.trace.time_ns
    began = recording.initial.time_ns
    first = int(events[0]) if len(events) else began
    found = np.empty(len(events) + 1, dtype="i8")
    found[0] = began if 0 < began < first else first
    found[1:] = events
    return found


def instant_of(recording: Recording, instant: int | None) -> int:
    """*instant*, checked; the first instant with the most allocated bytes where None."""
    if instant is None:
        return most_allocated(recording.trace, recording.initial)
    if not 0 <= instant <= len(recording.trace):
        raise UsageError(f"instant {instant}: this recording has instants 0 to {len(recording.trace)}")
    return instant


def named_instant(recording: Recording, word: str) -> int:
    """Return the instant that a word means: ``peak``, ``end``, or the number of events before it."""
    if word == "end":
        return len(recording.trace)
    if word != "peak" and not word.isdecimal():
        raise UsageError(f"instant {word}: peak, end, or the number of events before it")
    return instant_of(recording, None if word == "peak" else int(word))


ANALYSIS = asking("How much memory was in use at every instant?", timeline)
