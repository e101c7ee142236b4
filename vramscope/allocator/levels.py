"""How many bytes were in use after every event? Sums of what each one changes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.lives import stable_order
from vramscope.model.snapshot import Blocks, BlockState, Snapshot
from vramscope.model.trace import Action, Trace

_STRETCH = 1 << 13
"""Events at a time: what is needed in between stays in the processor's cache, and is never fresh memory."""


def levels(trace: Trace, initial: Snapshot) -> tuple[NDArray[Any], ...]:
    """Bytes at every instant of *trace*, which begins in the state *initial*: requested, allocated, active,
    reserved; and requested of the blocks that serve tensors. One pass over it, a stretch at a time."""
    start = _at_first(initial)
    found = tuple(np.empty(len(trace) + 1, dtype="i8") for _ in start)
    late = unannounced(trace, initial.blocks)
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
