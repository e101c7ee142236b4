"""The growth and shrinking of expandable segments.

Each pool, size class and stream has one address space, larger than the device; memory is mapped into it in
units as it is needed, so that free blocks at its end can always grow.
"""

from typing import TYPE_CHECKING

from vramscope.allocator.settings import SMALL_SEGMENT
from vramscope.allocator.simulation.blocks import Bin, SimulatedBlock
from vramscope.model.trace import Action

if TYPE_CHECKING:
    from vramscope.allocator.simulation import CachingAllocator

_UNLIMITED_SPACE = 2**40
"""Address space for a device without a capacity."""


class ExpandableSegments:
    """The expandable segments of one allocator."""

    __slots__ = ("_allocator",)

    def __init__(self, allocator: "CachingAllocator") -> None:
        self._allocator = allocator

    def preferred(self, bin_: Bin, place: int) -> int:
        """The first free block, from the best fit on, that could not grow larger than the one after it."""
        order = bin_.order
        if not self._allocator.settings.expandable_segments:  # the setting was switched off meanwhile
            while place < len(order) and order[place][3].segment.is_expandable:
                place += 1
            return place
        while (
            place + 1 < len(order)
            and order[place][3].segment.is_expandable
            and _could_be(order[place + 1][3]) < _could_be(order[place][3])
        ):
            place += 1
        return place

    def grown(self, bin_: Bin, need: int) -> SimulatedBlock | None:
        """Map a block of at least *need* bytes, in no free list; None where the device lacks the memory."""
        block: SimulatedBlock | None = self._candidate(bin_, need)
        if block is not None and not block.is_mapped:
            block = self._mapped(block, min(block.size, need))
        while block is not None and block.size < need:
            following = block.next
            assert following is not None, "a candidate has room for the need"  # noqa: S101
            block = self._mapped(following, min(need - block.size, following.size))
        if block is not None:
            bin_.remove(block)
        return block

    def shrink(self, block: SimulatedBlock) -> None:
        """Unmap the whole units inside a free block; the parts left on both sides stay free."""
        allocator, bin_ = self._allocator, block.bin
        base, unit = block.segment.address, self._unit(bin_)
        begin = base + -(-(block.address - base) // unit) * unit
        end = base + (block.address + block.size - base) // unit * unit
        if begin >= end:
            return
        bin_.remove(block)
        if block.address < begin:
            bin_.add(allocator.cut(block, begin - block.address))
        if end < block.address + block.size:
            rest, block = block, allocator.cut(block, end - begin)
            bin_.add(rest)
        block.is_mapped = False
        allocator.merge(block)
        bin_.add_unmapped(block)
        allocator.moved(Action.SEGMENT_UNMAP, (begin, end - begin), bin_)
        if block.is_whole:
            bin_.remove_unmapped(block)
            allocator.forget(block.segment)

    def _candidate(self, bin_: Bin, need: int) -> SimulatedBlock:
        """The lowest free or unmapped block with enough space from it on; else new address space."""
        for _, unmapped in bin_.unmapped:
            before = unmapped.prev
            block = before if before is not None and before.is_free else unmapped
            if _has_room(block, need):
                return block
        return self._reserve(bin_, need)

    def _reserve(self, bin_: Bin, need: int) -> SimulatedBlock:
        """Reserve address space for a new segment."""
        allocator, size = self._allocator, self.space(bin_, need)
        segment = allocator.new_segment(size, is_expandable=True)
        block = SimulatedBlock(segment.address, size, bin_, segment, segment.tie)
        block.is_mapped = False
        allocator.adopt(block)
        bin_.add_unmapped(block)
        return block

    def space(self, bin_: Bin, need: int) -> int:
        """The size of the address space: 1.125 times the device, so that it rarely runs out; in whole
        units.
        """
        total, unit = self._allocator.total_bytes, self._unit(bin_)
        wanted = total * 9 // 8 if total else _UNLIMITED_SPACE
        return -(-max(wanted, need) // unit) * unit

    def _mapped(self, block: SimulatedBlock, size: int) -> SimulatedBlock | None:
        """Map the front of an unmapped block in whole units, and merge it with its free neighbors."""
        allocator, bin_ = self._allocator, block.bin
        unit = self._unit(bin_)
        size = -(-size // unit) * unit
        if not allocator.has_room(size):
            return None
        bin_.remove_unmapped(block)
        if size < block.size:
            rest, block = block, allocator.cut(block, size)
            bin_.add_unmapped(rest)
        begin = block.address
        block.is_mapped = True
        allocator.merge(block)
        bin_.add(block)
        allocator.moved(Action.SEGMENT_MAP, (begin, size), bin_)
        return block

    def _unit(self, bin_: Bin) -> int:
        return self._allocator.settings.large_segment_size if bin_.is_large else SMALL_SEGMENT


def _could_be(block: SimulatedBlock) -> int:
    """The block's size if all unmapped space after it were mapped."""
    following = block.next
    return block.size + (following.size if following is not None and not following.is_mapped else 0)


def _has_room(block: SimulatedBlock, need: int) -> bool:
    """Whether the block and the free or unmapped blocks after it are large enough together."""
    following: SimulatedBlock | None = block
    while need > 0 and following is not None and following.is_free:
        need -= following.size
        following = following.next
    return need <= 0
