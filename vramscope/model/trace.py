"""The allocator's events on one device, oldest first."""

from dataclasses import dataclass
from enum import IntEnum

from vramscope.model.table import Array, Int32, Int64, Table, UInt8, UInt64


class Action(IntEnum):
    """What the allocator did; members have torch's names, and files store these values."""

    ALLOC = 0
    FREE_REQUESTED = 1
    """The tensor's storage was freed: allocated bytes fall."""
    FREE_COMPLETED = 2
    """The block returned to the free lists: active and requested bytes fall."""
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    """An allocation failed and the program got an OutOfMemoryError."""
    SNAPSHOT = 8
    """A snapshot was taken; no memory moved."""


@dataclass(frozen=True, slots=True)
class Trace(Table):
    """One row per allocator event.

    *Instant k* of a trace is the state after its first k events: instant 0 is before any event, instant
    ``len(trace)`` the end. Every interval of events is ``[start_event, end_event)``.
    """

    action: UInt8
    """An ``Action``."""
    time_ns: Int64
    """Unix time; all 0 where the source has no clock (torch ≤ 2.1)."""
    address: UInt64
    """Address of the block or segment; 0 for OOM and SNAPSHOT."""
    size: Int64
    """Bytes as torch reports them: requested bytes for ALLOC and FREE_*, segment bytes for SEGMENT_*, the
    rounded request for OOM, active bytes for SNAPSHOT.
    """
    block_size: Int64
    """Bytes of the block (rounding and absorbed remainder included) for ALLOC and FREE_*; segment bytes for
    SEGMENT_*; else 0.
    """
    stream: UInt64
    """Raw cudaStream_t; 0 is the default stream."""
    pool: Int32
    """Index into ``Recording.pools``; 0 is the default pool."""
    stack_id: Int32
    """A stack of ``Recording.stacks``; 0 is the empty stack."""

    @property
    def of_segments(self) -> Array:
        """Whether each event reserves memory or gives it back."""
        return (self.action >= Action.SEGMENT_ALLOC) & (self.action <= Action.SEGMENT_UNMAP)

    @property
    def has_clock(self) -> bool:
        """Whether ``time_ns`` is real."""
        return len(self) > 0 and bool(self.time_ns[-1] > 0)
