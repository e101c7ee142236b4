"""How does an allocator begin in the middle of a program? With the segments and blocks of a state.

What a state does not tell is taken from the addresses: a lower segment is an older one, and the address space
of an expandable segment begins where its first mapped memory does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vramscope.allocator.simulation.blocks import Bin, Block, Segment
from vramscope.model.snapshot import BlockState, Snapshot

_OTHER_STREAM = frozenset({-1})
"""Which stream a pending block waits for is not told."""
_ENDLESS = 1 << 64

_Row = tuple[int, int, int, int, int]
"""Of a block: address, size, requested size, state, stack."""


@dataclass(frozen=True, slots=True)
class Makers:
    """What the allocator that begins lends."""

    bin_of: Callable[[int, bool, int], Bin]
    """Of pool, size class and stream."""
    next_serial: Callable[[], int]
    space: Callable[[Bin], int]
    """Bytes of address space that an expandable segment reserves."""


def heads(state: Snapshot, makers: Makers) -> Iterator[Block]:
    """The first block of every segment, linked to those behind it."""
    held, rows = state.segments, _rows_by_segment(state)
    starts = [*held.address.tolist(), _ENDLESS]
    runs: dict[Bin, list[int]] = {}
    for at in range(len(held)):
        bin_ = makers.bin_of(int(held.pool[at]), bool(held.is_large[at]), int(held.stream[at]))
        if held.is_expandable[at]:
            runs.setdefault(bin_, []).append(at)
            continue
        size, stack_id = int(held.size[at]), int(held.stack_id[at])
        segment = Segment(starts[at], size, makers.next_serial(), stack_id, is_expandable=False)
        yield _linked([_block(row, bin_, segment) for row in rows[at]])
    for bin_, mine in runs.items():
        room = starts[mine[-1] + 1] - starts[mine[0]]
        stack_id = int(held.stack_id[mine[0]])
        size = min(makers.space(bin_), room)
        segment = Segment(starts[mine[0]], size, makers.next_serial(), stack_id, is_expandable=True)
        yield _linked(_space([row for at in mine for row in rows[at]], bin_, segment))


def _rows_by_segment(state: Snapshot) -> list[list[_Row]]:
    """In the order of their addresses."""
    found: list[list[_Row]] = [[] for _ in range(len(state.segments))]
    blocks = state.blocks.rows(np.argsort(state.blocks.address, kind="stable"))
    columns = (blocks.address, blocks.size, blocks.requested_size, blocks.state, blocks.stack_id)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for segment, row in zip(blocks.segment.tolist(), rows, strict=True):
        found[segment].append(row)
    return found


def _space(rows: Sequence[_Row], bin_: Bin, segment: Segment) -> list[Block]:
    """Its mapped blocks, and the address space between and behind them."""
    found = []
    end = segment.address
    for row in (*rows, (segment.address + segment.size, 0, 0, 0, 0)):
        if row[0] > end:
            gap = Block(end, row[0] - end, bin_, segment, segment.tie)
            gap.is_mapped = False
            found.append(gap)
        if row[1]:
            found.append(_block(row, bin_, segment))
        end = row[0] + row[1]
    return found


def _block(row: _Row, bin_: Bin, segment: Segment) -> Block:
    address, size, requested_size, state, stack_id = row
    block = Block(address, size, bin_, segment, segment.tie)
    if state != BlockState.INACTIVE:
        block.is_used, block.is_pending = True, state == BlockState.PENDING_FREE
        block.requested_size, block.stack_id = requested_size, stack_id
        block.users = _OTHER_STREAM if block.is_pending else block.users
    return block


def _linked(blocks: Sequence[Block]) -> Block:
    for before, after in pairwise(blocks):
        before.next, after.prev = after, before
    return blocks[0]
