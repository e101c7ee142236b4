"""Would so many bytes fit at one instant, and from where would they come?"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.checkpoints import state_from_nearest
from vramscope.allocator.settings import SMALL_LIMIT, SMALL_SEGMENT, Settings
from vramscope.analysis import Analysis
from vramscope.analysis.timeline import instant_of
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.trace import Action


class Origin(str, Enum):
    """Where a block would come from, in the order in which the allocator tries."""

    BLOCK = "block"
    """A cached block: nothing is asked of the driver."""
    NEW_SEGMENT = "new segment"
    """Memory that the driver has still to give."""
    AFTER_RELEASE = "after empty_cache"
    """The driver, once what is releasable went back to it: the device stalls."""
    NOWHERE = "nowhere"
    """Out of memory."""
    UNKNOWN = "unknown"
    """The driver would be asked, and the device's capacity is not known."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer, with the numbers behind it, in bytes."""

    instant: int
    n_bytes: int
    needed: int
    """The block that a request of ``n_bytes`` needs."""
    origin: Origin
    address: int | None
    """Of the cached block."""
    from_driver: int
    """What the driver would be asked for; 0 with a cached block."""
    largest_free: int
    """The largest cached block of this stream and size class."""
    releasable: int
    """What ``empty_cache`` would give back, all streams together."""
    reserved: int
    capacity: int | None
    """What this process may reserve: the device's total, or the fraction of it that was set; None where not
    known. Other processes, and what is not torch's, are not in it."""

    @property
    def fits(self) -> bool | None:
        """Whether the program would get it; None where not known."""
        return None if self.origin is Origin.UNKNOWN else self.origin is not Origin.NOWHERE


def would_fit(
    recording: Recording,
    n_bytes: int | None = None,
    instant: int | None = None,
    stream: int = 0,
    pool: int = 0,
) -> Fit:
    """At *instant*, or at the peak where None; by the allocator's own rules. 0.1 s per million events.

    Without *n_bytes*: the largest request of the recording, as if it came once more.
    """
    asked = _largest_request(recording) if n_bytes is None else n_bytes
    if asked <= 0:
        raise UsageError(f"would {asked} bytes fit? Ask for at least 1 byte")
    at = instant_of(recording, instant)
    process = recording.process
    settings = Settings.from_snapshot(process.allocator, torch=process.torch)
    state = state_from_nearest(recording, at)
    capacity = recording.device.total_bytes or None
    if capacity and settings.memory_fraction is not None:
        capacity = int(capacity * settings.memory_fraction)
    return fit_of(state, asked, settings, (stream, pool), capacity)


def _largest_request(recording: Recording) -> int:
    """Of all that the trace says was asked for; 1 where it says nothing."""
    trace = recording.trace
    is_request = (trace.action == Action.ALLOC) | (trace.action == Action.OOM)
    return max(int(trace.size[is_request].max(initial=1)), 1)


def fit_of(
    state: Snapshot, n_bytes: int, settings: Settings, place: tuple[int, int], capacity: int | None
) -> Fit:
    """The same for a known state; *place* is stream and pool."""
    need = settings.rounded(n_bytes)
    free = _free_blocks(state, place, is_large=need > SMALL_LIMIT)
    size = state.blocks.size[free]
    chosen = free[size >= need][np.argmin(size[size >= need])] if (size >= need).any() else None
    if chosen is not None and not settings.fits(need, int(state.blocks.size[chosen])):
        chosen = None
    releasable, reserved = _releasable(state, settings), int(state.segments.size.sum())
    asked = 0 if chosen is not None else _from_driver(state, free, need, settings)
    return Fit(
        instant=state.event,
        n_bytes=n_bytes,
        needed=need,
        origin=Origin.BLOCK if chosen is not None else _origin(reserved, releasable, asked, capacity),
        address=None if chosen is None else int(state.blocks.address[chosen]),
        from_driver=asked,
        largest_free=int(size.max(initial=0)),
        releasable=releasable,
        reserved=reserved,
        capacity=capacity,
    )


def _origin(reserved: int, releasable: int, asked: int, capacity: int | None) -> Origin:
    if capacity is None:
        return Origin.UNKNOWN
    if reserved + asked <= capacity:
        return Origin.NEW_SEGMENT
    return Origin.AFTER_RELEASE if reserved - releasable + asked <= capacity else Origin.NOWHERE


def _free_blocks(state: Snapshot, place: tuple[int, int], *, is_large: bool) -> NDArray[Any]:
    """Rows of the cached blocks that may serve: streams, pools and size classes never mix."""
    segments, blocks = state.segments, state.blocks
    stream, pool = place
    mine = (segments.stream == stream) & (segments.pool == pool) & (segments.is_large == is_large)
    return np.flatnonzero((blocks.state == BlockState.INACTIVE) & mine[blocks.segment])


def _from_driver(state: Snapshot, free: NDArray[Any], need: int, settings: Settings) -> int:
    """A whole segment; with expandable segments only what is missing behind a free block at a run's end."""
    if not settings.expandable_segments:
        return settings.segment_size(need)
    unit = settings.large_segment_size if need > SMALL_LIMIT else SMALL_SEGMENT
    segments, blocks = state.segments, state.blocks
    ends = blocks.address[free].astype("i8") + blocks.size[free]
    run = blocks.segment[free]
    is_last = ends == segments.address[run].astype("i8") + segments.size[run]
    # Which room is unmapped behind a run is not recorded: the last run is the one that grows.
    behind = int(blocks.size[free][is_last][-1]) if is_last.any() else 0
    return -(-max(need - behind, 0) // unit) * unit


def _releasable(state: Snapshot, settings: Settings) -> int:
    """What empty_cache gives back: free segments whole; of expandable ones, whole units inside free blocks.

    Pending blocks come back too: the allocator waits for their streams first.
    """
    segments, blocks = state.segments, state.blocks
    is_free = blocks.state != BlockState.ALLOCATED
    n_used = np.bincount(blocks.segment[~is_free], minlength=len(segments))
    whole = int(segments.size[(n_used == 0) & ~segments.is_expandable].sum())
    return whole + _releasable_units(state, is_free, settings)


def _releasable_units(state: Snapshot, is_free: NDArray[Any], settings: Settings) -> int:
    segments, blocks = state.segments, state.blocks
    owner = blocks.segment
    # A pending block and its free neighbours are one block once it is back.
    begins = np.flatnonzero(is_free & (np.r_[True, ~is_free[:-1]] | np.r_[True, owner[1:] != owner[:-1]]))
    if not len(begins):
        return 0
    size = np.add.reduceat(np.where(is_free, blocks.size, 0), begins)
    run = owner[begins]
    unit = np.where(segments.is_large[run], settings.large_segment_size, SMALL_SEGMENT)
    offset = blocks.address[begins].astype("i8") - segments.address[run].astype("i8")
    first, last = -(-offset // unit) * unit, (offset + size) // unit * unit
    kept = segments.is_expandable[run]
    return int(np.maximum(last - first, 0)[kept].sum())


ANALYSIS = Analysis(
    "would_fit", "Would so many bytes fit at one instant, and from where would they come?", would_fit
)
