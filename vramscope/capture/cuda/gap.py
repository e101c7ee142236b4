"""What happened while nobody saw it? Events that lead from one state of the allocator to a later one."""

from bisect import bisect_right
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
    waits = [address for address in kept if address in after.pending and address not in before.pending]
    rows = [
        _row(action, address, gone[address])
        for address in sorted(gone)
        for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
        if action == Action.FREE_COMPLETED or address not in before.pending
    ]
    rows += [_moved(Action.SEGMENT_FREE, *item) for item in sorted(lost_segments.items())]
    rows += [_moved(Action.SEGMENT_UNMAP, *item) for item in runs(_without(before.pages, after.pages))]
    rows += [_moved(Action.SEGMENT_ALLOC, *item) for item in sorted(new_segments.items())]
    rows += [_moved(Action.SEGMENT_MAP, *item) for item in runs(_without(after.pages, before.pages))]
    rows += [_row(Action.ALLOC, address, born[address]) for address in sorted(born)]
    waits += [address for address in born if address in after.pending]
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
    """Addresses of the blocks that may have stayed: alike, in segments that stayed, and not freed before."""
    alike = {
        address
        for address, block in before.blocks.items()
        if (later := after.blocks.get(address)) is not None
        and block[:4] == later[:4]
        and (address in after.pending or address not in before.pending)
    }
    ranges = sorted((address, address + part.size) for parts in changed for address, part in parts.items())
    starts = [start for start, _ in ranges]
    # The segments before and after may overlap: a block lies in one of the last two that begin below it.
    return {
        address
        for address in alike
        if not any(
            end > address
            for _, end in ranges[max(0, bisect_right(starts, address) - 2) : bisect_right(starts, address)]
        )
    }


def _row(action: int, address: int, block: Block) -> _Row:
    size, requested, stream, pool, stack = block
    return _Row(action, address, requested, size, stream, pool, stack if action == Action.ALLOC else 0)


def _moved(action: int, address: int, segment: Segment) -> _Row:
    came = action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    size, stream, pool, stack = segment
    return _Row(action, address, size, size, stream, pool, stack if came else 0)


def _trace(rows: list[_Row], time_ns: int) -> Trace:
    if not rows:
        return Trace.of()
    columns = dict(zip(_Row._fields, zip(*rows, strict=True), strict=True))
    return Trace.of(time_ns=[time_ns] * len(rows), stack_id=columns.pop("stack"), **columns)
