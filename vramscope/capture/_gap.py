"""What happened while nobody recorded? Events that lead from one state of the allocator to a later one."""

from typing import Any, NamedTuple

import numpy as np

from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.trace import Action, Trace


class _Held(NamedTuple):
    """A segment, or a block in use."""

    address: int
    size: int
    requested: int
    state: int
    stream: int
    pool: int


def bridge(before: Snapshot, after: Snapshot, time_ns: int) -> Trace:
    """Frees and segment frees, then segments and allocations: as few as explain the difference.

    A block freed and made again alike in between is not told apart from one that stayed.
    """
    old_segments, new_segments = _segments(before), _segments(after)
    old_blocks, new_blocks = _blocks(before), _blocks(after)
    rows: list[tuple[int, _Held, int]] = []
    for held in old_blocks.keys() - new_blocks.keys():
        if held.state == BlockState.ALLOCATED:
            rows.append((Action.FREE_REQUESTED, held, 0))
        rows.append((Action.FREE_COMPLETED, held, 0))
    rows += [(Action.SEGMENT_FREE, held, 0) for held in old_segments.keys() - new_segments.keys()]
    made = new_segments.keys() - old_segments.keys()
    rows += [(Action.SEGMENT_ALLOC, held, new_segments[held]) for held in made]
    for held in new_blocks.keys() - old_blocks.keys():
        rows.append((Action.ALLOC, held, new_blocks[held]))
        if held.state == BlockState.PENDING_FREE:
            rows.append((Action.FREE_REQUESTED, held, 0))
    rows.sort(key=_order)
    return _trace(rows, time_ns)


_ORDER = {
    Action.FREE_REQUESTED: 0,
    Action.FREE_COMPLETED: 1,
    Action.SEGMENT_FREE: 2,
    Action.SEGMENT_ALLOC: 3,
    Action.ALLOC: 4,
}


def _order(row: tuple[int, _Held, int]) -> tuple[int, int, int]:
    action, held, _ = row
    place = _ORDER[Action(action)]
    # What waits for its free again, and what is made to wait, keep their two rows in order.
    if action == Action.FREE_REQUESTED and held.state == BlockState.PENDING_FREE:
        place = 5
    return place, held.address, action


def _segments(state: Snapshot) -> dict[_Held, int]:
    segments = state.segments
    rows = zip(
        segments.address.tolist(),
        segments.size.tolist(),
        segments.stream.tolist(),
        segments.pool.tolist(),
        segments.stack_id.tolist(),
        strict=True,
    )
    return {_Held(address, size, size, 0, stream, pool): stack for address, size, stream, pool, stack in rows}


def _blocks(state: Snapshot) -> dict[_Held, int]:
    """Blocks in use, or not free yet."""
    blocks, segments = state.blocks, state.segments
    used = np.flatnonzero(blocks.state != BlockState.INACTIVE)
    owner = blocks.segment[used]
    columns: tuple[Any, ...] = (
        blocks.address[used],
        blocks.size[used],
        blocks.requested_size[used],
        blocks.state[used],
        segments.stream[owner],
        segments.pool[owner],
        blocks.stack_id[used],
    )
    return {_Held(*row[:6]): row[6] for row in zip(*(column.tolist() for column in columns), strict=True)}


def _trace(rows: list[tuple[int, _Held, int]], time_ns: int) -> Trace:
    return Trace.of(
        action=[action for action, _, _ in rows],
        time_ns=[time_ns] * len(rows),
        address=[held.address for _, held, _ in rows],
        size=[held.requested for _, held, _ in rows],
        block_size=[held.size for _, held, _ in rows],
        stream=[held.stream for _, held, _ in rows],
        pool=[held.pool for _, held, _ in rows],
        stack_id=[stack for _, _, stack in rows],
    )
