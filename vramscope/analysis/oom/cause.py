"""Finds why an allocation failed, and what would have made room for it.

Every candidate is a number of bytes that existed but could not serve the request. The cause is the first
candidate, in order of certainty, that alone would have been enough.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from vramscope.allocator.settings import SMALL_LIMIT, Settings
from vramscope.allocator.simulation import CachingAllocator, OutOfMemory
from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis.churn import GAINS
from vramscope.analysis.oom.outside import outside_at, samples_until
from vramscope.analysis.recorded_settings import recorded_limit
from vramscope.model.codes import Code
from vramscope.model.counters import Counters
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.table import Array
from vramscope.model.trace import Action

_LARGE_SHARE = 0.5
"""A request for more than this share of the device is itself the reason."""
_NOTABLE_SHARE = 0.02
"""Share of the device, or of reserved memory, below which free pieces, libraries and others are no cause."""
_ORDINARY_SHARE = 0.1
"""Share of the device that contexts and libraries usually take; share of reserved memory below which a leak
is no cause."""
_FULL_SHARE = 0.8
"""Share of the device above which it counts as full: context and other processes may take the rest."""
_LARGER_INPUTS = 1.2
"""Ratio of inputs to those of the steps before from which on they are larger."""
_ROUNDING = 0.01
"""Relative rounding error of a limit: messages give two decimals."""


class Cause(Code):
    """Why a request failed; the words of ``Finding.cause``."""

    CAPACITY = "capacity"
    FRAGMENTATION = "fragmentation"
    OVERSIZE = "oversize"
    LEAK = "leak"
    OTHER_PROCESS = "other_process"
    PRIVATE_POOL = "private_pool"
    OTHER_STREAM = "other_stream"
    SIZE_CLASS = "size_class"
    OUTSIDE = "outside_torch"
    NON_TORCH_GROWTH = "non_torch_growth"
    LIMIT = "limit"
    LARGER_STEP = "larger_step"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Room:
    """The distribution of the device's bytes when a request failed; −1 for what is not known."""

    need_bytes: int
    """Size of the block that was needed."""
    from_driver_bytes: int
    """Size of the segment, or of the piece of one, that the driver would have had to give for it."""
    allocated_bytes: int
    """Bytes allocated at the failure."""
    reserved_bytes: int
    """Bytes reserved at the failure."""
    free_here_bytes: int
    """Bytes of free blocks that serve such requests: of its stream, pool and size class."""
    largest_here_bytes: int
    """Size of the largest of these blocks."""
    free_other_streams_bytes: int
    """Free bytes of other streams, and bytes pending on a stream, in the same pool and size class."""
    free_private_bytes: int
    """Free bytes of other pools."""
    device_free_bytes: int
    """Free bytes of the driver."""
    capacity_bytes: int
    """Size of the device."""
    limit_bytes: int
    """The most that this process may reserve."""
    own_outside_bytes: int
    """Bytes of this process outside of the allocator: context, libraries, NCCL, raw cudaMalloc."""
    own_outside_growth_bytes: int
    """Growth of ``own_outside_bytes`` since the first sample at which torch had reserved something."""
    others_bytes: int
    """Bytes of other processes."""
    leaked_bytes: int = 0
    """Allocated bytes that grew from step to step, see ``leaks``."""
    is_expandable: bool = False
    """Whether the allocator uses expandable segments."""
    free_other_sizes_bytes: int = 0
    """Free and pending blocks of the other size class, of any stream, in the same pool."""
    before_bytes: int = -1
    """The most that was allocated before this step; −1 in the first steps, and outside of steps."""
    inputs_bytes: int = -1
    """Bytes of this step's inputs."""
    inputs_before_bytes: int = -1
    """Bytes of inputs when ``before_bytes`` were allocated."""

    @property
    def outside_bytes(self) -> int:
        """Bytes used on the device that this allocator has not reserved; −1 if not known."""
        if min(self.device_free_bytes, self.capacity_bytes, self.reserved_bytes) < 0:
            return -1
        return max(self.capacity_bytes - self.device_free_bytes - self.reserved_bytes, 0)

    @property
    def unattributed_bytes(self) -> int:
        """Bytes outside of the allocator that no sample attributes to a process; −1 if not known."""
        seen = max(self.own_outside_bytes, 0) + max(self.others_bytes, 0)
        return -1 if self.outside_bytes < 0 else max(self.outside_bytes - seen, 0)

    @property
    def lacking_bytes(self) -> int:
        """Bytes that the driver lacked; −1 if not known."""
        return -1 if self.device_free_bytes < 0 else max(self.from_driver_bytes - self.device_free_bytes, 0)

    @property
    def larger_bytes(self) -> int:
        """Bytes that this step needs beyond the most that was allocated before it; −1 if not known."""
        return self.allocated_bytes + self.need_bytes - self.before_bytes if self.before_bytes > 0 else -1

    @property
    def is_of_larger_inputs(self) -> bool:
        """Whether this step's inputs are larger than those of the steps before."""
        return 0 < _LARGER_INPUTS * self.inputs_before_bytes <= self.inputs_bytes

    @property
    def is_limited(self) -> bool:
        """Whether the limit of this process, and not the device, refused the request."""
        asked = self.reserved_bytes + self.from_driver_bytes
        is_set = 0 <= self.limit_bytes < self.capacity_bytes
        return self.lacking_bytes <= 0 and is_set and self.limit_bytes <= (1 + _ROUNDING) * asked

    @property
    def over_limit_bytes(self) -> int:
        """Bytes by which the request exceeds the limit of this process; −1 if no limit refused it."""
        return (
            max(self.reserved_bytes + self.from_driver_bytes - self.limit_bytes, 1) if self.is_limited else -1
        )

    @property
    def beside_bytes(self) -> int:
        """Bytes of this process outside of the allocator, if more than a usual context; else 0."""
        return (
            self.own_outside_bytes
            if self.own_outside_bytes > _ORDINARY_SHARE * max(self.capacity_bytes, 0)
            else 0
        )

    def figures(self) -> dict[str, int]:
        """Return the known figures by name."""
        known = {field.name.removesuffix("_bytes"): int(getattr(self, field.name)) for field in fields(self)}
        known |= {
            "lacking": self.lacking_bytes,
            "outside": self.outside_bytes,
            "unattributed": self.unattributed_bytes,
            "over_limit": self.over_limit_bytes,
        }
        return {name: value for name, value in known.items() if value >= 0}


def cause(room: Room) -> Cause:
    """Return the first cause that alone would have been enough."""
    lacking = room.lacking_bytes
    if room.capacity_bytes > 0 and room.from_driver_bytes > _LARGE_SHARE * room.capacity_bytes:
        return Cause.OVERSIZE
    if room.reserved_bytes < 0:
        return Cause.UNKNOWN
    if room.is_limited:
        # Memory outside of the allocator does not count against the limit.
        return _first_enough(room.over_limit_bytes, (_leak_of(room), *_cached_of(room))) or Cause.LIMIT
    if lacking < 0:
        return _without_driver(room)
    if lacking == 0:
        return Cause.UNKNOWN
    device = max(room.capacity_bytes, 0)
    candidates = (
        _leak_of(room),
        (Cause.OTHER_PROCESS, room.others_bytes, _NOTABLE_SHARE * device),
        (Cause.NON_TORCH_GROWTH, room.own_outside_growth_bytes, _NOTABLE_SHARE * device),
        _unattributed_of(room),
        *_cached_of(room),
    )
    return _first_enough(lacking, candidates) or Cause.CAPACITY


_Candidate = tuple[Cause, int, float]
"""A cause, its bytes, and the fewest bytes from which on it counts."""


def _leak_of(room: Room) -> _Candidate:
    return Cause.LEAK, room.leaked_bytes, _ORDINARY_SHARE * max(room.reserved_bytes, 0)


def _unattributed_of(room: Room) -> _Candidate:
    """Return the candidate of no party: what either may have taken, with what is known of the larger one."""
    share = _NOTABLE_SHARE if room.own_outside_bytes >= 0 else _ORDINARY_SHARE  # with the context
    is_notable = room.unattributed_bytes >= share * max(room.capacity_bytes, 0)
    seen = max(room.others_bytes, room.own_outside_growth_bytes, 0)
    return Cause.OUTSIDE, room.unattributed_bytes + seen if is_notable else -1, 0


def _cached_of(room: Room) -> tuple[_Candidate, ...]:
    """Return the candidates in the allocator's own cache: free bytes that did not serve the request."""
    least = _NOTABLE_SHARE * max(room.reserved_bytes, 0)
    # Had the pieces served this request, a step that needs so much more would have failed at a later one.
    larger = room.larger_bytes if room.larger_bytes > room.free_here_bytes else -1
    return (
        (Cause.LARGER_STEP, larger, _ORDINARY_SHARE * max(room.reserved_bytes, 0)),
        (Cause.FRAGMENTATION, room.free_here_bytes, least),
        (Cause.PRIVATE_POOL, room.free_private_bytes, least),
        (Cause.OTHER_STREAM, room.free_other_streams_bytes, least),
        (Cause.SIZE_CLASS, room.free_other_sizes_bytes, least),
    )


def _first_enough(lacking: int, candidates: Iterable[_Candidate]) -> Cause | None:
    enough = (each for each, n_bytes, least in candidates if n_bytes >= max(lacking, least))
    return next(enough, None)


def _without_driver(room: Room) -> Cause:
    """Return the cause from the blocks alone: a snapshot may lack capacity and the driver's free bytes."""
    if room.free_here_bytes >= room.need_bytes:
        return Cause.FRAGMENTATION
    if room.free_private_bytes >= room.need_bytes:
        return Cause.PRIVATE_POOL
    # At most the whole segment was lacking.
    if room.leaked_bytes >= max(room.from_driver_bytes, _ORDINARY_SHARE * max(room.reserved_bytes, 0)):
        return Cause.LEAK
    is_full = 0 < _FULL_SHARE * room.capacity_bytes < room.reserved_bytes + room.from_driver_bytes
    return Cause.CAPACITY if is_full else Cause.UNKNOWN


def room_at(recording: Recording, event: int, device_free: int, **known: int) -> Room:
    """Return the distribution of the device's bytes at the failure *event*.

    *device_free* is the driver's free bytes, −1 if not known; *known* are other fields of the room.
    """
    trace, process = recording.trace, recording.process
    settings = Settings.from_snapshot(process.allocator, torch=process.torch)
    state = state_from_nearest(recording, event)
    asked, place = int(trace.size[event]), (int(trace.stream[event]), int(trace.pool[event]))
    need = settings.rounded(asked)
    capacity = _capacity(recording, samples_until(recording, event))
    limit = _limit(recording, settings, capacity)
    allocated = int(state.blocks.size[state.blocks.state == BlockState.ALLOCATED].sum())
    is_measured = min(capacity, device_free) >= 0
    held = max(capacity - device_free - state.reserved_bytes, 0) if is_measured else -1
    outside = outside_at(recording, event, held)
    return Room(
        need_bytes=need,
        # If a recorded free block did not serve the request, a segment was needed all the same.
        from_driver_bytes=_from_driver(state, asked, settings, place) or settings.segment_size(need),
        allocated_bytes=allocated,
        reserved_bytes=state.reserved_bytes,
        **_free(state, place, is_large=need > SMALL_LIMIT),
        device_free_bytes=device_free,
        capacity_bytes=capacity,
        limit_bytes=limit,
        own_outside_bytes=outside.own_bytes,
        own_outside_growth_bytes=outside.growth_bytes,
        others_bytes=outside.others_bytes,
        is_expandable=settings.expandable_segments,
        **known,
    )


def _from_driver(state: Snapshot, n_bytes: int, settings: Settings, place: tuple[int, int]) -> int:
    """Return the bytes that the driver, had it enough, would give for a request in a known state."""
    gained: list[int] = []

    def on_driver_call(action: Action, _address: int, size: int, *_: int) -> None:
        if action in GAINS:
            gained.append(size)

    allocator = CachingAllocator(replace(settings, memory_fraction=None), None, on_driver_call)
    allocator.begin_in(state)
    with suppress(OutOfMemory):  # of addresses, in expandable segments
        allocator.malloc(n_bytes, *place)
    return sum(gained)


def _capacity(recording: Recording, samples: Counters) -> int:
    """Return the device's size as torch reports it; −1 if not known.

    NVML's total includes the driver's own reserve, so the least known total counts. Each message has its own.
    """
    totals = samples.device_total_bytes[samples.device_total_bytes > 0]
    known = [total for total in (*totals[-1:].tolist(), recording.device.total_bytes) if total]
    return min(known, default=-1)


def _limit(recording: Recording, settings: Settings, capacity: int) -> int:
    """Return the most that this process may reserve: from a message, else from the settings."""
    limit = recorded_limit(recording)
    if limit is not None:
        return limit
    fraction = settings.memory_fraction
    return int(capacity * fraction) if capacity > 0 and fraction is not None else capacity


def without_totals(room: Room) -> Room:
    """Return *room* where nobody says what was allocated and reserved, nor what was free in the cache."""
    names = [field.name for field in fields(room) if field.name.startswith("free_")]
    names += ["allocated_bytes", "reserved_bytes", "largest_here_bytes", "others_bytes"]
    unknown: dict[str, Any] = dict.fromkeys(names, -1)
    return replace(room, **unknown)


def _free(state: Snapshot, place: tuple[int, int], *, is_large: bool) -> dict[str, int]:
    """Count the bytes free at *place* (stream, pool) and elsewhere for a size class, named as in ``Room``."""
    segments, blocks = state.segments, state.blocks
    owner, is_free = blocks.segment, blocks.state == BlockState.INACTIVE
    same_pool = segments.pool[owner] == place[1]
    same_size = same_pool & (segments.is_large[owner] == is_large)
    serves = same_size & (segments.stream[owner] == place[0])
    # Pending blocks wait for another stream, whichever they were allocated on.
    may_serve = is_free | (blocks.state == BlockState.PENDING_FREE)

    def total(rows: Array) -> int:
        return int(blocks.size[rows].sum())

    return {
        "free_here_bytes": total(serves & is_free),
        "largest_here_bytes": int(blocks.size[serves & is_free].max(initial=0)),
        "free_other_streams_bytes": total(same_size & may_serve & ~(serves & is_free)),
        "free_other_sizes_bytes": total(same_pool & ~same_size & may_serve),
        "free_private_bytes": total(~same_pool & is_free),
    }
