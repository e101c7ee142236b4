"""A model of torch's CUDA caching allocator that predicts every block.

It follows c10/cuda/CUDACachingAllocator.cpp of torch 2.1 to 2.13 step by step, for one device. Memory is
counted, not touched. Only the device's addresses are invented: segments follow one another.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from vramscope.allocator.settings import SMALL_LIMIT, SMALL_SEGMENT, UNLIMITED, Settings, TieBreak
from vramscope.allocator.simulation.blocks import (
    Bin,
    SimulatedBlock,
    SimulatedSegment,
    block_row,
    mapped_runs,
    segment_row,
)
from vramscope.allocator.simulation.expandable import ExpandableSegments
from vramscope.allocator.simulation.initial_state import heads
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.trace import Action

Emit = Callable[[Action, int, int, int, int, int], None]
"""A callback for each event: action, address, size (as torch reports it), block size, stream, pool."""

_FIRST_ADDRESS = 0x7000_0000_0000
"""An address like CUDA's, with 16 TiB of address space above it."""


class OutOfMemory(Exception):  # noqa: N818 torch's word
    """The request does not fit after every attempt to release memory."""

    def __init__(self, need: int) -> None:
        super().__init__(f"a block of {need} bytes does not fit on the device")
        self.need = need


@dataclass(slots=True)
class AllocatorCounts:
    """Numbers of retries and failures, with the names of ``torch.cuda.memory_stats()``."""

    num_alloc_retries: int = 0
    """Times that the whole cache was released because the device was full."""
    num_ooms: int = 0


class CachingAllocator:
    """The allocator of one device; sizes and addresses in bytes."""

    def __init__(
        self,
        settings: Settings = Settings(),  # noqa: B008 frozen
        capacity_bytes: int | None = None,
        emit: Emit | None = None,
        total_bytes: int | None = None,
    ) -> None:
        self.settings = settings
        self.capacity_bytes = capacity_bytes
        """Total bytes that the driver can give; None without a limit. May be changed at any time."""
        self._total_bytes = total_bytes
        self.requested_bytes = 0
        """Bytes that the program requested, over all active blocks."""
        self.allocated_bytes = 0
        """Bytes of blocks that serve the program."""
        self.active_bytes = 0
        """Bytes of allocated and pending blocks."""
        self.reserved_bytes = 0
        """Bytes of all segments."""
        self.counts = AllocatorCounts()
        self._emit: Emit = emit or (lambda *_: None)
        self._bins: dict[tuple[int, bool, int], Bin] = {}
        self._used: dict[int, SimulatedBlock] = {}
        """Active blocks by address."""
        self._pending: dict[int, SimulatedBlock] = {}
        """Pending blocks by address, in the order of their frees."""
        self._heads: dict[int, SimulatedBlock] = {}
        """The first block of every segment, by the segment's address."""
        self._retired_pools: set[int] = set()
        self.whole_pools: set[int] = set()
        """Private pools whose segments are never split."""
        self.last_resorts: list[int] = []
        """Private pools whose free blocks serve any request before it fails."""
        self._serial = 0
        self._searches = 0
        """Searches in the default large pool: the clock of garbage collection."""
        self._next_address = _FIRST_ADDRESS
        self._stack_id = 0
        self._expandable = ExpandableSegments(self)

    def begin_in(self, state: Snapshot) -> None:
        """Start in *state* instead of empty; call it before anything else. Lower addresses count as older."""
        for head in heads(state, self._bin, self.next_serial, lambda bin_: self._expandable.space(bin_, 0)):
            self.adopt(head)
            segment, block = head.segment, cast("SimulatedBlock | None", head)
            self._next_address = max(self._next_address, segment.address + segment.size)
            while block is not None:
                self._take_over(block)
                block = block.next
        self.reserved_bytes = state.reserved_bytes

    def _take_over(self, block: SimulatedBlock) -> None:
        """Register a block that exists before the first operation."""
        if not block.is_mapped:
            block.bin.add_unmapped(block)
        elif block.is_free:
            block.bin.add(block)
        else:
            self._used[block.address] = block
            self.active_bytes += block.size
            self.requested_bytes += block.requested_size
            if block.is_pending:
                self._pending[block.address] = block
            else:
                self.allocated_bytes += block.size

    def malloc(self, size: int, stream: int = 0, pool: int = 0, stack_id: int = 0) -> int:
        """Allocate a block for *size* bytes and return its address.

        Pending frees are not completed here: call ``finish_events`` first where torch would complete them.

        Raises
        ------
        OutOfMemory
            If the request does not fit.
        """
        if size <= 0:
            return 0  # torch's storage of 0 bytes is a null pointer
        self._stack_id = stack_id
        need = self.settings.rounded(size)
        bin_ = self._bin(pool, need > SMALL_LIMIT, stream)
        block = self._found(bin_, need) or self._made(bin_, need)
        if block is None:
            self.counts.num_ooms += 1
            self._emit(Action.OOM, 0, need, 0, stream, pool)
            raise OutOfMemory(need)
        block = self._split(block, need)
        block.is_used = True
        block.requested_size = size
        block.stack_id = stack_id
        self._used[block.address] = block
        self.requested_bytes += size
        self.allocated_bytes += block.size
        self.active_bytes += block.size
        self._emit(Action.ALLOC, block.address, size, block.size, stream, pool)
        return block.address

    def free(self, address: int) -> None:
        """Free the block at *address*; raises KeyError where there is none."""
        if not address:
            return
        block = self._used[address]
        if block.is_pending:
            raise KeyError(address)
        self.allocated_bytes -= block.size
        self._tell(Action.FREE_REQUESTED, block)
        if block.users:
            block.is_pending = True
            self._pending[address] = block
        else:
            self._complete(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Mark the block as used by another stream: once freed, it stays pending until its events are
        finished.
        """
        block = self._used[address]
        if stream != block.bin.stream:
            block.users |= {stream}

    def finish_events(self, *addresses: int) -> None:
        """Complete the frees of these pending blocks, or of all if none is given."""
        for address in addresses or tuple(self._pending):
            self._complete(self._pending.pop(address))

    def is_pending(self, address: int) -> bool:
        """Whether the block at *address* was freed and waits for another stream."""
        return address in self._pending

    @property
    def total_bytes(self) -> int | None:
        """Total bytes of the device, whoever else uses it: fractions and address space are shares of it.

        Equals ``capacity_bytes`` where nothing else is known.
        """
        return self.capacity_bytes if self._total_bytes is None else self._total_bytes

    def empty_cache(self) -> None:
        """Return all unused segments to the driver."""
        self.finish_events()
        for bins in self._release_order():
            self._release_unsplit(bins)

    def retire_pool(self, pool: int) -> None:
        """Mark a private pool as ownerless, as its graph or MemPool is gone: its cache may be released."""
        self._retired_pools.add(pool)

    def release_pool(self, pool: int) -> None:
        """Retire a private pool and return its cache to the driver, as a deleted MemPool does."""
        self.retire_pool(pool)
        self._release_unsplit([bin_ for bin_ in self._bins.values() if bin_.pool == pool])

    def snapshot(self, event: int, time_ns: int) -> Snapshot:
        """All segments and blocks at this moment."""
        segments: list[tuple[int, ...]] = []
        blocks: list[tuple[int, ...]] = []
        for address in sorted(self._heads):
            for run in mapped_runs(self._heads[address]):
                blocks += [block_row(len(segments), block) for block in run]
                segments.append(segment_row(run))
        return Snapshot(
            event=event,
            time_ns=time_ns,
            segments=Segments.of(**dict(zip(Segments.DTYPES, zip(*segments, strict=True), strict=False))),
            blocks=Blocks.of(**dict(zip(Blocks.DTYPES, zip(*blocks, strict=True), strict=False))),
        )

    def _bin(self, pool: int, is_large: bool, stream: int) -> Bin:
        key = (pool, is_large, stream)
        bin_ = self._bins.get(key)
        if bin_ is None:
            bin_ = self._bins[key] = Bin(pool, stream, is_large=is_large)
        return bin_

    def _tell(self, action: Action, block: SimulatedBlock) -> None:
        bin_ = block.bin
        self._emit(action, block.address, block.requested_size, block.size, bin_.stream, bin_.pool)

    def _complete(self, block: SimulatedBlock) -> None:
        """Return the block to the free lists, merged with its free neighbors."""
        del self._used[block.address]
        self.active_bytes -= block.size
        self.requested_bytes -= block.requested_size
        self._tell(Action.FREE_COMPLETED, block)
        block.is_used = block.is_pending = False
        block.users = frozenset()
        self.merge(block)
        block.age_base = self._searches
        block.bin.add(block)

    def merge(self, block: SimulatedBlock) -> None:
        """Merge the block with free neighbors that are mapped, or unmapped, as it is."""
        for other in (block.prev, block.next):
            if other is None or not other.is_free or other.is_mapped != block.is_mapped:
                continue
            if other.is_mapped:
                other.bin.remove(other)
            else:
                other.bin.remove_unmapped(other)
            if other is block.prev and other.prev is None:
                self._heads[block.segment.address] = block
            block.absorb(other)

    def cut(self, block: SimulatedBlock, size: int) -> SimulatedBlock:
        """Cut off the first *size* bytes of a block as a new block."""
        is_block_order = self.settings.tie_break is TieBreak.BLOCK
        front = block.cut(size, self.next_serial() if is_block_order else block.tie)
        if front.prev is None:
            self._heads[block.segment.address] = front
        return front

    def _split(self, block: SimulatedBlock, need: int) -> SimulatedBlock:
        """Split a block that is in no free list: return its front and put the rest into a free list.

        The rest of a large block that is not split off (up to 1 MiB) belongs to the caller and counts as
        allocated: a block may be larger than its rounded request.
        """
        if block.bin.pool in self.whole_pools or not self.settings.splits(need, block.size - need):
            return block
        front = self.cut(block, need)
        block.bin.add(block)
        return front

    def next_serial(self) -> int:
        """Number of a new block or segment, which orders equally large blocks; torch ≤ 2.11 had none."""
        if self.settings.tie_break is TieBreak.ADDRESS:
            return 0
        self._serial += 1
        return self._serial

    def _found(self, bin_: Bin, need: int) -> SimulatedBlock | None:
        """Take the best fit from its free list; None where there is none or it wastes too much."""
        # Only the best fit is checked: if it wastes too much, a larger block would waste more, and blocks
        # that max_split_size keeps whole for large requests are followed only by such blocks.
        self._searches += bin_.is_large and bin_.pool == 0
        place = bin_.first_of(need)
        order = bin_.order
        if place < len(order) and order[place][3].segment.is_expandable:
            place = self._expandable.preferred(bin_, place)
        if place >= len(order) or not self.settings.fits(need, order[place][0]):
            return None
        return order.pop(place)[3]

    def _made(self, bin_: Bin, need: int) -> SimulatedBlock | None:
        """Get a block from the driver, releasing more of the cache after each failure, in torch's order.

        Only the last attempt counts as a retry (``num_alloc_retries``), whether it succeeds or not.
        """
        self._collect_garbage()
        block = self._from_driver(bin_, need)
        if block is None and self._release_oversize(bin_, need):
            block = self._from_driver(bin_, need)
        if block is None:
            block = self._lent(bin_, need)
        if block is None:
            self.empty_cache()
            self.counts.num_alloc_retries += 1
            block = self._from_driver(bin_, need)
        return block

    def _lent(self, bin_: Bin, need: int) -> SimulatedBlock | None:
        """Take a free block of a private pool that serves as a last resort."""
        pools = self.last_resorts if bin_.pool == 0 else ()
        bins = (self._bin(pool, bin_.is_large, bin_.stream) for pool in pools)
        return next((block for each in bins if (block := self._found(each, need))), None)

    def _from_driver(self, bin_: Bin, need: int) -> SimulatedBlock | None:
        size = self.settings.segment_size(need)
        # Exceeding the fraction counts like a failed cudaMalloc: the cache is released all the same.
        allowed = self._allowed_bytes()
        if allowed is not None and self.reserved_bytes + size > allowed:
            return None
        if self.settings.expandable_segments:
            return self._expandable.grown(bin_, need)
        if not self.has_room(size):
            return None
        segment = self.new_segment(size, is_expandable=False)
        block = SimulatedBlock(segment.address, size, bin_, segment, segment.tie)
        self.adopt(block)
        self.moved(Action.SEGMENT_ALLOC, (segment.address, size), bin_)
        return block

    def _allowed_bytes(self) -> int | None:
        fraction, total = self.settings.memory_fraction, self.total_bytes
        return None if fraction is None or total is None else int(fraction * total)

    def has_room(self, size: int) -> bool:
        """Whether the driver can give *size* more bytes."""
        return self.capacity_bytes is None or self.reserved_bytes + size <= self.capacity_bytes

    def new_segment(self, size: int, *, is_expandable: bool) -> SimulatedSegment:
        """Reserve address space after all earlier segments."""
        address = self._next_address
        self._next_address += -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
        return SimulatedSegment(
            address, size, self.next_serial(), self._stack_id, is_expandable=is_expandable
        )

    def adopt(self, block: SimulatedBlock) -> None:
        """Register the one block of a new segment."""
        self._heads[block.segment.address] = block

    def forget(self, segment: SimulatedSegment) -> None:
        """Remove a segment from the list of segments."""
        del self._heads[segment.address]

    def moved(self, action: Action, place: tuple[int, int], bin_: Bin) -> None:
        """Account for memory gained from or returned to the driver; *place* is its address and size."""
        address, size = place
        is_gain = action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
        self.reserved_bytes += size if is_gain else -size
        self._emit(action, address, size, size, bin_.stream, bin_.pool)

    def _release_order(self) -> Iterator[list[Bin]]:
        """Yield bins in release order: large before small, default pool first; private pools only without
        owner.
        """
        for pool in (0, *sorted(self._retired_pools)):
            for is_large in (True, False):
                found = [b for b in self._bins.values() if (b.pool, b.is_large) == (pool, is_large)]
                yield sorted(found, key=lambda b: b.stream)

    def _release_unsplit(self, bins: list[Bin]) -> None:
        free = [entry[3] for bin_ in bins for entry in bin_.order]
        for block in free:
            if block.is_whole and not block.segment.is_expandable:
                self._release(block)
        for block in free:
            if block.segment.is_expandable:
                self._expandable.shrink(block)

    def _release(self, block: SimulatedBlock) -> None:
        """Return a whole segment with cudaFree."""
        block.bin.remove(block)
        self.forget(block.segment)
        self.moved(Action.SEGMENT_FREE, (block.address, block.size), block.bin)

    def _release_oversize(self, bin_: Bin, need: int) -> bool:
        """Release unsplittable blocks under ``max_split_size``; return whether they made enough room."""
        limit = self.settings.max_split_size
        if limit == UNLIMITED:
            return False
        target = max(need, limit)
        place = bin_.first_of(target)
        if place < len(bin_.order) and not bin_.order[place][3].segment.is_expandable:
            self._release(bin_.order[place][3])
            return True
        released = 0
        for size, _, _, block in reversed(bin_.order[:place]):
            if released >= target or size < limit:
                break
            if not block.segment.is_expandable:
                released += size
                self._release(block)
        return released >= target

    def _collect_garbage(self) -> None:
        """Above the threshold, release cached large segments that were not reused for a long time.

        Without ``memory_fraction`` torch never collects, whatever the threshold. A block's age is the number
        of searches since it was freed; blocks of at least the mean age are released, then the mean is
        updated.
        """
        allowed, threshold = self._allowed_bytes(), self.settings.garbage_collection_threshold
        if allowed is None or threshold <= 0:
            return
        target = self.reserved_bytes - int(threshold * allowed)
        free = [entry[3] for bin_ in next(self._release_order()) for entry in bin_.order]
        ages = {
            block: self._searches - block.age_base
            for block in free
            if block.is_whole and not block.segment.is_expandable
        }
        while target > 0 and ages:
            mean = sum(ages.values()) / len(ages)
            old = [block for block, age in ages.items() if age >= mean]
            for block in old:
                del ages[block]
                target -= block.size
                self._release(block)
