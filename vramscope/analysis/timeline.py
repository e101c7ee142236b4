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

_STRETCH = 1 << 16
"""Events at a time: what is needed in between stays in the processor's cache."""


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
    trace = recording.trace
    action, block = trace.action, trace.block_size
    counts = block > 0
    is_alloc = (action == Action.ALLOC) & counts
    is_done = (action == Action.FREE_COMPLETED) & counts
    grows = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
    shrinks = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    is_free = (action == Action.FREE_REQUESTED) | unannounced(trace, recording.initial.blocks)
    start = _levels(recording.initial)
    return Totals(
        requested=running(start[0], trace.size, is_alloc, is_done),
        allocated=running(start[1], block, is_alloc, is_free),
        active=running(start[2], block, is_alloc, is_done),
        reserved=running(start[3], block, grows, shrinks),
        time_ns=_times(recording),
    )


def _levels(state: Snapshot) -> tuple[int, int, int, int]:
    blocks = state.blocks
    in_use = blocks.state == BlockState.ALLOCATED
    active = blocks.state != BlockState.INACTIVE
    return (
        int(blocks.requested_size[active].sum()),
        int(blocks.size[in_use].sum()),
        int(blocks.size[active].sum()),
        int(state.segments.size.sum()),
    )


def running(start: int, size: NDArray[Any], up: NDArray[Any], down: NDArray[Any]) -> NDArray[Any]:
    """*start*, and after each event: plus its size where *up*, minus it where *down*."""
    level = np.empty(len(size) + 1, dtype="i8")
    level[0] = start
    for first in range(0, len(size), _STRETCH):
        part = slice(first, first + _STRETCH)
        here = level[1:][part]
        np.cumsum(size[part] * (up[part].view("i1") - down[part].view("i1")), out=here)
        here += level[first]
    return level


def _times(recording: Recording) -> NDArray[Any]:
    events = recording.trace.time_ns
    began = recording.initial.time_ns
    first = int(events[0]) if len(events) else began
    return np.concatenate([[began if 0 < began < first else first], events]).astype("i8")


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
    is_request = (trace.action == Action.FREE_REQUESTED) & (trace.block_size > 0)
    is_late = (trace.action == Action.FREE_COMPLETED) & (trace.block_size > 0)
    is_late[1:] &= ~(is_request[:-1] & (trace.address[1:] == trace.address[:-1]))
    late: NDArray[Any] = np.flatnonzero(is_late)
    return late


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
