"""How much memory was in use at every instant?"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.lives import stable_order
from vramscope.analysis import Analysis
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Snapshot
from vramscope.model.table import Table
from vramscope.model.trace import Action, Trace

_STRETCH = 1 << 13
"""Events at a time: what is needed in between stays in the processor's cache, and is never fresh memory."""


@dataclass(frozen=True, slots=True)
class Totals(Table):
    """torch's four totals in bytes; row k is instant k, so there is one row more than events."""

    DTYPES: ClassVar = {
        "requested": "i8",
        "allocated": "i8",
        "active": "i8",
        "reserved": "i8",
        "time_ns": "i8",
    }

    requested: NDArray[Any]
    """What the program asked for, of the blocks in use or pending; as torch counts it."""
    allocated: NDArray[Any]
    """Blocks that serve tensors."""
    active: NDArray[Any]
    """Allocated, and freed but waiting for another stream."""
    reserved: NDArray[Any]
    """Segments held from the driver."""
    time_ns: NDArray[Any]
    """When the event before the instant happened; of instant 0, when recording began, as far as known."""


def timeline(recording: Recording) -> Totals:
    """Exact at every instant; 0.1 s per million events.

    Events whose ``block_size`` is 0 contradict the others and count for nothing (``allocator.replay``).
    """
    requested, allocated, active, reserved, _ = levels(recording)
    return Totals(requested, allocated, active, reserved, times(recording))


def levels(recording: Recording) -> tuple[NDArray[Any], ...]:
    """Bytes at every instant: requested, allocated, active, reserved as in ``Totals``; and requested of the
    blocks that serve tensors. One pass over the trace, a stretch at a time."""
    trace, start = recording.trace, _at_first(recording.initial)
    found = tuple(np.empty(len(trace) + 1, dtype="i8") for _ in start)
    late = unannounced(trace, recording.initial.blocks)
    for level, first_level in zip(found, start, strict=True):
        level[0] = first_level
    for first in range(0, len(trace), _STRETCH):
        part = slice(first, first + _STRETCH)
        action, block = trace.action[part], trace.block_size[part]
        size = np.where(block > 0, trace.size[part], 0)
        ends = action == Action.FREE_COMPLETED
        frees = (action == Action.FREE_REQUESTED) | late[part]
        whole = (action == Action.ALLOC).view("i1") - ends.view("i1")
        in_use = (action == Action.ALLOC).view("i1") - frees.view("i1")
        gains = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
        losses = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
        held = gains.view("i1") - losses.view("i1")
        changes = (size * whole, block * in_use, block * whole, block * held, size * in_use)
        for level, change in zip(found, changes, strict=True):
            here = level[1:][part]
            np.cumsum(change, out=here)
            here += level[first]
    return found


def _at_first(state: Snapshot) -> tuple[int, ...]:
    blocks = state.blocks
    in_use = blocks.state == BlockState.ALLOCATED
    active = blocks.state != BlockState.INACTIVE
    return (
        int(blocks.requested_size[active].sum()),
        int(blocks.size[in_use].sum()),
        int(blocks.size[active].sum()),
        int(state.segments.size.sum()),
        int(blocks.requested_size[in_use].sum()),
    )


def times(recording: Recording) -> NDArray[Any]:
    """Of every instant; see ``Totals.time_ns``."""
    events = recording.trace.time_ns
    began = recording.initial.time_ns
    first = int(events[0]) if len(events) else began
    found = np.empty(len(events) + 1, dtype="i8")
    found[0] = began if 0 < began < first else first
    found[1:] = events
    return found


def unannounced(trace: Trace, initial: Blocks) -> NDArray[Any]:
    """Where FREE_COMPLETED was not preceded by FREE_REQUESTED of its block: it then frees the memory itself.

    torch's ``skip_actions`` can leave the requests out; a request can also stand before the first event.
    """
    found = np.zeros(len(trace), dtype="?")
    late = _without_request_before(trace)
    if not len(late):
        return found
    moves = np.flatnonzero((trace.action <= Action.FREE_COMPLETED) & (trace.block_size > 0))
    moves = moves[_is_among(trace.address[moves], np.unique(trace.address[late]))]
    moves = moves[stable_order(trace.address[moves])]
    address, action = trace.address[moves], trace.action[moves]
    same = np.zeros(len(moves), dtype="?")
    same[1:] = address[1:] == address[:-1]
    before = np.zeros_like(action)
    before[1:] = action[:-1]
    pending = initial.address[initial.state == BlockState.PENDING_FREE]
    announced = np.where(same, before == Action.FREE_REQUESTED, np.isin(address, pending))
    found[moves] = (action == Action.FREE_COMPLETED) & ~announced
    return found


def _without_request_before(trace: Trace) -> NDArray[Any]:
    """FREE_COMPLETED that do not stand right behind their FREE_REQUESTED, as nearly all do."""
    found = []
    for first in range(0, len(trace), _STRETCH):
        part = slice(max(first - 1, 0), first + _STRETCH)
        action, address = trace.action[part], trace.address[part]
        counts = trace.block_size[part] > 0
        is_request = (action == Action.FREE_REQUESTED) & counts
        is_late = (action == Action.FREE_COMPLETED) & counts
        is_late[1:] &= ~(is_request[:-1] & (address[1:] == address[:-1]))
        is_late[: first - part.start] = False  # of the stretch before
        found.append(np.flatnonzero(is_late) + part.start)
    return np.concatenate(found) if found else np.zeros(0, dtype="i8")


def _is_among(values: NDArray[Any], few: NDArray[Any]) -> NDArray[Any]:
    """``isin`` for sorted *few*, without sorting the many."""
    among: NDArray[Any] = few[np.minimum(np.searchsorted(few, values), len(few) - 1)] == values
    return among


def instant_of(recording: Recording, instant: int | None) -> int:
    """*instant*, checked; the first at which most was allocated where None."""
    if instant is None:
        return int(timeline(recording).allocated.argmax())
    if not 0 <= instant <= len(recording.trace):
        raise UsageError(f"instant {instant}: this recording has instants 0 to {len(recording.trace)}")
    return instant


ANALYSIS = Analysis("timeline", "How much memory was in use at every instant?", timeline)
