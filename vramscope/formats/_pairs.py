"""Which end belongs to which beginning? Where a source gives only sizes, or an address without a history."""

from collections.abc import Hashable

from vramscope.formats._totals_trace import REAL_ADDRESSES, TotalsTrace

_STEP = 512
"""Made-up addresses are as far apart as torch's, and no two blocks ever share one."""


class Pairs:
    """Blocks by what they are known as: an address, or only size and kind.

    Of several that are known alike, the last to come is the first to go; their totals do not depend on it.
    What ends without a beginning pre-dates the trace. Sizes are positive.
    """

    __slots__ = ("_builder", "_live", "_next", "predating_bytes")

    def __init__(self, builder: TotalsTrace) -> None:
        self._builder = builder
        self._live: dict[Hashable, list[int]] = {}
        self._next = REAL_ADDRESSES
        self.predating_bytes = 0

    def begin(self, known_as: Hashable, size: int, time_ns: int, address: int | None = None) -> int:
        """A block comes; its address, made up where it has none."""
        at = self._made_up(size) if address is None else address
        self._builder.alloc(at, size, time_ns)
        self._live.setdefault(known_as, []).append(at)
        return at

    def end(self, known_as: Hashable, size: int, time_ns: int, address: int | None = None) -> int:
        """A block goes; its address."""
        at = self._taken(known_as, size, address)
        self._builder.free(at, size, time_ns)
        return at

    def rename(self, known_as: Hashable, then: Hashable, size: int) -> int:
        """A block is known as something else from now on; its address."""
        at = self._taken(known_as, size, None)
        self._live.setdefault(then, []).append(at)
        return at

    def add_initial_block(self, size: int, address: int | None = None) -> int:
        """A block from before the trace; its address."""
        at = self._made_up(size) if address is None else address
        self.predating_bytes += size
        self._builder.add_initial_block(at, size)
        return at

    def expect(self, known_as: Hashable, size: int) -> int:
        """A block from before the trace that may go later; its address."""
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
