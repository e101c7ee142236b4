"""Bytes in use after every event, as sums of each event's change."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.lives import stable_order
from vramscope.model.snapshot import Blocks, BlockState, Snapshot
from vramscope.model.trace import Action, Trace

_STRETCH = 1 << 13
"""Events per pass: intermediate arrays stay in the processor's cache and never need fresh memory."""
_N_SLOTS = 1 << 12


def levels(trace: Trace, initial: Snapshot) -> tuple[NDArray[Any], ...]:
    """Bytes at every instant of *trace*, in one pass over it.

    Parameters
    ----------
    trace
        Events with ``block_size`` filled in.
    initial
        The state before the first event.

    Returns
    -------
    tuple of numpy.ndarray
        Five arrays of ``len(trace) + 1`` int64: requested, allocated, active and reserved bytes, and the
        requested bytes of the blocks that serve tensors.
    """
    start = levels_of_state(initial)
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


def most_allocated(trace: Trace, initial: Snapshot, *, stretch: int = _STRETCH) -> int:
    """The first instant with the most allocated bytes: the same as from ``levels``, in a third of the
    time.
    """
    level = most = levels_of_state(initial)[1]
    instant = 0
    late = unannounced(trace, initial.blocks, stretch=stretch)
    for first in range(0, len(trace), stretch):
        part = slice(first, first + stretch)
        action = trace.action[part]
        frees = (action == Action.FREE_REQUESTED) | late[part]
        in_use = (action == Action.ALLOC).view("i1") - frees.view("i1")
        here = np.cumsum(trace.block_size[part] * in_use)
        highest = int(here.argmax())
        if level + int(here[highest]) > most:
            most, instant = level + int(here[highest]), first + highest + 1
        level += int(here[-1])
    return instant


def levels_of_state(state: Snapshot) -> tuple[int, ...]:
    """Bytes of one state, in the order of ``levels``."""
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


def inactive_split_bytes(state: Snapshot) -> int:
    """Bytes in free pieces of segments that are in use elsewhere: external fragmentation."""
    blocks = state.blocks
    is_free = blocks.state == BlockState.INACTIVE
    busy = np.zeros(len(state.segments), dtype="?")
    busy[blocks.segment[~is_free]] = True
    return int(blocks.size[is_free & busy[blocks.segment]].sum())


def unannounced(trace: Trace, initial: Blocks, *, stretch: int = _STRETCH) -> NDArray[Any]:
    """Mask of FREE_COMPLETED events without a FREE_REQUESTED of their block: these free the memory
    themselves.

    torch's ``skip_actions`` can leave the requests out; a request can also precede the first event.
    """
    found = np.zeros(len(trace), dtype="?")
    late = _without_request_before(trace, stretch)
    if not len(late):
        return found
    moves = _moves_at(trace, np.unique(trace.address[late]), stretch)
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


def _without_request_before(trace: Trace, stretch: int) -> NDArray[Any]:
    """FREE_COMPLETED events that do not directly follow their FREE_REQUESTED, as nearly all do."""
    found = []
    for first in range(0, len(trace), stretch):
        part = slice(max(first - 1, 0), first + stretch)
        action, address = trace.action[part], trace.address[part]
        counts = trace.block_size[part] > 0
        is_request = (action == Action.FREE_REQUESTED) & counts
        is_late = (action == Action.FREE_COMPLETED) & counts
        is_late[1:] &= ~(is_request[:-1] & (address[1:] == address[:-1]))
        is_late[: first - part.start] = False  # belongs to the previous pass
        found.append(np.flatnonzero(is_late) + part.start)
    return np.concatenate(found) if found else np.zeros(0, dtype="i8")


def _moves_at(trace: Trace, few: NDArray[Any], stretch: int) -> NDArray[Any]:
    """The events of blocks at these addresses (sorted), in order."""
    # Some bits of most addresses show that they are none of the few: a look-up instead of a slow search.
    may_be = np.zeros(_N_SLOTS, dtype="?")
    may_be[_slot(few)] = True
    found = []
    for first in range(0, len(trace), stretch):
        part = slice(first, first + stretch)
        address = trace.address[part]
        rows = np.flatnonzero(may_be[_slot(address)])
        rows = rows[few[np.minimum(np.searchsorted(few, address[rows]), len(few) - 1)] == address[rows]]
        counts = (trace.action[part][rows] <= Action.FREE_COMPLETED) & (trace.block_size[part][rows] > 0)
        found.append(rows[counts] + first)
    return np.concatenate(found)


def _slot(address: NDArray[Any]) -> NDArray[Any]:
    """Some bits of an address: the offset in its segment (blocks begin at multiples of 512), mixed with the
    segment.
    """
    mixed = (address >> np.uint64(9)) ^ (address >> np.uint64(21))
    slot: NDArray[Any] = (mixed & np.uint64(_N_SLOTS - 1)).astype("i8")
    return slot
