"""Notes gaps, and bridges them with events that lead from one state of the allocator to a later one."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np

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


_COLUMNS = "action", "address", "size", "block_size", "stream", "pool", "stack_id"
_ALLOC, _REQUESTED, _COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
_Row: TypeAlias = tuple[int, int, int, int, int, int, int]
Unlike: TypeAlias = tuple[Mapping[int, Block], Mapping[int, Block]]  # that were, and that are


def bridge(before: Ledger, after: Ledger, time_ns: int, unlike: Unlike | None = None) -> Trace:
    """Return the fewest events that explain the difference: first frees, then allocations.

    All events have the time *time_ns*. A block that was freed and allocated again identically in the gap
    can be distinguished from one that stayed if it had a stack: while its history is off torch takes none.
    *unlike* are the blocks before and after, without those that are known to have stayed.
    """
    lost_segments = _without(before.segments, after.segments)
    new_segments = _without(after.segments, before.segments)
    was, now = unlike or (before.blocks, after.blocks)
    kept = _kept((was, before.pending), (now, after.pending), (lost_segments, new_segments))
    rows: list[_Row] = []
    for address, (size, requested, stream, pool, _) in sorted(was.items()):
        if address not in kept:
            freed = address, requested, size, stream, pool, 0
            rows += [(_REQUESTED, *freed)] if address not in before.pending else ()
            rows.append((_COMPLETED, *freed))
    rows += [_moved(Action.SEGMENT_FREE, *item) for item in sorted(lost_segments.items())]
    rows += [_moved(Action.SEGMENT_UNMAP, *item) for item in runs(_without(before.pages, after.pages))]
    rows += [_moved(Action.SEGMENT_ALLOC, *item) for item in sorted(new_segments.items())]
    rows += [_moved(Action.SEGMENT_MAP, *item) for item in runs(_without(after.pages, before.pages))]
    rows += [
        (_ALLOC, address, requested, size, stream, pool, stack)
        for address, (size, requested, stream, pool, stack) in sorted(now.items())
        if address not in kept
    ]
    for address in sorted(after.pending):
        if address not in kept or address not in before.pending:
            size, requested, stream, pool, _ = after.blocks[address]
            rows.append((_REQUESTED, address, requested, size, stream, pool, 0))
    return _trace(rows, time_ns)


def _without(one: Mapping[int, Segment], other: Mapping[int, Segment]) -> dict[int, Segment]:
    """The segments of *one* that *other* does not have; the stacks that made them are not compared."""
    if one == other:  # the same objects, nearly always
        return {}
    return {
        address: segment
        for address, segment in one.items()
        if address not in other or other[address][:3] != segment[:3]
    }


def _kept(
    before: tuple[Mapping[int, Block], Collection[int]],
    after: tuple[Mapping[int, Block], Collection[int]],
    changed: tuple[dict[int, Segment], dict[int, Segment]],
) -> set[int]:
    """Addresses of the blocks that may have stayed: equal, in segments that stayed, not freed before."""
    (was, waited), (now, waits) = before, after
    alike = {
        address
        for address, block in was.items()
        if (later := now.get(address)) is not None
        and block[:4] == later[:4]
        and (later[4] or not block[4])
        and (address in waits or address not in waited)
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


def _moved(action: int, address: int, segment: Segment) -> _Row:
    came = action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    size, stream, pool, stack = segment
    return action, address, size, size, stream, pool, stack if came else 0


def _trace(rows: Sequence[_Row], time_ns: int) -> Trace:
    flat = np.fromiter(chain.from_iterable(rows), "i8", len(_COLUMNS) * len(rows))
    columns = dict(zip(_COLUMNS, flat.reshape(-1, len(_COLUMNS)).T, strict=True))
    return Trace.of(time_ns=np.full(len(rows), time_ns), **columns)
