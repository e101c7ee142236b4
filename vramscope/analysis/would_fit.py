"""Whether a request of a given size would fit at one instant, and which memory would serve it."""

from dataclasses import dataclass, replace
from enum import Enum

from vramscope.allocator.settings import SMALL_LIMIT, Settings
from vramscope.allocator.simulation import CachingAllocator, OutOfMemory
from vramscope.allocator.state_index.checkpoints import state_from_nearest
from vramscope.analysis import Analysis
from vramscope.analysis.churn import GAINS, LOSSES
from vramscope.analysis.process_limit import recorded_limit
from vramscope.analysis.recorded_settings import recorded_settings
from vramscope.analysis.timeline import instant_of
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.trace import Action


class BlockSource(str, Enum):
    """The source of a block, in the order in which the allocator tries them."""

    BLOCK = "block"
    """A cached block serves the request; the driver is not asked."""
    NEW_SEGMENT = "new segment"
    """The driver still has enough memory for a new segment."""
    AFTER_RELEASE = "after empty_cache"
    """The driver has enough memory after the cache is released, which stalls the device."""
    NOWHERE = "nowhere"
    """The request runs out of memory."""
    UNKNOWN = "unknown"
    """The driver would be asked, and the capacity of the device is not known."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request would be placed at one instant; all sizes in bytes."""

    instant: int
    """Instant of the state that the request meets."""
    n_bytes: int
    """Bytes requested."""
    needed_bytes: int
    """Size of the block that a request of ``n_bytes`` needs."""
    origin: BlockSource
    """Source of the block."""
    address: int | None
    """Address of the cached block; None if no cached block serves the request."""
    from_driver_bytes: int
    """Bytes that the driver would be asked for; 0 with a cached block."""
    largest_free_bytes: int
    """Size of the largest cached block of this stream and size class."""
    releasable_bytes: int
    """Bytes that ``empty_cache`` would give back, over all streams."""
    reserved_bytes: int
    """Bytes reserved at the instant."""
    capacity_bytes: int | None
    """The most that this process may reserve: the device's total, or the fraction of it that was set; None if
    not known. What other processes and libraries use is not subtracted."""

    @property
    def fits(self) -> bool | None:
        """Whether the request would be served; None if not known."""
        return None if self.origin is BlockSource.UNKNOWN else self.origin is not BlockSource.NOWHERE


def would_fit(
    recording: Recording,
    n_bytes: int | None = None,
    instant: int | None = None,
    stream: int = 0,
    pool: int = 0,
) -> Placement:
    """Place one more request at an instant, by the allocator's own rules; 0.1 s per million events.

    Parameters
    ----------
    n_bytes
        Bytes to request; the largest request of the recording if None.
    instant
        Instant to place it at; the peak of allocated bytes if None.
    stream
        Stream of the request.
    pool
        Memory pool of the request; 0 is the default pool.

    Returns
    -------
    Placement
        The source of the block and the free, releasable and reserved bytes at that instant.

    Raises
    ------
    UsageError
        If *n_bytes* is below 1.
    """
    asked = _largest_request(recording) if n_bytes is None else n_bytes
    if asked <= 0:
        raise UsageError(f"would {asked} bytes fit? Ask for at least 1 byte")
    at = instant_of(recording, instant)
    state = state_from_nearest(recording, at)
    settings = recorded_settings(recording, state)
    capacity = recording.device.total_bytes or None
    if capacity and settings.memory_fraction is not None:
        capacity = int(capacity * settings.memory_fraction)
    limit = recorded_limit(recording)
    if limit is not None:
        capacity = min(capacity, limit) if capacity else limit
    return fit_of(state, asked, settings, (stream, pool), capacity)


def _largest_request(recording: Recording) -> int:
    """Return the largest request of the trace in bytes; 1 if it has none."""
    trace = recording.trace
    is_request = (trace.action == Action.ALLOC) | (trace.action == Action.OOM)
    return max(int(trace.size[is_request].max(initial=1)), 1)


def fit_of(
    state: Snapshot, n_bytes: int, settings: Settings, place: tuple[int, int], capacity: int | None
) -> Placement:
    """Place a request of *n_bytes* in a known state; *place* is its stream and pool."""
    attempt = _Attempt(state, settings, capacity)
    address = attempt.malloc(n_bytes, place)
    origin = attempt.origin(address)
    if capacity is None and origin is BlockSource.NEW_SEGMENT:
        origin = BlockSource.UNKNOWN
    need = settings.rounded(n_bytes)
    return Placement(
        instant=state.event,
        n_bytes=n_bytes,
        needed_bytes=need,
        origin=origin,
        address=address if origin is BlockSource.BLOCK else None,
        from_driver_bytes=attempt.gained
        if address is not None
        else _missing(state, n_bytes, settings, place),
        largest_free_bytes=_largest_free(state, place, is_large=need > SMALL_LIMIT),
        releasable_bytes=_releasable(state, settings),
        reserved_bytes=int(state.segments.size.sum()),
        capacity_bytes=capacity,
    )


class _Attempt:
    """An allocator in a given state that counts the bytes it gets from and returns to the driver."""

    def __init__(self, state: Snapshot, settings: Settings, capacity: int | None) -> None:
        # The capacity is what may be reserved: a fraction is in it already.
        settings = replace(settings, memory_fraction=None)
        self.allocator = CachingAllocator(settings, capacity, self._on_driver_call)
        self.allocator.begin_in(state)
        self.gained = self.released = 0

    def malloc(self, n_bytes: int, place: tuple[int, int]) -> int | None:
        """Return the address of the new block; None if it does not fit."""
        try:
            return self.allocator.malloc(n_bytes, *place)
        except OutOfMemory:
            return None

    def origin(self, address: int | None) -> BlockSource:
        """Return the source of the block at *address*, which has just been allocated."""
        if address is None:
            return BlockSource.NOWHERE
        if self.released:
            return BlockSource.AFTER_RELEASE
        return BlockSource.NEW_SEGMENT if self.gained else BlockSource.BLOCK

    def _on_driver_call(self, action: Action, _address: int, size: int, *_: int) -> None:
        if action in GAINS:
            self.gained += size
        elif action in LOSSES:
            self.released += size


def _missing(state: Snapshot, n_bytes: int, settings: Settings, place: tuple[int, int]) -> int:
    """Return the bytes that the driver would have had to give."""
    attempt = _Attempt(state, settings, None)
    attempt.malloc(n_bytes, place)
    return attempt.gained


def _largest_free(state: Snapshot, place: tuple[int, int], *, is_large: bool) -> int:
    """Return the largest cached block that may serve: streams, pools and size classes never mix."""
    segments, blocks = state.segments, state.blocks
    stream, pool = place
    mine = (segments.stream == stream) & (segments.pool == pool) & (segments.is_large == is_large)
    is_free = (blocks.state == BlockState.INACTIVE) & mine[blocks.segment]
    return int(blocks.size[is_free].max(initial=0))


def _releasable(state: Snapshot, settings: Settings) -> int:
    """Return the bytes that ``empty_cache`` gives back.

    Pending blocks count, since it waits for their streams first. What a private pool keeps while it has an
    owner does not count.
    """
    attempt = _Attempt(state, settings, None)
    attempt.allocator.empty_cache()
    return attempt.released


ANALYSIS = Analysis(
    "would_fit", "Would so many bytes fit at one instant, and from where would they come?", would_fit
)
