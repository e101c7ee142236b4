"""The allocator's whole state at one moment."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

from numpy.typing import NDArray

from vramscope.model.table import Table


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

    DTYPES: ClassVar = {
        "address": "u8",
        "size": "i8",
        "stream": "u8",
        "pool": "i4",
        "is_large": "?",
        "is_expandable": "?",
        "stack_id": "i4",
    }

    address: NDArray[Any]
    size: NDArray[Any]
    """Bytes."""
    stream: NDArray[Any]
    pool: NDArray[Any]
    """Index into ``Recording.pools``."""
    is_large: NDArray[Any]
    """Whether it belongs to the large pool (rounded requests above 1 MiB)."""
    is_expandable: NDArray[Any]
    stack_id: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Blocks(Table):
    """The pieces of the segments, ordered by segment and address; they tile their segments without gaps."""

    DTYPES: ClassVar = {
        "segment": "i4",
        "address": "u8",
        "size": "i8",
        "requested_size": "i8",
        "state": "u1",
        "stack_id": "i4",
    }

    segment: NDArray[Any]
    """Row of ``Segments``."""
    address: NDArray[Any]
    size: NDArray[Any]
    """Bytes."""
    requested_size: NDArray[Any]
    """Bytes that the program requested; 0 for an inactive block (torch's value is stale there)."""
    state: NDArray[Any]
    """A ``BlockState``."""
    stack_id: NDArray[Any]
    """The stack that allocated the block; 0 where inactive or unknown."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Segments and blocks at one instant of a trace."""

    event: int = 0
    """The instant: the state after this many events of the trace."""
    time_ns: int = 0
    segments: Segments = field(default_factory=Segments.of)
    blocks: Blocks = field(default_factory=Blocks.of)
