"""What do the reserved bytes consist of at one instant?"""

from dataclasses import dataclass

import numpy as np

from vramscope.allocator.state_index.checkpoints import (
    state_from_nearest,
)
from vramscope.analysis import Analysis
from vramscope.analysis.timeline import instant_of
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot


@dataclass(frozen=True, slots=True)
class Identity:
    """Five parts in bytes; each block falls into one, so they sum up to what is reserved."""

    instant: int
    requested: int
    """What the program asked for and still uses."""
    rounding: int
    """What the blocks in use are larger: internal fragmentation."""
    pending: int
    """Freed, but waiting for another stream."""
    inactive_split: int
    """Free pieces of segments that are in use elsewhere: external fragmentation."""
    releasable: int
    """Segments wholly free: ``empty_cache()`` gives them back."""

    @property
    def reserved(self) -> int:
        """All segments together."""
        return self.requested + self.rounding + self.pending + self.inactive_split + self.releasable

    @property
    def parts(self) -> dict[str, int]:
        """The five by name."""
        names = ("requested", "rounding", "pending", "inactive_split", "releasable")
        return {name: getattr(self, name) for name in names}


def identity(recording: Recording, instant: int | None = None) -> Identity:
    """At *instant*, or at the peak where None. Replays nothing: what lives then is where it was put."""
    at = instant_of(recording, instant)
    return identity_of(state_from_nearest(recording, at))


def identity_of(state: Snapshot) -> Identity:
    """The parts of a known state."""
    blocks = state.blocks
    in_use = blocks.state == BlockState.ALLOCATED
    is_free = blocks.state == BlockState.INACTIVE
    busy = np.zeros(len(state.segments), dtype="?")
    busy[blocks.segment[~is_free]] = True
    is_split = is_free & busy[blocks.segment]
    requested = int(blocks.requested_size[in_use].sum())
    return Identity(
        instant=state.event,
        requested=requested,
        rounding=int(blocks.size[in_use].sum()) - requested,
        pending=int(blocks.size[blocks.state == BlockState.PENDING_FREE].sum()),
        inactive_split=int(blocks.size[is_split].sum()),
        releasable=int(blocks.size[is_free & ~is_split].sum()),
    )


ANALYSIS = Analysis("identity", "What do the reserved bytes consist of at one instant?", identity)
