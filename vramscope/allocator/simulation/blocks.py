"""The pieces of the predicting allocator: blocks, segments, free lists, and the rows of its snapshot.

Best fit means the smallest sufficient block among the free blocks of one pool, size class and stream.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from vramscope.model.snapshot import BlockState


class SimulatedBlock:
    """A piece of a segment, linked to its neighbors there. Addresses and sizes in bytes."""

    __slots__ = (
        "address", "age_base", "bin", "is_mapped", "is_pending", "is_used", "next", "prev",
        "requested_size", "segment", "size", "stack_id", "tie", "users",
    )  # fmt: skip

    def __init__(self, address: int, size: int, bin_: "Bin", segment: "SimulatedSegment", tie: int) -> None:
        self.address = address
        self.size = size
        self.bin = bin_
        self.segment = segment
        self.tie = tie
        """The order among equally large free blocks."""
        self.prev: SimulatedBlock | None = None
        self.next: SimulatedBlock | None = None
        self.is_used = False
        self.is_pending = False
        """Freed by the program, still used by another stream."""
        self.is_mapped = True
        self.requested_size = 0
        self.stack_id = 0
        self.users: frozenset[int] = frozenset()
        """Other streams that use it. A shared frozenset, because nearly all blocks have none."""
        self.age_base = 0
        """Searches of the default large pool until it was freed."""

    @property
    def is_free(self) -> bool:
        """Whether neighbors may merge with it."""
        return not (self.is_used or self.is_pending)

    @property
    def is_whole(self) -> bool:
        """Whether it covers its whole segment."""
        return self.prev is None and self.next is None

    def cut(self, size: int, tie: int) -> "SimulatedBlock":
        """Turn the first *size* bytes into a new block with order *tie*; this block keeps the rest."""
        front = SimulatedBlock(self.address, size, self.bin, self.segment, tie)
        front.is_mapped = self.is_mapped
        front.prev, front.next = self.prev, self
        if self.prev is not None:
            self.prev.next = front
        self.prev = front
        self.address += size
        self.size -= size
        return front

    def absorb(self, other: "SimulatedBlock") -> None:
        """Merge a neighbor into this block."""
        if other is self.prev:
            self.address = other.address
            self.prev = other.prev
            if self.prev is not None:
                self.prev.next = self
        else:
            self.next = other.next
            if self.next is not None:
                self.next.prev = self
        self.size += other.size


class SimulatedSegment:
    """Memory of one cudaMalloc, or the address space that one expandable segment may grow into."""

    __slots__ = ("address", "is_expandable", "size", "stack_id", "tie")

    def __init__(self, address: int, size: int, tie: int, stack_id: int, *, is_expandable: bool) -> None:
        self.address = address
        self.size = size
        self.tie = tie
        self.stack_id = stack_id
        self.is_expandable = is_expandable


class Bin:
    """The free blocks of one pool, size class and stream, in search order."""

    __slots__ = ("is_large", "order", "pool", "stream", "unmapped")

    def __init__(self, pool: int, stream: int, *, is_large: bool) -> None:
        self.pool = pool
        self.stream = stream
        self.is_large = is_large
        self.order: list[tuple[int, int, int, SimulatedBlock]] = []
        """Tuples of (size, tie, address, block): addresses differ, so blocks are never compared."""
        self.unmapped: list[tuple[int, SimulatedBlock]] = []
        """Address space of expandable segments without memory, by address."""

    def add(self, block: SimulatedBlock) -> None:
        """Insert a free block into the search order."""
        insort(self.order, (block.size, block.tie, block.address, block))

    def remove(self, block: SimulatedBlock) -> None:
        """Remove a free block from the search order."""
        del self.order[bisect_left(self.order, (block.size, block.tie, block.address))]

    def first_of(self, size: int) -> int:
        """The index of the smallest block of at least *size* bytes."""
        return bisect_left(self.order, (size,))

    def add_unmapped(self, block: SimulatedBlock) -> None:
        """Insert an unmapped block, ordered by address."""
        insort(self.unmapped, (block.address, block))

    def remove_unmapped(self, block: SimulatedBlock) -> None:
        """Remove an unmapped block from the address space."""
        del self.unmapped[bisect_left(self.unmapped, (block.address,))]


def mapped_runs(head: SimulatedBlock) -> Iterator[list[SimulatedBlock]]:
    """The blocks of a segment; for an expandable one, each contiguous run of mapped blocks."""
    run: list[SimulatedBlock] = []
    block: SimulatedBlock | None = head
    while block is not None:
        if block.is_mapped:
            run.append(block)
        elif run:
            yield run
            run = []
        block = block.next
    if run:
        yield run


def segment_row(run: list[SimulatedBlock]) -> tuple[int, ...]:
    """The row of a segment, or of a run of mapped blocks."""
    first = run[0]
    bin_, segment = first.bin, first.segment
    size = sum(block.size for block in run)
    kind = (bin_.is_large, segment.is_expandable)
    return (first.address, size, bin_.stream, bin_.pool, *kind, segment.stack_id)


def block_row(segment: int, block: SimulatedBlock) -> tuple[int, ...]:
    """The row of a block in the segment of that number."""
    if not block.is_used:
        return (segment, block.address, block.size, 0, BlockState.INACTIVE, 0)
    state = BlockState.PENDING_FREE if block.is_pending else BlockState.ALLOCATED
    return (segment, block.address, block.size, block.requested_size, state, block.stack_id)
