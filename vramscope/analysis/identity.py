"""Splits the reserved bytes at one instant into parts."""

from dataclasses import dataclass, replace

from vramscope.allocator.levels import inactive_split_bytes
from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis import asking
from vramscope.analysis.private_pools import of_private
from vramscope.analysis.timeline import instant_of
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot


@dataclass(frozen=True, slots=True)
class Identity:
    """The parts in bytes; each byte falls into one, so they sum up to the reserved bytes."""

    instant: int
    requested_bytes: int
    """Bytes that the program requested and still uses."""
    rounding_bytes: int
    """Bytes of blocks in use beyond the requests: internal fragmentation."""
    pending_bytes: int
    """Bytes freed by the program but waiting for another stream."""
    inactive_split_bytes: int
    """Free pieces of segments that are in use elsewhere: external fragmentation."""
    releasable_bytes: int
    """Segments that are entirely free: ``empty_cache()`` returns them."""
    private_pools_bytes: int = 0
    """Free bytes of private pools, which no part before contains: nothing else gets them, and
    ``empty_cache()`` leaves them, while a CUDA graph or MemPool of the pool lives."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments, the sum of the parts."""
        return (
            self.requested_bytes
            + self.rounding_bytes
            + self.pending_bytes
            + self.inactive_split_bytes
            + self.releasable_bytes
            + self.private_pools_bytes
        )

    @property
    def parts(self) -> dict[str, int]:
        """The parts by name; that of private pools where there is one."""
        names = ("requested", "rounding", "pending", "inactive_split", "releasable", "private_pools")
        found = {name: int(getattr(self, f"{name}_bytes")) for name in names}
        return found if self.private_pools_bytes else dict(list(found.items())[:-1])


def identity(recording: Recording, instant: int | None = None) -> Identity:
    """The parts of the reserved bytes at one instant.

    Parameters
    ----------
    instant
        Number of events before the moment; None means the peak of allocated bytes.
    """
    at = instant_of(recording, instant)
    return identity_of(state_from_nearest(recording, at))


def identity_of(state: Snapshot) -> Identity:
    """The parts of a known allocator state."""
    private, _ = of_private(Recording(initial=state))
    found = _of_all_pools(state)
    if private is None:
        return found
    theirs = _of_all_pools(private.initial)
    return replace(
        found,
        inactive_split_bytes=found.inactive_split_bytes - theirs.inactive_split_bytes,
        releasable_bytes=found.releasable_bytes - theirs.releasable_bytes,
        private_pools_bytes=theirs.inactive_split_bytes + theirs.releasable_bytes,
    )


def _of_all_pools(state: Snapshot) -> Identity:
    blocks = state.blocks
    in_use = blocks.state == BlockState.ALLOCATED
    is_free = blocks.state == BlockState.INACTIVE
    split = inactive_split_bytes(state)
    requested = int(blocks.requested_size[in_use].sum())
    return Identity(
        instant=state.event,
        requested_bytes=requested,
        rounding_bytes=int(blocks.size[in_use].sum()) - requested,
        pending_bytes=int(blocks.size[blocks.state == BlockState.PENDING_FREE].sum()),
        inactive_split_bytes=split,
        releasable_bytes=int(blocks.size[is_free].sum()) - split,
    )


ANALYSIS = asking("What do the reserved bytes consist of at one instant?", identity)
