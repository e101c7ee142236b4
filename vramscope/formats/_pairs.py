"""Pairs frees with allocations for sources that give only sizes, or addresses without a history."""

from collections.abc import Hashable

from vramscope.formats._totals_trace import REAL_ADDRESSES, TotalsTrace

_STEP = 512
"""The alignment of made-up addresses, which is torch's; no two blocks ever share one."""


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
