"""Notes gaps, and bridges them with events that lead from one state of the allocator to a later one."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import NamedTuple

from vramscope.allocator.ledger import Block, Ledger, Segment, runs
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.trace import Action, Trace

_MANY_GAPS = 100


class GapNotes:
    """Notes of what is missing on one device: one for each gap, and one for all beyond a hundred."""

    def __init__(self, add: Callable[[Note], None]) -> None:
        """Pass each note to *add*."""
        self._add = add
        self._n_gaps = self._n_lost_more = 0

    def note(self, n_lost: int) -> None:
        """Note a gap in which that many entries are missing; 0 where the number is unknown."""
        self._n_gaps += 1
        if self._n_gaps <= _MANY_GAPS:
            self._add(_gap(n_lost))
        else:
            self._n_lost_more += n_lost

    def flush(self) -> None:
        """Write the note for all gaps that have none of their own."""
        if self._n_gaps > _MANY_GAPS:
            n_more = self._n_gaps - _MANY_GAPS
            text = f"{self._n_lost_more} events are missing in {n_more} more gaps"
            self._add(Note(NoteCode.GAP, text, self._n_lost_more))
            self._n_gaps, self._n_lost_more = _MANY_GAPS, 0


def _gap(n_lost: int) -> Note:
    how_many = f"{n_lost} events" if n_lost else "an unknown number of events"
    text = (
        f"{how_many} are missing: torch's ring was overwritten or emptied before it was read. "
        "What they did in all is shown as one moment, and what follows is exact"
    )
    return Note(NoteCode.GAP, text, n_lost)


class _EventRow(NamedTuple):
    action: int
    address: int
    size: int
    block_size: int
    stream: int
    pool: int
    stack: int


def bridge(before: Ledger, after: Ledger, time_ns: int) -> Trace:
    """Return the fewest events that explain the difference: first frees, then allocations.

    All events have the time *time_ns*. A block that was freed and allocated again identically in the gap
    can be distinguished from one that stayed if it had a stack: while its history is off torch takes none.
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
    """The segments of *one* that *other* does not have; the stacks that made them are not compared."""
    return {
        address: segment
        for address, segment in one.items()
        if address not in other or other[address][:3] != segment[:3]
    }


def _kept(before: Ledger, after: Ledger, changed: tuple[dict[int, Segment], dict[int, Segment]]) -> set[int]:
    """Addresses of the blocks that may have stayed: equal, in segments that stayed, not freed before."""
    alike = {
        address
        for address, block in before.blocks.items()
        if (later := after.blocks.get(address)) is not None
        and block[:4] == later[:4]
        and (later[4] or not block[4])
        and (address in after.pending or address not in before.pending)
    }
    ranges = sorted((address, address + part.size) for parts in changed for address, part in parts.items())
    starts = [start for start, _ in ranges]
    if not ranges:
        return alike
    # The segments before and after may overlap: a block lies in one of the last two that begin below it.
    return {
        address
        for address in alike
        if not any(
            end > address
            for _, end in ranges[max(0, bisect_right(starts, address) - 2) : bisect_right(starts, address)]
        )
    }


def _row(action: int, address: int, block: Block) -> _EventRow:
    size, requested, stream, pool, stack = block
    return _EventRow(action, address, requested, size, stream, pool, stack if action == Action.ALLOC else 0)


def _moved(action: int, address: int, segment: Segment) -> _EventRow:
    came = action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    size, stream, pool, stack = segment
    return _EventRow(action, address, size, size, stream, pool, stack if came else 0)


def _trace(rows: list[_EventRow], time_ns: int) -> Trace:
    if not rows:
        return Trace.of()
    columns = dict(zip(_EventRow._fields, zip(*rows, strict=True), strict=True))
    return Trace.of(time_ns=[time_ns] * len(rows), stack_id=columns.pop("stack"), **columns)
