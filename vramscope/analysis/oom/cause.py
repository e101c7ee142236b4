"""Why could an allocation not be had, and what would have made room for it?

Every candidate is a number of bytes that were there and could not serve; the cause is the first, in an order
of certainty, that alone would have been enough.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import SMALL_LIMIT, Settings
from vramscope.allocator.state_index.checkpoints import (
    state_from_nearest,
)
from vramscope.analysis.process_limit import recorded_limit
from vramscope.analysis.would_fit import fit_of
from vramscope.model.counters import Counters
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot

_LARGE_SHARE = 0.5
"""A request for more than this share of the device is itself the reason."""
_NOTABLE_SHARE = 0.02
"""Of the device, or of what is reserved: below it pieces, libraries and other programs are not blamed."""
_ORDINARY_SHARE = 0.1
"""Of the device: contexts and libraries may take so much. Of what is reserved: a smaller leak is none."""
_FULL_SHARE = 0.8
"""Of the device: the rest may be the context's, and of others."""
_SOON_NS = 1_000_000_000
_ROUNDING = 0.01
"""Messages give two decimals."""


class Cause(str, Enum):
    """Why a request failed; the words of ``Finding.cause``."""

    CAPACITY = "capacity"
    """What is in use fills the device."""
    FRAGMENTATION = "fragmentation"
    """Enough was free, in pieces."""
    OVERSIZE = "oversize"
    """One request for more than half of the device."""
    LEAK = "leak"
    """Without what had been leaking until then it would have been had."""
    OTHER_PROCESS = "other_process"
    """Without what others hold it would have been had."""
    PRIVATE_POOL = "private_pool"
    """Enough was free in a private pool (a CUDA graph's, a MemPool's), which serves nobody else."""
    OTHER_STREAM = "other_stream"
    """Enough was free or pending, of other streams."""
    SIZE_CLASS = "size_class"
    """Enough was free in segments of the other size class: blocks up to 1 MiB and larger ones share none."""
    OUTSIDE = "outside_torch"
    """Without what lies on the device outside of this allocator; whose it is is not recorded."""
    NON_TORCH_GROWTH = "non_torch_growth"
    """What this process holds outside of torch's allocator has grown by more than was lacking."""
    LIMIT = "limit"
    """The device had room; the fraction that this process may use is set lower."""
    UNKNOWN = "unknown"
    """What is recorded does not say it: not what the driver had, or that it had enough."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where the device's bytes were when a request failed; −1 where not known."""

    need: int
    """The block that was needed."""
    from_driver: int
    """The segment, or the piece of one, that the driver would have had to give for it."""
    allocated: int
    reserved: int
    free_here: int
    """Free blocks that serve such requests: of its stream, pool and size class."""
    largest_here: int
    """The largest of them."""
    free_other_streams: int
    """Free blocks of other streams, and blocks that wait for one, in the same pool and size class."""
    free_private: int
    """Free blocks of other pools."""
    device_free: int
    """Bytes that the driver had."""
    capacity: int
    """Of the device."""
    limit: int
    """What this process may reserve."""
    own_outside: int
    """Of this process, outside of the allocator: context, libraries, NCCL, raw cudaMalloc."""
    own_outside_growth: int
    """Since the first sample at which torch had reserved something."""
    others: int
    """Other processes."""
    leaked: int = 0
    """Allocated, and grown from step to step, see ``leaks``."""
    is_expandable: bool = False
    """Whether the allocator uses expandable segments."""
    free_other_sizes: int = 0
    """Free and pending blocks of the other size class, of any stream, in the same pool."""

    @property
    def outside(self) -> int:
        """All that is on the device and not reserved by this allocator; −1 where not known."""
        if self.device_free < 0 or self.capacity < 0:
            return -1
        return max(self.capacity - self.device_free - self.reserved, 0)

    @property
    def lacking(self) -> int:
        """Bytes that the driver had too few; −1 where not known."""
        return -1 if self.device_free < 0 else max(self.from_driver - self.device_free, 0)

    @property
    def is_limited(self) -> bool:
        """Whether the limit of this process, and not the device, refused the request."""
        asked = self.reserved + self.from_driver
        is_set = 0 <= self.limit < self.capacity
        return self.lacking <= 0 and is_set and self.limit <= (1 + _ROUNDING) * asked

    @property
    def over_limit(self) -> int:
        """Bytes by which the request exceeds the limit of this process; −1 where no limit refused it."""
        return max(self.reserved + self.from_driver - self.limit, 1) if self.is_limited else -1

    @property
    def beside(self) -> int:
        """What this process holds outside of the allocator, where it is more than a context."""
        return self.own_outside if self.own_outside > _ORDINARY_SHARE * max(self.capacity, 0) else 0

    def figures(self) -> dict[str, int]:
        """By name, without what is not known."""
        known = {field.name: int(getattr(self, field.name)) for field in fields(self)}
        known |= {"lacking": self.lacking, "outside": self.outside, "over_limit": self.over_limit}
        return {name: value for name, value in known.items() if value >= 0}


def cause(room: Room) -> Cause:
    """The first that alone would have been enough."""
    lacking = room.lacking
    if room.capacity > 0 and room.from_driver > _LARGE_SHARE * room.capacity:
        return Cause.OVERSIZE
    if room.is_limited:
        # What lies outside of the allocator does not count against the limit.
        return _first_enough(room.over_limit, (_leak_of(room), *_cached_of(room))) or Cause.LIMIT
    if lacking < 0:
        return _without_driver(room)
    if lacking == 0:
        return Cause.UNKNOWN
    device = max(room.capacity, 0)
    candidates = (
        _leak_of(room),
        (Cause.OTHER_PROCESS, room.others, _NOTABLE_SHARE * device),
        (Cause.OUTSIDE, room.outside if room.others < 0 else -1, _ORDINARY_SHARE * device),
        (Cause.NON_TORCH_GROWTH, room.own_outside_growth, _NOTABLE_SHARE * device),
        *_cached_of(room),
    )
    return _first_enough(lacking, candidates) or Cause.CAPACITY


_Candidate = tuple[Cause, int, float]
"""A cause, its bytes, and the least that is worth a word."""


def _leak_of(room: Room) -> _Candidate:
    return Cause.LEAK, room.leaked, _ORDINARY_SHARE * max(room.reserved, 0)


def _cached_of(room: Room) -> tuple[_Candidate, ...]:
    """Free bytes of the allocator's own cache that did not serve the request."""
    least = _NOTABLE_SHARE * max(room.reserved, 0)
    return (
        (Cause.FRAGMENTATION, room.free_here, least),
        (Cause.PRIVATE_POOL, room.free_private, least),
        (Cause.OTHER_STREAM, room.free_other_streams, least),
        (Cause.SIZE_CLASS, room.free_other_sizes, least),
    )


def _first_enough(lacking: int, candidates: Iterable[_Candidate]) -> Cause | None:
    enough = (each for each, n_bytes, least in candidates if n_bytes >= max(lacking, least))
    return next(enough, None)


def _without_driver(room: Room) -> Cause:
    """What the blocks alone say: a snapshot may tell neither capacity nor what the driver had."""
    if room.free_here >= room.need:
        return Cause.FRAGMENTATION
    if room.free_private >= room.need:
        return Cause.PRIVATE_POOL
    # What lacked is at most all that was asked of the driver.
    if room.leaked >= max(room.from_driver, _ORDINARY_SHARE * max(room.reserved, 0)):
        return Cause.LEAK
    is_full = 0 < _FULL_SHARE * room.capacity < room.reserved + room.from_driver
    return Cause.CAPACITY if is_full else Cause.UNKNOWN


# ----------------------------------------------------------------------------------- what was there


def room_at(recording: Recording, event: int, device_free: int, leaked: int = 0) -> Room:
    """When the OOM *event* came; a state is put together.

    *leaked*: what ``leaks`` found to have grown until then.
    """
    trace, process = recording.trace, recording.process
    settings = Settings.from_snapshot(process.allocator, torch=process.torch)
    state = state_from_nearest(recording, event)
    need, place = int(trace.size[event]), (int(trace.stream[event]), int(trace.pool[event]))
    samples = _sample(recording, event)
    capacity = _capacity(recording, samples)
    limit = _limit(recording, settings, capacity)
    fit = fit_of(state, need, settings, place, None)
    free = _free(state, place, is_large=fit.needed > SMALL_LIMIT)
    allocated = int(state.blocks.size[state.blocks.state == BlockState.ALLOCATED].sum())
    outside, growth, others = _outside(samples)
    if outside < 0 and min(capacity, device_free) >= 0:
        # A context is hardly ever of another size a moment later; others may be.
        outside = _outside(_soon_after(recording, event))[0]
        held = capacity - device_free - int(state.segments.size.sum())
        others = max(held - outside, 0) if outside >= 0 else -1
    return Room(
        need=fit.needed,
        # A block that the record says was there did not serve: then a segment was needed all the same.
        from_driver=fit.from_driver or settings.segment_size(fit.needed),
        allocated=allocated,
        reserved=int(state.segments.size.sum()),
        free_here=free.here,
        largest_here=free.largest,
        free_other_streams=free.other_streams,
        free_other_sizes=free.other_sizes,
        free_private=free.private,
        device_free=device_free,
        capacity=capacity,
        limit=limit,
        own_outside=outside,
        own_outside_growth=growth,
        others=others,
        leaked=leaked,
        is_expandable=settings.expandable_segments,
    )


def _capacity(recording: Recording, samples: Counters) -> int:
    """As torch knows it: NVML's total has what the driver keeps for itself too; −1 where not known. Messages
    each have their own."""
    totals = samples.device_total_bytes[samples.device_total_bytes > 0]
    known = [total for total in (*totals[-1:].tolist(), recording.device.total_bytes) if total]
    return min(known, default=-1)


def _limit(recording: Recording, settings: Settings, capacity: int) -> int:
    """What this process may reserve: as a message says it, else by the settings."""
    limit = recorded_limit(recording)
    if limit is not None:
        return limit
    fraction = settings.memory_fraction
    return int(capacity * fraction) if capacity > 0 and fraction is not None else capacity


class _Free(NamedTuple):
    """Free bytes by whom they serve; the names are those of ``Room``."""

    here: int
    largest: int
    other_streams: int
    other_sizes: int
    private: int


def _free(state: Snapshot, place: tuple[int, int], *, is_large: bool) -> _Free:
    """Count the free bytes at *place* (stream, pool) and elsewhere, for a request of that size class."""
    segments, blocks = state.segments, state.blocks
    owner, is_free = blocks.segment, blocks.state == BlockState.INACTIVE
    same_pool = segments.pool[owner] == place[1]
    same_size = same_pool & (segments.is_large[owner] == is_large)
    serves = same_size & (segments.stream[owner] == place[0])
    # Pending blocks wait for another stream, whichever they were allocated on.
    may_serve = is_free | (blocks.state == BlockState.PENDING_FREE)

    def total(rows: NDArray[Any]) -> int:
        return int(blocks.size[rows].sum())

    return _Free(
        here=total(serves & is_free),
        largest=int(blocks.size[serves & is_free].max(initial=0)),
        other_streams=total(same_size & may_serve & ~(serves & is_free)),
        other_sizes=total(same_pool & ~same_size & may_serve),
        private=total(~same_pool & is_free),
    )


def _sample(recording: Recording, event: int) -> Counters:
    """The samples until the failure: by the instant where they tell it, else by the clock."""
    counters, time_ns = recording.counters, int(recording.trace.time_ns[event])
    if (counters.event >= 0).all():
        return counters.rows(counters.event <= event + 1)
    return counters.rows(counters.time_ns <= time_ns)


def _soon_after(recording: Recording, event: int) -> Counters:
    """The first sample after the failure that knows the process: it may have come before the second one."""
    counters, time_ns = recording.counters, int(recording.trace.time_ns[event])
    after = (counters.time_ns > time_ns) & (counters.time_ns <= time_ns + _SOON_NS)
    knows = (counters.process_used_bytes >= 0) & (counters.reserved_bytes >= 0)
    return counters.rows(np.flatnonzero(after & knows)[:1])


def _outside(samples: Counters) -> tuple[int, int, int]:
    """At the last of them: own bytes outside of the allocator, their growth, other processes."""
    process, reserved = samples.process_used_bytes, samples.reserved_bytes
    if not len(samples) or min(process[-1], reserved[-1]) < 0:
        return -1, -1, -1
    known = (process >= 0) & (reserved >= 0)
    outside = np.maximum(process[known] - reserved[known], 0)
    used = int(samples.device_used_bytes[-1])
    others = max(used - int(process[-1]), 0) if used >= 0 else -1
    # CUDA's context is complete once torch has reserved something; before that, what grows is the context.
    has_context = outside[reserved[known] > 0]
    # Samples of moments only are of different programs, perhaps: nothing grows from one to the next.
    growth = int(outside[-1] - has_context[0]) if len(has_context) and samples.time_ns[-1] > 0 else 0
    return int(outside[-1]), max(growth, 0), others
