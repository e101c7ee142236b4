"""What happened while nobody saw it? Events that lead from one state of the allocator to a later one."""

from collections.abc import Mapping
from typing import NamedTuple

from vramscope.allocator.ledger import Block, Ledger, Segment, runs
from vramscope.model.trace import Action, Trace


class _Row(NamedTuple):
    action: int
    address: int
    size: int
    block_size: int
    stream: int
    pool: int
    stack: int


def bridge(before: Ledger, after: Ledger, time_ns: int) -> Trace:
    """Frees and segment frees, then segments and allocations: as few as explain the difference.

    A block freed and made again alike in between is not told apart from one that stayed.
    """
    lost_segments = _without(before.segments, after.segments)
    new_segments = _without(after.segments, before.segments)
    kept = _kept(before, after, (lost_segments, new_segments))
    gone = {address: block for address, block in before.blocks.items() if address not in kept}
    born = {address: block for address, block in after.blocks.items() if address not in kept}
    waits = [
        address for address in kept if after.blocks[address].is_pending > before.blocks[address].is_pending
    ]
    rows = [row for address in sorted(gone) for row in _freed(address, gone[address])]
    rows += [_moved(Action.SEGMENT_FREE, *item) for item in sorted(lost_segments.items())]
    rows += [_moved(Action.SEGMENT_UNMAP, *item) for item in runs(_without(before.pages, after.pages))]
    rows += [_moved(Action.SEGMENT_ALLOC, *item) for item in sorted(new_segments.items())]
    rows += [_moved(Action.SEGMENT_MAP, *item) for item in runs(_without(after.pages, before.pages))]
    rows += [_row(Action.ALLOC, address, born[address]) for address in sorted(born)]
    waits += [address for address, block in born.items() if block.is_pending]
    rows += [_row(Action.FREE_REQUESTED, address, after.blocks[address]) for address in sorted(waits)]
    return _trace(rows, time_ns)


def _without(one: Mapping[int, Segment], other: Mapping[int, Segment]) -> dict[int, Segment]:
    """Those of *one* that *other* has not; who made them is no part of what they are."""
    return {
        address: segment
        for address, segment in one.items()
        if address not in other or other[address][:3] != segment[:3]
    }


def _kept(before: Ledger, after: Ledger, changed: tuple[dict[int, Segment], dict[int, Segment]]) -> set[int]:
    """Addresses of the blocks that may have stayed."""
    same = {
        address
        for address, block in before.blocks.items()
        if (later := after.blocks.get(address)) is not None and _is_same(block, later)
    }
    moved = [
        (address, address + segment.size) for segments in changed for address, segment in segments.items()
    ]
    return {address for address in same if not any(low <= address < high for low, high in moved)}


def _is_same(block: Block, later: Block) -> bool:
    return (
        (block.size, block.requested, block.stream, block.pool)
        == (later.size, later.requested, later.stream, later.pool)
    ) and later.is_pending >= block.is_pending


def _freed(address: int, block: Block) -> list[_Row]:
    completed = _row(Action.FREE_COMPLETED, address, block)
    return [completed] if block.is_pending else [_row(Action.FREE_REQUESTED, address, block), completed]


def _row(action: int, address: int, block: Block) -> _Row:
    stack = block.stack if action == Action.ALLOC else 0
    return _Row(action, address, block.requested, block.size, block.stream, block.pool, stack)


def _moved(action: int, address: int, segment: Segment) -> _Row:
    came = action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    size, stream, pool, stack = segment
    return _Row(action, address, size, size, stream, pool, stack if came else 0)


def _trace(rows: list[_Row], time_ns: int) -> Trace:
    if not rows:
        return Trace.of()
    columns = dict(zip(_Row._fields, zip(*rows, strict=True), strict=True))
    return Trace.of(time_ns=[time_ns] * len(rows), stack_id=columns.pop("stack"), **columns)
