"""Builds the segments and blocks of an allocator that starts in the middle of a program.

Addresses replace what a state does not contain: a lower segment counts as older, and the address space of an
expandable segment begins where its first mapped memory does.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from vramscope.allocator.simulation.blocks import Bin, SimulatedBlock, SimulatedSegment
from vramscope.model.snapshot import BlockState, Snapshot

_OTHER_STREAM = frozenset({-1})
"""Stands for the unknown stream that a pending block waits for."""
_ENDLESS = 1 << 64

_Row = tuple[int, int, int, int, int]
"""A block: address, size, requested size, state, stack."""


def heads(
    state: Snapshot,
    bin_of: Callable[[int, bool, int], Bin],
    next_serial: Callable[[], int],
    space: Callable[[Bin], int],
) -> Iterator[SimulatedBlock]:
    """Yield the first block of every segment, linked to the blocks after it.

    *bin_of* returns the bin for a pool, size class and stream, *space* the bytes of address space that an
    expandable segment reserves.
    """
    held, rows = state.segments, _rows_by_segment(state)
    starts = [*held.address.tolist(), _ENDLESS]
    runs: dict[Bin, list[int]] = {}
    for at in range(len(held)):
        bin_ = bin_of(int(held.pool[at]), bool(held.is_large[at]), int(held.stream[at]))
        if held.is_expandable[at]:
            runs.setdefault(bin_, []).append(at)
            continue
        size, stack_id = int(held.size[at]), int(held.stack_id[at])
        segment = SimulatedSegment(starts[at], size, next_serial(), stack_id, is_expandable=False)
        yield _linked([_block(row, bin_, segment) for row in rows[at]])
    for bin_, mine in runs.items():
        room = starts[mine[-1] + 1] - starts[mine[0]]
        stack_id = int(held.stack_id[mine[0]])
        size = min(space(bin_), room)
        segment = SimulatedSegment(starts[mine[0]], size, next_serial(), stack_id, is_expandable=True)
        yield _linked(_space([row for at in mine for row in rows[at]], bin_, segment))


def _rows_by_segment(state: Snapshot) -> list[list[_Row]]:
    """The blocks of each segment, ordered by address."""
    found: list[list[_Row]] = [[] for _ in range(len(state.segments))]
    blocks = state.blocks.rows(np.argsort(state.blocks.address, kind="stable"))
    columns = (blocks.address, blocks.size, blocks.requested_size, blocks.state, blocks.stack_id)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for segment, row in zip(blocks.segment.tolist(), rows, strict=True):
        found[segment].append(row)
    return found


def _space(rows: Sequence[_Row], bin_: Bin, segment: SimulatedSegment) -> list[SimulatedBlock]:
    """The mapped blocks of a segment, and the address space between and after them."""
    found = []
    end = segment.address
    for row in (*rows, (segment.address + segment.size, 0, 0, 0, 0)):
        if row[0] > end:
            gap = SimulatedBlock(end, row[0] - end, bin_, segment, segment.tie)
            gap.is_mapped = False
            found.append(gap)
        if row[1]:
            found.append(_block(row, bin_, segment))
        end = row[0] + row[1]
    return found


def _block(row: _Row, bin_: Bin, segment: SimulatedSegment) -> SimulatedBlock:
    address, size, requested_size, state, stack_id = row
    block = SimulatedBlock(address, size, bin_, segment, segment.tie)
    if state != BlockState.INACTIVE:
        block.is_used, block.is_pending = True, state == BlockState.PENDING_FREE
        block.requested_size, block.stack_id = requested_size, stack_id
        block.users = _OTHER_STREAM if block.is_pending else block.users
    return block


def _linked(blocks: Sequence[SimulatedBlock]) -> SimulatedBlock:
    for before, after in pairwise(blocks):
        before.next, after.prev = after, before
    return blocks[0]
