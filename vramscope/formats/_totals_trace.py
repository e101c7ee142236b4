"""Builds a trace with the totals of a source that reports sizes, but not segments.

All reserved memory lies in one made-up range, which grows and shrinks at its end. Blocks have the source's
own addresses if it reports any. All totals are exact; what depends on the positions of blocks is not known,
and ``NO_LAYOUT`` says so.
"""

from collections.abc import Hashable
from typing import NamedTuple

from vramscope.errors import FormatError
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.trace import Action, Trace
from vramscope.units import format_bytes

REAL_ADDRESSES = 1 << 56
"""The limit below which real addresses lie; made-up addresses are above."""

ARENA = 1 << 62
"""The address at which the made-up range of reserved memory begins."""

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
"""The limit of the sum of all sizes: sums and made-up addresses must fit into 64 bits."""
_STEP = 512
"""The alignment of made-up addresses, which is torch's; no two blocks ever share one."""


class TotalsAt(NamedTuple):
    """Totals at one moment, in bytes."""

    requested: int
    allocated: int
    active: int
    reserved: int


class _TraceRow(NamedTuple):
    action: int
    time_ns: int
    address: int
    size: int
    block_size: int


class TotalsTrace:
    """Builder of a trace and of the state before it."""

    def __init__(self, reserved: int = 0) -> None:
        """Start with *reserved* bytes reserved before the first event."""
        self._rows: list[_TraceRow] = []
        self._before: list[tuple[int, int]] = []
        self._used: tuple[_TraceRow, ...] = ()
        self._pending: tuple[_TraceRow, ...] = ()
        self._moved_bytes = self._initially_reserved_bytes = self.reserved = max(reserved, 0)

    def __len__(self) -> int:
        """Return the number of events so far, which is the current instant."""
        return len(self._rows)

    def add_initial_block(self, address: int, size: int) -> None:
        """Add a block that was live before the first event."""
        self._moved_bytes += size
        self._before.append((address, size))

    def reserve(self, level: int, time_ns: int) -> None:
        """Change the reserved memory to *level* bytes."""
        grown = level - self.reserved
        if grown > 0:
            self._add(_TraceRow(Action.SEGMENT_MAP, time_ns, ARENA + self.reserved, grown, grown))
        elif grown < 0:
            self._add(_TraceRow(Action.SEGMENT_UNMAP, time_ns, ARENA + level, -grown, -grown))
        self.reserved = level

    def alloc(self, address: int, size: int, time_ns: int) -> None:
        """Add the allocation of a block of *size* bytes."""
        self._add(_TraceRow(Action.ALLOC, time_ns, address, size, size))

    def free(self, address: int, size: int, time_ns: int) -> None:
        """Add the free of a block, which is reusable at once."""
        self._add(_TraceRow(Action.FREE_REQUESTED, time_ns, address, size, size))
        self._add(_TraceRow(Action.FREE_COMPLETED, time_ns, address, size, size))

    def fail(self, size: int) -> None:
        """Add a failed allocation of *size* bytes."""
        self._add(_TraceRow(Action.OOM, 0, 0, size, 0))

    def set_totals(self, state: TotalsAt) -> None:
        """Set the totals: one block stands for all allocated bytes, another for all bytes pending free."""
        self._add(*(row._replace(action=Action.FREE_REQUESTED) for row in self._used))
        self._add(*(row._replace(action=Action.FREE_COMPLETED) for row in (*self._used, *self._pending)))
        self.reserve(max(state.reserved, state.active), 0)
        # Requested bytes count pending blocks too, as torch does.
        asked, waiting = min(state.requested, state.allocated), state.active - state.allocated
        rest = min(state.requested - asked, waiting)
        self._used = self._block(ARENA, state.allocated, asked)
        self._pending = self._block(ARENA + state.allocated, waiting, rest)
        # The pending block comes first: allocated next to the other one, it would cause a peak that never
        # was.
        self._add(*self._pending, *(row._replace(action=Action.FREE_REQUESTED) for row in self._pending))
        self._add(*self._used)

    @staticmethod
    def _block(address: int, size: int, asked: int) -> "tuple[_TraceRow, ...]":
        return (_TraceRow(Action.ALLOC, 0, address, asked, size),) if size else ()

    def _add(self, *rows: _TraceRow) -> None:
        self._moved_bytes += sum(max(row.size, row.block_size) for row in rows)
        self._rows += rows

    def trace(self) -> Trace:
        """Return the events so far. Raises FormatError if the sizes are impossibly large."""
        self._check()
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(_TraceRow._fields)
        return Trace.of(**dict(zip(_TraceRow._fields, columns, strict=True)))

    def initial(self) -> Snapshot:
        """Return the state before the first event. Raises FormatError as ``trace`` does."""
        self._check()
        rows = sorted(self._before)
        # Blocks must belong to a segment, which is unknown here: one of size 0 adds nothing to any total.
        homes = [(0, 0, False)] if rows else []
        if self._initially_reserved_bytes:
            homes.append((ARENA, self._initially_reserved_bytes, True))
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
        if self._moved_bytes > _MOST_BYTES:
            raise FormatError(f"its sizes add up to {format_bytes(self._moved_bytes)}: it is damaged")


class Pairs:
    """Live blocks by a key: an address, or only size and kind.

    If several blocks have the same key, the last one allocated is freed first; totals do not depend on that.
    A block that is freed without an allocation pre-dates the trace. Sizes are positive.
    """

    def __init__(self, builder: TotalsTrace) -> None:
        self._builder = builder
        self._live: dict[Hashable, list[int]] = {}
        self._next = REAL_ADDRESSES
        self.predating_bytes = 0

    def begin(self, known_as: Hashable, size: int, time_ns: int, address: int | None = None) -> int:
        """Allocate a block; return its address, made up if the source gives none."""
        at = self._made_up(size) if address is None else address
        self._builder.alloc(at, size, time_ns)
        self._live.setdefault(known_as, []).append(at)
        return at

    def end(self, known_as: Hashable, size: int, time_ns: int, address: int | None = None) -> int:
        """Free a block; return its address."""
        at = self._taken(known_as, size, address)
        self._builder.free(at, size, time_ns)
        return at

    def rename(self, known_as: Hashable, then: Hashable, size: int) -> int:
        """Give a block a new key; return its address."""
        at = self._taken(known_as, size, None)
        self._live.setdefault(then, []).append(at)
        return at

    def add_initial_block(self, size: int, address: int | None = None) -> int:
        """Add a block that was allocated before the trace; return its address."""
        at = self._made_up(size) if address is None else address
        self.predating_bytes += size
        self._builder.add_initial_block(at, size)
        return at

    def expect(self, known_as: Hashable, size: int) -> int:
        """Add a block from before the trace that may be freed later; return its address."""
        at = self.add_initial_block(size)
        self._live.setdefault(known_as, []).append(at)
        return at

    def _taken(self, known_as: Hashable, size: int, address: int | None) -> int:
        live = self._live.get(known_as)
        if live:
            return live.pop()
        if address is None or live is None:
            at = self.add_initial_block(size, address)
            self._live.setdefault(known_as, [])
            return at
        return address  # freed twice: its allocation is missing

    def _made_up(self, size: int) -> int:
        at = self._next
        self._next += -(-size // _STEP) * _STEP
        return at
