"""What is in use now? Segments and blocks, led forward by the events as they come.

``replay`` explains a whole record from its end. A program that still runs has no end: here each stretch of
events is added to what was there before, at 1 µs an event, however long the run.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import SMALL_LIMIT, SMALL_SEGMENT, Settings
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.trace import Action, Trace

PAGE = SMALL_SEGMENT
"""Expandable segments are mapped in multiples of this (small ones; large ones in multiples of 20 MiB)."""


class Block(NamedTuple):
    """A block in use."""

    size: int
    requested: int
    is_pending: bool
    """Freed by the program, but not free yet."""
    stream: int
    pool: int
    stack: int


class Segment(NamedTuple):
    """A segment by cudaMalloc, or a page of an expandable one."""

    size: int
    stream: int
    pool: int
    stack: int


class Ledger:
    """Segments and blocks at one moment, by address; ``advance`` leads it on."""

    __slots__ = (
        "_begin_of",
        "_end_of",
        "_large",
        "_moves",
        "_settings",
        "active",
        "allocated",
        "blocks",
        "n_contradictions",
        "pages",
        "requested",
        "reserved",
        "segments",
    )

    def __init__(self, state: Snapshot, settings: Settings) -> None:
        self._settings = settings
        self.segments: dict[int, Segment] = {}
        """By cudaMalloc."""
        self.pages: dict[int, Segment] = {}
        """Of expandable segments."""
        self.blocks: dict[int, Block] = {}
        self.requested = self.allocated = self.active = self.reserved = 0
        self.n_contradictions = 0
        """Events that could not be: they count for nothing."""
        # Free pieces of large segments by both ends; they tell how much of a remainder a block absorbed.
        self._end_of: dict[int, int] = {}
        self._begin_of: dict[int, int] = {}
        self._large: set[int] = set()
        self._moves: dict[int, Callable[..., int]] = {
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

    def advance(self, trace: Trace) -> NDArray[Any]:
        """The next events; gives their ``block_size``, 0 for those that cannot be."""
        needs = self._settings.rounded_all(trace.size)
        columns = (
            trace.action,
            trace.address,
            trace.size,
            needs,
            trace.stream,
            trace.pool,
            trace.stack_id,
        )
        moves, nothing = self._moves, _nothing
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return np.array([moves.get(action, nothing)(*row) for action, *row in rows], dtype="i8")

    @property
    def totals(self) -> tuple[int, int, int, int]:
        """Requested, allocated, active and reserved bytes."""
        return self.requested, self.allocated, self.active, self.reserved

    # --------------------------------------------------------------------------------- at first

    def _add_segments(self, state: Snapshot) -> None:
        held = state.segments
        columns = (held.address, held.size, held.stream, held.pool, held.stack_id)
        rows = zip(*(column.tolist() for column in columns), held.is_expandable.tolist(), strict=True)
        for address, size, stream, pool, stack, is_expandable in rows:
            self.reserved += size
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
            used.state == BlockState.PENDING_FREE,
            held.stream[used.segment],
            held.pool[used.segment],
            used.stack_id,
        )
        for address, *rest in zip(*(column.tolist() for column in columns), strict=True):
            block = self.blocks[address] = Block(*rest)
            self.active += block.size
            self.requested += block.requested
            self.allocated += 0 if block.is_pending else block.size

    def _add_pages(self, address: int, segment: Segment) -> None:
        for page in range(address, address + segment.size, PAGE):
            self.pages[page] = segment._replace(size=min(PAGE, address + segment.size - page))

    # ---------------------------------------------------------------------------- one event each

    def _alloc(self, address: int, size: int, need: int, stream: int, pool: int, stack: int) -> int:
        if address in self.blocks:
            return self._contradiction()
        taken = need
        if need > SMALL_LIMIT and address in self._end_of:
            taken = self._take(address, need)
        self.blocks[address] = Block(taken, size, False, stream, pool, stack)
        self.allocated += taken
        self.active += taken
        self.requested += size
        return taken

    def _free_requested(self, address: int, *_: int) -> int:
        block = self.blocks.get(address)
        if block is None or block.is_pending:
            return self._contradiction()
        self.blocks[address] = block._replace(is_pending=True)
        self.allocated -= block.size
        return block.size

    def _free_completed(self, address: int, *_: int) -> int:
        block = self.blocks.pop(address, None)
        if block is None:
            return self._contradiction()
        if not block.is_pending:  # a record without FREE_REQUESTED
            self.allocated -= block.size
        self.active -= block.size
        self.requested -= block.requested
        if address in self._large:
            self._give_back(address, block.size)
        return block.size

    def _segment_alloc(self, address: int, size: int, _need: int, stream: int, pool: int, stack: int) -> int:
        if address in self.segments:
            return self._contradiction()
        self.segments[address] = Segment(size, stream, pool, stack)
        self.reserved += size
        if size > SMALL_SEGMENT:
            self._add_free(address, address + size)
        return size

    def _segment_free(self, address: int, size: int, *_: int) -> int:
        if self.segments.pop(address, None) is None:
            return self._contradiction()
        self.reserved -= size
        self._begin_of.pop(self._end_of.pop(address, 0), None)
        return size

    def _segment_map(self, address: int, size: int, _need: int, stream: int, pool: int, stack: int) -> int:
        self._add_pages(address, Segment(size, stream, pool, stack))
        self.reserved += size
        return size

    def _segment_unmap(self, address: int, size: int, *_: int) -> int:
        if address not in self.pages:
            return self._contradiction()
        for page in range(address, address + size, PAGE):
            self.pages.pop(page, None)
        self.reserved -= size
        return size

    def _contradiction(self) -> int:
        self.n_contradictions += 1
        return 0

    # --------------------------------------------------------------------- free pieces of segments

    def _add_free(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._begin_of[end] = start

    def _take(self, address: int, need: int) -> int:
        """The front of the free piece that begins there; a small remainder goes with it."""
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
        """It is free again, one with its free neighbours of the same segment."""
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


def _nothing(*_: int) -> int:
    """OOM, SNAPSHOT: no memory moves."""
    return 0


def runs(pages: dict[int, Segment]) -> Iterator[tuple[int, Segment]]:
    """Pages that follow one another, of the same stream and pool, as one."""
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
