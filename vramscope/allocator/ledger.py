"""The allocator state of a live run: segments and blocks, updated with each event.

``replay`` explains a whole record from its end. A running program has no end yet: here each batch of new
events is applied to the current state, at 0.1 µs per event of small blocks, however long the run.
A small block has the rounded size of its request, whatever is free beside it. So nothing but the moves at its
own address decides about it, and a batch is grouped by address, in a third of the time that a loop takes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from vramscope.allocator.lives import ends_of_frees
from vramscope.allocator.settings import SMALL_LIMIT, SMALL_SEGMENT, Settings
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.table import Array
from vramscope.model.trace import Action, Trace


def _small_moves(
    address: Array, needs: Array, kind: Array, size_before: Callable[[int], int | None]
) -> tuple[Array, Array, Array]:
    """Find the moves of a batch that nothing but the moves at the same address decides about.

    They are those at addresses where the batch allocates small blocks alone, and frees them in turns.
    Returns whether each move is one of these, the bytes of the block that it allocates or frees, and the last
    of these moves at each address, which decides whether a block is in use after the batch.
    *needs* are the rounded sizes of the requests in bytes. A move of another *kind* than ALLOC and _FREED
    leaves its address to the loop over events. *size_before* returns the bytes of the block at an address
    before the batch, 0 for none, and None for an address that is left to that loop as well.
    """
    order = np.argsort(address, kind="stable")
    address, is_alloc, is_free = address[order], kind[order] == Action.ALLOC, kind[order] == _FREED
    is_first = np.ones(len(order), dtype="?")
    is_first[1:] = address[1:] != address[:-1]
    starts = np.flatnonzero(is_first)
    before = [size_before(at) for at in address[starts].tolist()]
    is_left = np.array([size is None for size in before], dtype="?")
    held = np.array([size or 0 for size in before], dtype="i8")
    sizes = np.where(is_alloc, needs[order], 0)
    is_odd = ~(is_alloc | is_free) | (sizes > SMALL_LIMIT)
    is_odd[1:] |= (is_alloc[1:] == is_alloc[:-1]) & ~is_first[1:]
    is_odd[starts] |= is_left | ((held > 0) == is_alloc[starts])
    group = np.cumsum(is_first) - 1
    is_known = ~(np.bincount(group, weights=is_odd, minlength=len(starts)) > 0)
    # A free has the size of the allocation before it, the first at its address that of the block from before.
    sizes[1:] = np.where(is_alloc[1:], sizes[1:], sizes[:-1])
    sizes[starts] = np.where(is_alloc[starts], sizes[starts], held)
    ends = np.append(starts, len(order))[1:] - 1
    return _in_order(is_known[group], order), _in_order(sizes, order), order[ends[is_known]]


def _in_order(column: Array, order: Array) -> Array:
    """The column that *order* sorts into the given one."""
    found = np.empty_like(column)
    found[order] = column
    return found


PAGE = SMALL_SEGMENT
"""Expandable segments are mapped in multiples of this (small ones; large ones in multiples of 20 MiB)."""


Block: TypeAlias = tuple[int, int, int, int, int]
"""A block in use: size, requested size, stream, pool and stack. A plain tuple, because there are millions."""

_Row: TypeAlias = tuple[int, int, int, int, int, int, int]
"""An event: action, address, size, rounded size, stream, pool, stack."""


_FREED = 254
"""Kind of a free whose two events follow one another."""


class Segment(NamedTuple):
    """A segment from cudaMalloc, or a page of an expandable segment."""

    size: int
    stream: int
    pool: int
    stack: int


class Ledger:
    """Segments and blocks at one moment, by address; ``advance`` applies further events."""

    __slots__ = (
        "_begin_of", "_end_of", "_large", "_moves", "_settings", "active", "allocated", "blocks",
        "n_contradictions", "pages", "pending", "requested", "reserved", "segments",
    )  # fmt: skip

    def __init__(self, state: Snapshot, settings: Settings) -> None:
        self._settings = settings
        self.segments: dict[int, Segment] = {}
        """Segments from cudaMalloc, by address."""
        self.pages: dict[int, Segment] = {}
        """Pages of expandable segments, by address."""
        self.blocks: dict[int, Block] = {}
        self.pending: set[int] = set()
        """Blocks that the program freed but that are not free yet."""
        self.requested = self.allocated = self.active = self.reserved = 0
        self.n_contradictions = 0
        """Events that contradict the state; they are not counted."""
        # Free pieces of large segments by both ends; they show how much of a remainder a block absorbed.
        self._end_of: dict[int, int] = {}
        self._begin_of: dict[int, int] = {}
        self._large: set[int] = set()
        self._moves: dict[int, Callable[[_Row], int]] = {
            Action.ALLOC: self._alloc,
            Action.FREE_REQUESTED: self._free_requested,
            Action.FREE_COMPLETED: self._free_completed,
            Action.SEGMENT_ALLOC: self._segment_alloc,
            Action.SEGMENT_FREE: self._segment_free,
            Action.SEGMENT_MAP: self._segment_map,
            Action.SEGMENT_UNMAP: self._segment_unmap,
        }
        self._add_segments(state)
        self._add_blocks(state)
        self.add_up()

    def advance(self, trace: Trace) -> Array:
        """Apply the next events and return their ``block_size``, 0 for contradictory ones."""
        is_end = ends_of_frees(trace)
        begins = np.zeros_like(is_end)
        begins[:-1] = is_end[1:]
        kinds = np.where(begins, _FREED, trace.action)
        needs = self._settings.rounded_all(trace.size)
        columns = (kinds, trace.address, trace.size, needs, trace.stream, trace.pool, trace.stack_id)
        at = np.flatnonzero(~is_end)
        is_known, sizes_at, last = _small_moves(trace.address[at], needs[at], kinds[at], self._small_before)
        for kind, address, size, need, stream, pool, stack in _rows(columns, at[last]):
            if kind == Action.ALLOC:
                self.blocks[address] = (need, size, stream, pool, stack)
            else:
                self.blocks.pop(address, None)
        sizes = np.empty(len(trace), dtype="i8")
        sizes[at] = sizes_at
        sizes[1:][is_end[1:]] = sizes[:-1][is_end[1:]]
        rest = at[~is_known]
        sizes[rest], sizes[rest[kinds[rest] == _FREED] + 1] = self._apply(_rows(columns, rest))
        self._add_up(trace, sizes)
        return sizes

    def _small_before(self, address: int) -> int | None:
        """Size of the small block at an address, and 0 for none; None where a move depends on more."""
        if address in self._large or address in self.pending:
            return None
        block = self.blocks.get(address)
        return 0 if block is None else block[0] or None

    def _apply(self, rows: Iterator[_Row]) -> tuple[list[int], list[int]]:
        """Apply events one by one; a free whose two events follow one another is one event, of kind _FREED.

        Returns the size of each event, and of each second event of a free.
        """
        moves, nothing, sizes, ends = self._moves, _nothing, [], []
        for row in rows:
            if row[0] == _FREED:
                sizes.append(self._free_requested(row))
                ends.append(self._free_completed(row))
            else:
                sizes.append(moves.get(row[0], nothing)(row))
        return sizes, ends

    def _add_up(self, trace: Trace, sizes: Array) -> None:
        """Update the totals for all events at once: summing one by one would double the time."""
        total = np.bincount(trace.action, weights=sizes, minlength=len(Action)).astype("i8").tolist()
        asked = np.where(sizes > 0, trace.size, 0)
        asked = np.bincount(trace.action, weights=asked, minlength=len(Action)).astype("i8").tolist()
        self.allocated += total[Action.ALLOC] - total[Action.FREE_REQUESTED]
        self.active += total[Action.ALLOC] - total[Action.FREE_COMPLETED]
        self.requested += asked[Action.ALLOC] - asked[Action.FREE_COMPLETED]
        self.reserved += total[Action.SEGMENT_ALLOC] + total[Action.SEGMENT_MAP]
        self.reserved -= total[Action.SEGMENT_FREE] + total[Action.SEGMENT_UNMAP]

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """Requested, allocated, active and reserved bytes."""
        return self.requested, self.allocated, self.active, self.reserved

    def track(self, address: int, size: int, *, is_used: bool) -> None:
        """Follow a block of a large segment: in use, or a free piece."""
        if is_used:
            self._large.add(address)
        else:
            self._add_free(address, address + size)

    def add_up(self) -> None:
        """Count the bytes of what it holds."""
        self.active, self.requested = (sum(map(itemgetter(i), self.blocks.values())) for i in (0, 1))
        self.allocated = self.active - sum(self.blocks[address][0] for address in self.pending)
        self.reserved = sum(map(itemgetter(0), chain(self.segments.values(), self.pages.values())))

    def _add_segments(self, state: Snapshot) -> None:
        held = state.segments
        columns = (held.address, held.size, held.stream, held.pool, held.stack_id)
        rows = zip(*(column.tolist() for column in columns), held.is_expandable.tolist(), strict=True)
        for address, size, stream, pool, stack, is_expandable in rows:
            if is_expandable:
                self._add_pages(address, Segment(size, stream, pool, stack))
            else:
                self.segments[address] = Segment(size, stream, pool, stack)

    def _add_blocks(self, state: Snapshot) -> None:
        blocks, held = state.blocks, state.segments
        tracked = (held.size > SMALL_SEGMENT) & ~held.is_expandable
        is_free = blocks.state == BlockState.INACTIVE
        free = blocks.rows(is_free & tracked[blocks.segment])
        for address, size in zip(free.address.tolist(), free.size.tolist(), strict=True):
            self._add_free(address, address + size)
        used = blocks.rows(~is_free)
        self._large.update(used.address[tracked[used.segment]].tolist())
        columns = (
            used.address,
            used.size,
            used.requested_size,
            held.stream[used.segment],
            held.pool[used.segment],
            used.stack_id,
        )
        for address, *rest in zip(*(column.tolist() for column in columns), strict=True):
            self.blocks[address] = tuple(rest)
        self.pending.update(used.address[used.state == BlockState.PENDING_FREE].tolist())

    def _add_pages(self, address: int, segment: Segment) -> None:
        for page in range(address, address + segment.size, PAGE):
            self.pages[page] = segment._replace(size=min(PAGE, address + segment.size - page))

    def _alloc(self, row: _Row) -> int:
        _, address, size, need, stream, pool, stack = row
        if address in self.blocks:
            return self._contradiction()
        if need > SMALL_LIMIT and address in self._end_of:
            need = self._take(address, need)
        self.blocks[address] = (need, size, stream, pool, stack)
        return need

    def _free_requested(self, row: _Row) -> int:
        address = row[1]
        block = self.blocks.get(address)
        if block is None or address in self.pending:
            return self._contradiction()
        self.pending.add(address)
        return block[0]

    def _free_completed(self, row: _Row) -> int:
        address = row[1]
        block = self.blocks.pop(address, None)
        if block is None:
            return self._contradiction()
        size = block[0]
        if address in self.pending:
            self.pending.remove(address)
        else:  # a record without FREE_REQUESTED
            self.allocated -= size
        if address in self._large:
            self._give_back(address, size)
        return size

    def _segment_alloc(self, row: _Row) -> int:
        _, address, size, _, stream, pool, stack = row
        if address in self.segments:
            return self._contradiction()
        self.segments[address] = Segment(size, stream, pool, stack)
        if size > SMALL_SEGMENT:
            self._add_free(address, address + size)
        return size

    def _segment_free(self, row: _Row) -> int:
        address = row[1]
        if self.segments.pop(address, None) is None:
            return self._contradiction()
        self._begin_of.pop(self._end_of.pop(address, 0), None)
        return row[2]

    def _segment_map(self, row: _Row) -> int:
        _, address, size, _, stream, pool, stack = row
        self._add_pages(address, Segment(size, stream, pool, stack))
        return size

    def _segment_unmap(self, row: _Row) -> int:
        _, address, size, *_ = row
        if address not in self.pages:
            return self._contradiction()
        for page in range(address, address + size, PAGE):
            self.pages.pop(page, None)
        return size

    def _contradiction(self) -> int:
        self.n_contradictions += 1
        return 0

    def _add_free(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._begin_of[end] = start

    def _take(self, address: int, need: int) -> int:
        """Take the front of the free piece that begins at *address*; a small remainder is absorbed."""
        end = self._end_of.pop(address)
        del self._begin_of[end]
        self._large.add(address)
        remainder = end - address - need
        if remainder < 0:  # more than was free: the record lacks something
            return need
        if not self._settings.splits(need, remainder):
            return need + remainder
        self._add_free(address + need, end)
        return need

    def _give_back(self, address: int, size: int) -> None:
        """Mark the range free again and merge it with its free neighbors in the same segment."""
        self._large.discard(address)
        start, end = address, address + size
        if start not in self.segments and start in self._begin_of:
            start = self._begin_of.pop(start)
            del self._end_of[start]
        if end not in self.segments and end in self._end_of:
            after = self._end_of.pop(end)
            del self._begin_of[after]
            end = after
        self._add_free(start, end)


def _rows(columns: Sequence[Array], chosen: Array) -> Iterator[Any]:
    """The chosen rows of the columns."""
    return zip(*(column[chosen].tolist() for column in columns), strict=True)


def _nothing(_: _Row) -> int:
    """OOM and SNAPSHOT move no memory."""
    return 0


def runs(pages: dict[int, Segment]) -> Iterator[tuple[int, Segment]]:
    """Merge consecutive pages of the same stream and pool."""
    start, whole = 0, None
    for address in sorted(pages):
        page = pages[address]
        if whole is not None and address == start + whole.size and page[1:3] == whole[1:3]:
            whole = whole._replace(size=whole.size + page.size)
            continue
        if whole is not None:
            yield start, whole
        start, whole = address, page
    if whole is not None:
        yield start, whole
