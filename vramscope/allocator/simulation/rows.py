"""Rows of a snapshot of the simulated allocator: segments and blocks."""

from collections.abc import Iterator

from vramscope.allocator.simulation.blocks import SimulatedBlock
from vramscope.model.snapshot import BlockState


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
