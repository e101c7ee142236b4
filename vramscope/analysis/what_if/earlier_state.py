"""The memory from before a recording: a replay under the recorded settings begins in it.

Other settings would have led to another state, of which only the live blocks are known: under these, a replay
begins with the blocks alone.
"""

from dataclasses import dataclass

import numpy as np

from vramscope.allocator.simulation import CachingAllocator
from vramscope.analysis.lifetimes import Allocations
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.table import Array, sums_of


@dataclass(frozen=True, slots=True, eq=False)
class EarlierState:
    """The state before the first event, and the place of each block that the program still has."""

    state: Snapshot
    row: Array
    """Row in ``lifetimes`` of each block that is older than the recording, shape ``(n_blocks,)``."""
    address: Array
    """Address of the same blocks."""


def earlier_state(recording: Recording, found: Allocations) -> EarlierState | None:
    """Return the state in which *recording* begins; None if that is empty or contradicts itself."""
    state, older = recording.initial, np.flatnonzero(found.alloc_event < 0)
    if not len(state.segments):
        return None
    blocks = state.blocks
    n_bytes = sums_of(blocks.segment, blocks.size, len(state.segments))
    held = blocks.address[blocks.in_use]
    is_whole = bool((n_bytes == state.segments.size).all())
    is_same = len(held) == len(older) and np.array_equal(np.sort(held), np.sort(found.address[older]))
    return EarlierState(state, older, found.address[older]) if is_whole and is_same else None


def cached_bytes(state: Snapshot) -> int:
    """Return the bytes that were reserved and free in *state*."""
    return int(state.blocks.size[state.blocks.state == BlockState.INACTIVE].sum())


def begin(allocator: CachingAllocator, earlier: EarlierState, capacity_bytes: int | None) -> bool:
    """Begin in the earlier state; return whether a device of *capacity_bytes* holds it.

    What does not fit with the cache is begun without it, as on a device where it was released.
    """
    allocator.begin_in(earlier.state)
    if capacity_bytes is not None and allocator.reserved_bytes > capacity_bytes:
        allocator.empty_cache()
    return capacity_bytes is None or allocator.reserved_bytes <= capacity_bytes
