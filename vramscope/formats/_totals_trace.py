"""Which trace tells the totals that a source gave? For sources that know sizes, but not segments.

Everything reserved lies in one made-up range, which grows and shrinks at its end. Addresses of blocks are the
source's own where it has any. All totals come out exactly; what depends on where a block lies does not, and
``NO_LAYOUT`` says so.
"""

from typing import NamedTuple

from vramscope.errors import FormatError
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.trace import Action, Trace
from vramscope.units import format_bytes

REAL_ADDRESSES = 1 << 56
"""Addresses of a process or a device are below; what is made up is above."""

ARENA = 1 << 62
"""Where the made-up range of everything reserved begins."""

NO_LAYOUT = Note(
    NoteCode.NO_LAYOUT,
    "this source does not say where in the allocator's segments a block lies: totals are exact, but "
    "fragmentation, the parts of reserved memory and what would fit are not known",
)

NO_LAYOUT_NOR_TOTALS = Note(
    NO_LAYOUT.code,
    "this source says neither its totals nor where in the allocator's segments a block lies: fragmentation, "
    "the parts of reserved memory and what would fit are not known",
)

_MOST_BYTES = 1 << 60
"""All sizes together: sums and made-up addresses must fit 64 bits."""


class State(NamedTuple):
    """Totals at one moment, in bytes."""

    requested: int
    allocated: int
    active: int
    reserved: int


class _Row(NamedTuple):
    """One event."""

    action: int
    time_ns: int
    address: int
    size: int
    block_size: int


class Ledger:
    """A trace in the making, and the state before it."""

    __slots__ = ("_before", "_initially_reserved", "_moved", "_pending", "_rows", "_used", "reserved")

    def __init__(self, reserved: int = 0) -> None:
        """*reserved* bytes were there before the first event."""
        self._rows: list[_Row] = []
        self._before: list[tuple[int, int]] = []
        self._used: tuple[_Row, ...] = ()
        self._pending: tuple[_Row, ...] = ()
        self._moved = self._initially_reserved = self.reserved = max(reserved, 0)

    def __len__(self) -> int:
        """How many events there are so far: the instant of now."""
        return len(self._rows)

    def predate(self, address: int, size: int) -> None:
        """A block that was there before the first event."""
        self._moved += size
        self._before.append((address, size))

    def reserve(self, level: int, time_ns: int) -> None:
        """So many bytes are reserved from now on."""
        grown = level - self.reserved
        if grown > 0:
            self._add(_Row(Action.SEGMENT_MAP, time_ns, ARENA + self.reserved, grown, grown))
        elif grown < 0:
            self._add(_Row(Action.SEGMENT_UNMAP, time_ns, ARENA + level, -grown, -grown))
        self.reserved = level

    def alloc(self, address: int, size: int, time_ns: int) -> None:
        """A block of *size* bytes is handed out."""
        self._add(_Row(Action.ALLOC, time_ns, address, size, size))

    def free(self, address: int, size: int, time_ns: int) -> None:
        """A block comes back, and can be used at once."""
        self._add(_Row(Action.FREE_REQUESTED, time_ns, address, size, size))
        self._add(_Row(Action.FREE_COMPLETED, time_ns, address, size, size))

    def fail(self, size: int) -> None:
        """The program was told that so many bytes could not be had."""
        self._add(_Row(Action.OOM, 0, 0, size, 0))

    def settle(self, state: State) -> None:
        """These are the totals now: one block is all that is allocated, another one all that is pending."""
        self._add(*(row._replace(action=Action.FREE_REQUESTED) for row in self._used))
        self._add(*(row._replace(action=Action.FREE_COMPLETED) for row in (*self._used, *self._pending)))
        self.reserve(max(state.reserved, state.active), 0)
        # Requested bytes count pending blocks too, as torch does.
        asked, waiting = min(state.requested, state.allocated), state.active - state.allocated
        rest = min(state.requested - asked, waiting)
        self._used = self._block(ARENA, state.allocated, asked)
        self._pending = self._block(ARENA + state.allocated, waiting, rest)
        # The pending one comes first: allocated beside the other, it would be a peak that never was.
        self._add(*self._pending, *(row._replace(action=Action.FREE_REQUESTED) for row in self._pending))
        self._add(*self._used)

    @staticmethod
    def _block(address: int, size: int, asked: int) -> "tuple[_Row, ...]":
        return (_Row(Action.ALLOC, 0, address, asked, size),) if size else ()

    def _add(self, *rows: _Row) -> None:
        self._moved += sum(max(row.size, row.block_size) for row in rows)
        self._rows += rows

    def trace(self) -> Trace:
        """The events so far; raises FormatError where sizes are beyond all reason."""
        self._check()
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(_Row._fields)
        return Trace.of(**dict(zip(_Row._fields, columns, strict=True)))

    def initial(self) -> Snapshot:
        """What was there before the first event; raises FormatError as ``trace`` does."""
        self._check()
        rows = sorted(self._before)
        # Blocks must belong to a segment. Theirs is not known: one of no size, so that it counts for nothing.
        homes = [(0, 0, False)] if rows else []
        if self._initially_reserved:
            homes.append((ARENA, self._initially_reserved, True))
        return Snapshot(
            segments=Segments.of(
                address=[at for at, _, _ in homes],
                size=[size for _, size, _ in homes],
                is_expandable=[is_expandable for _, _, is_expandable in homes],
                is_large=[size > 0 for _, size, _ in homes],
            ),
            blocks=Blocks.of(
                address=[at for at, _ in rows],
                size=[size for _, size in rows],
                requested_size=[size for _, size in rows],
            ),
        )

    def _check(self) -> None:
        if self._moved > _MOST_BYTES:
            raise FormatError(f"its sizes add up to {format_bytes(self._moved)}: it is damaged")
