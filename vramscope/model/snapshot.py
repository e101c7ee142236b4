"""The allocator's whole state at one moment."""

from dataclasses import dataclass, field
from enum import IntEnum

from vramscope.model.table import Array, Bool, Int32, Int64, Table, UInt8, UInt64


class BlockState(IntEnum):
    """Whether a block serves a tensor; files store these values."""

    ALLOCATED = 0
    """torch: active_allocated."""
    PENDING_FREE = 1
    """The program freed the block, which waits for another stream. torch: active_pending_free."""
    INACTIVE = 2


@dataclass(frozen=True, slots=True)
class Segments(Table):
    """Memory that the allocator reserves: one row per cudaMalloc, or per contiguous mapped range of an
    expandable segment. Sorted by address."""

    address: UInt64
    size: Int64
    """Bytes."""
    stream: UInt64
    pool: Int32
    """Index into ``Recording.pools``."""
    is_large: Bool
    """Whether it belongs to the large pool (rounded requests above 1 MiB)."""
    is_expandable: Bool
    stack_id: Int32


@dataclass(frozen=True, slots=True)
class Blocks(Table):
    """The pieces of the segments, ordered by segment and address; they tile their segments without gaps."""

    segment: Int32
    """Row of ``Segments``."""
    address: UInt64
    size: Int64
    """Bytes."""
    requested_size: Int64
    """Bytes that the program requested; 0 for an inactive block (torch's value is stale there)."""
    state: UInt8
    """A ``BlockState``."""
    stack_id: Int32
    """The stack that allocated the block; 0 where inactive or unknown."""

    @property
    def in_use(self) -> Array:
        """Whether each block serves a tensor, or waits for another stream after it did."""
        return self.state != BlockState.INACTIVE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Segments and blocks at one instant of a trace."""

    event: int = 0
    """The instant: the state after this many events of the trace."""
    time_ns: int = 0
    segments: Segments = field(default_factory=Segments.of)
    blocks: Blocks = field(default_factory=Blocks.of)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return int(self.segments.size.sum())
