"""Bytes in use after every event, as sums of each event's change."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vramscope.allocator.lives import ends_of_frees, stable_order
from vramscope.allocator.settings import SMALL_SEGMENT, Settings
from vramscope.model.codes import QUANTITIES
from vramscope.model.snapshot import Blocks, BlockState, Snapshot
from vramscope.model.table import Array, stretches
from vramscope.model.trace import Action, Trace

_STRETCH = 1 << 13
"""Events per pass: intermediate arrays stay in the processor's cache and never need fresh memory."""
_MANY, _LONG_STRETCH = 1 << 20, 1 << 15
"""Events from which on two threads add up, and their events per pass: of 5 million events, 0.15 s instead of
0.26. In shorter passes they wait for Python's lock.
"""
_N_SLOTS = 1 << 12
_OF_TENSORS = "of tensors"
"""Requested bytes of the blocks that serve tensors."""
_REQUESTED = frozenset({"requested", _OF_TENSORS})
"""Levels that count the requested bytes of a block; the others count the whole block."""
_UNTIL_REQUEST = frozenset({"allocated", _OF_TENSORS})
"""Levels that count a block until its FREE_REQUESTED; the others until its FREE_COMPLETED."""


def levels(trace: Trace, initial: Snapshot, *, many: int = _MANY) -> tuple[Array, ...]:
    """Requested, allocated, active and reserved bytes at every instant of *trace*, in one pass over it.

    The events have ``block_size`` filled in. From *many* events on, two threads add up: NumPy computes
    without Python's lock.
    """
    found = {name: np.empty(len(trace) + 1, dtype="i8") for name in QUANTITIES}
    for level, start in zip(found.values(), levels_of_state(initial), strict=False):
        level[0] = start
    if len(trace) < many:
        _add_up(trace, initial, found, _STRETCH)
        return tuple(found.values())
    halves = [
        {name: found[name] for name in found if (name in _UNTIL_REQUEST) is each} for each in (False, True)
    ]
    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(lambda half: _add_up(trace, initial, half, _LONG_STRETCH), halves):
            pass
    return tuple(found.values())


def tensor_bytes(trace: Trace, initial: Snapshot) -> Array:
    """Requested bytes of the blocks that serve tensors, at every instant of *trace*."""
    found = np.empty(len(trace) + 1, dtype="i8")
    found[0] = levels_of_state(initial)[-1]
    _add_up(trace, initial, {_OF_TENSORS: found}, _STRETCH)
    return found


def _add_up(trace: Trace, initial: Snapshot, found: Mapping[str, Array], stretch: int) -> None:
    """Fill the levels *found*, by name, from their first instant on."""
    late = unannounced(trace, initial.blocks) if _UNTIL_REQUEST & found.keys() else None
    for part in stretches(len(trace), stretch):
        action, block = trace.action[part], trace.block_size[part]
        for name, level in found.items():
            if name == "reserved":
                begins = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
                ends = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
            elif late is not None and name in _UNTIL_REQUEST:
                begins, ends = action == Action.ALLOC, (action == Action.FREE_REQUESTED) | late[part]
            else:
                begins, ends = action == Action.ALLOC, action == Action.FREE_COMPLETED
            size = np.where(block > 0, trace.size[part], 0) if name in _REQUESTED else block
            change = size * (begins.view("i1") - ends.view("i1"))
            change[0] += level[part.start]
            np.cumsum(change, out=level[1:][part])


def most_allocated(trace: Trace, initial: Snapshot, *, stretch: int = _STRETCH) -> int:
    """The first instant with the most allocated bytes: as from ``levels``, in a third of the time."""
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
    is_allocated = blocks.state == BlockState.ALLOCATED
    return (
        int(blocks.requested_size[blocks.in_use].sum()),
        int(blocks.size[is_allocated].sum()),
        int(blocks.size[blocks.in_use].sum()),
        state.reserved_bytes,
        int(blocks.requested_size[is_allocated].sum()),
    )


def inactive_split_bytes(state: Snapshot) -> int:
    """Bytes in free pieces of segments that are in use elsewhere: external fragmentation."""
    blocks = state.blocks
    is_free = blocks.state == BlockState.INACTIVE
    busy = np.zeros(len(state.segments), dtype="?")
    busy[blocks.segment[~is_free]] = True
    return int(blocks.size[is_free & busy[blocks.segment]].sum())


def unmappable_bytes(state: Snapshot, settings: Settings) -> Array:
    """Bytes of each block that ``empty_cache()`` or a shortage returns although the segment is in use.

    These are the whole units that a free block of an expandable segment covers; 0 for all other blocks.
    """
    blocks, segments = state.blocks, state.segments
    owner = blocks.segment
    unit = np.where(segments.is_large, settings.large_segment_size, SMALL_SEGMENT)[owner]
    start = blocks.address.astype("i8") - segments.address.astype("i8")[owner]
    whole = (start + blocks.size) // unit * unit - -(-start // unit) * unit
    is_free = (blocks.state == BlockState.INACTIVE) & segments.is_expandable[owner]
    return np.where(is_free, np.maximum(whole, 0), 0)


def unannounced(trace: Trace, initial: Blocks, *, stretch: int = _STRETCH) -> Array:
    """Mask of FREE_COMPLETED events without a FREE_REQUESTED of their block: these free the memory
    themselves.

    torch's ``skip_actions`` can leave the requests out; a request can also precede the first event.
    """
    found = np.zeros(len(trace), dtype="?")
    late = _without_request_before(trace)
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


def _without_request_before(trace: Trace) -> Array:
    """FREE_COMPLETED events that do not directly follow their FREE_REQUESTED, as nearly all do."""
    counts = trace.block_size > 0
    ends = ends_of_frees(trace)
    ends[1:] &= counts[:-1]
    return np.flatnonzero((trace.action == Action.FREE_COMPLETED) & counts & ~ends)


def _moves_at(trace: Trace, few: Array, stretch: int) -> Array:
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


def _slot(address: Array) -> Array:
    """Some bits of an address: the offset in its segment, in units of 512, mixed with the segment."""
    mixed = (address >> np.uint64(9)) ^ (address >> np.uint64(21))
    return (mixed & np.uint64(_N_SLOTS - 1)).astype("i8")
