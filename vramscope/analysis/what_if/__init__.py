"""What the same requests would have needed under other settings, or on another device.

The recorded requests and frees are replayed in order through the model of the caching allocator. What the
allocator and the driver did in the recording is ignored, except ``empty_cache``, which the program calls
itself. The replay does not foresee a program that would do something else under other settings.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np

from vramscope.allocator.settings import Settings
from vramscope.allocator.simulation import CachingAllocator, OutOfMemory
from vramscope.analysis import asking
from vramscope.analysis.churn import GAINS, LOSSES, for_a_request, release_events
from vramscope.analysis.folding import passes_through
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.recorded_settings import recorded_settings
from vramscope.analysis.what_if.earlier_state import EarlierState, begin, earlier_state
from vramscope.analysis.what_if.epochs import ends_of_epochs
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.table import Array, EqualByValue
from vramscope.model.trace import Action

_SOME_STREAM = 1 << 63
"""A stand-in stream: which stream a block waits for is not recorded, and does not matter."""
_ROWS_AT_ONCE = 1 << 14
_N_POINTS = 1000
"""The number of points of the curve over time."""
BETWEEN: ContextVar[Callable[[], object]] = ContextVar("between", default=lambda: None)
"""Called some thousand times in each replay of a thread: one in the background rests there."""


class AllocatorOp(IntEnum):
    """An operation that a program performs on the allocator."""

    REQUEST = 0
    FREE = 1
    FREE_LATER = 2
    """The program frees the block while another stream still uses it."""
    FINISH = 3
    """That stream has finished with the block."""
    EMPTY_CACHE = 4
    REFUSED = 5
    """A request that failed in the recording."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestSequence:
    """The operations that a recorded program performed, without what the allocator did in response.

    All arrays have shape ``(n_ops,)``.
    """

    op: Array
    row: Array
    """Row of the allocation in ``lifetimes``; −1 for EMPTY_CACHE and REFUSED."""
    event: Array
    """Event of the trace; −1 for blocks that were allocated before it."""
    size: Array
    """Bytes that each op requests; 0 for an op that requests none."""
    stream: Array
    pool: Array
    settings: Settings
    """The allocator settings of the recording."""
    earlier: EarlierState | None = None
    """The state before the first event; None if that is empty, or contradicts itself."""

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True)
class ReplayResult(EqualByValue):
    """The result of replaying a request sequence under some settings."""

    settings: Settings
    capacity_bytes: int | None
    """The most that the allocator could reserve; None for no limit."""
    peak_reserved_bytes: int
    """The most that was reserved at any moment."""
    peak_allocated_bytes: int
    """The most that was allocated at any moment."""
    n_segments: int
    """How often the driver gave memory: cudaMalloc, or a mapping."""
    n_retries: int
    """How often the whole cache was released because a request did not fit; each time stalls the device."""
    failed_at: int | None = None
    """Event of the first request that does not fit; None if all requests fit."""
    failed_bytes: int = 0
    """Size of that request; 0 if all requests fit."""
    failed_requested_bytes: int = 0
    """Bytes that the program had requested and held when that request failed."""
    n_mappings: int = 0
    """How many of ``n_segments`` mapped memory into an expandable segment, without cudaMalloc."""
    events: Array = field(default_factory=lambda: np.zeros(0, "i8"))
    """Events at which the curve of reserved bytes is sampled, shape ``(n_points,)``."""
    reserved_bytes: Array = field(default_factory=lambda: np.zeros(0, "i8"))
    """Reserved bytes after each of ``events``, shape ``(n_points,)``."""

    @property
    def fits(self) -> bool:
        """Whether every request was served."""
        return self.failed_at is None


def what_if(
    recording: Recording,
    conf: str | None = None,
    capacity_bytes: int | None = None,
    empty_cache_after: str = "",
    total_bytes: int | None = None,
    memory_fraction: float | None = None,
) -> ReplayResult:
    """Replay the recorded requests under other allocator settings; takes 2 to 3 s per million events.

    Parameters
    ----------
    conf
        Text of ``PYTORCH_CUDA_ALLOC_CONF``; the settings of the recording if None.
    capacity_bytes
        The most that the allocator can reserve; no limit if None.
    empty_cache_after
        ``"step"`` or ``"epoch"``: call ``empty_cache`` after each one; never if empty.
    total_bytes
        Size of the device, which memory fractions refer to; see ``device_total`` if None.
    memory_fraction
        Fraction as in ``set_per_process_memory_fraction``.

    Raises
    ------
    UsageError
        If torch would refuse *conf*, or no steps or epochs are known to empty the cache after.
    """
    program = emptied_after(request_sequence(recording), recording, empty_cache_after)
    settings = program.settings
    if conf is not None:
        settings = Settings.from_conf(conf, torch=recording.process.torch)
    if memory_fraction is not None:
        settings = replace(settings, memory_fraction=memory_fraction)
    return replay(program, settings, capacity_bytes, device_total(recording, capacity_bytes, total_bytes))


def device_total(recording: Recording, capacity_bytes: int | None, total_bytes: int | None) -> int | None:
    """Return the device size that memory fractions and expandable segments' address space refer to.

    It is *total_bytes*, else *capacity_bytes*, else the size of the recorded device; None if none is known.
    """
    return total_bytes or capacity_bytes or recording.device.total_bytes or None


def request_sequence(recording: Recording) -> RequestSequence:
    """Return requests, frees and ``empty_cache`` calls in order.

    Blocks that were allocated before the trace come first, by address.
    """
    found = lifetimes(recording)
    op, row, event = _ops(recording, found)
    is_request, refused, columns = op == AllocatorOp.REQUEST, op == AllocatorOp.REFUSED, {}
    for name in ("size", "stream", "pool"):
        columns[name] = np.where(is_request, np.append(getattr(found, name), 0)[row], 0)
        columns[name][refused] = getattr(recording.trace, name)[event[refused]]
    settings, earlier = recorded_settings(recording, recording.initial), earlier_state(recording, found)
    return RequestSequence(op, row, event, **columns, settings=settings, earlier=earlier)


def _ops(recording: Recording, found: Allocations) -> tuple[Array, Array, Array]:
    """Return ops in order, their allocations and events; blocks from before the trace first, by address."""
    rows = np.arange(len(found))
    older = found.alloc_event < 0
    freed = found.free_event >= 0
    at_once = found.completed_event == found.free_event + 1
    # If only one of the two frees was recorded, the block is free at once.
    at_once |= (found.completed_event < 0) | (found.completed_event == found.free_event)
    waits = freed & ~at_once
    # Only a record that contradicts itself completes a free before the program requests it.
    waits_on = waits & (found.completed_event > found.free_event)
    finished = (found.completed_event >= 0) & (waits_on | (found.free_event == -2))
    emptied_at = _empty_cache_events(recording)
    refused_at = np.flatnonzero(recording.trace.action == Action.OOM)
    parts = [
        (AllocatorOp.REQUEST, rows[~older], found.alloc_event[~older]),
        (AllocatorOp.FREE, rows[freed & at_once], found.free_event[freed & at_once]),
        (AllocatorOp.FREE_LATER, rows[waits], found.free_event[waits]),
        (AllocatorOp.FINISH, rows[finished], found.completed_event[finished]),
        (AllocatorOp.EMPTY_CACHE, np.full(len(emptied_at), -1), emptied_at),
        (AllocatorOp.REFUSED, np.full(len(refused_at), -1), refused_at),
    ]
    before = rows[older][np.argsort(found.address[older], kind="stable")]
    pending = before[found.free_event[before] == -2]
    first = [(AllocatorOp.REQUEST, before), (AllocatorOp.FREE_LATER, pending)]
    op = np.concatenate([np.full(len(part[1]), part[0]) for part in parts])
    row, event = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    order = np.argsort(event, kind="stable")
    return (
        np.concatenate([*(np.full(len(mine), what) for what, mine in first), op[order]]),
        np.concatenate([*(mine for _, mine in first), row[order]]),
        np.concatenate([*(np.full(len(mine), -1) for _, mine in first), event[order]]),
    )


def _empty_cache_events(recording: Recording) -> Array:
    """Return the events that begin an ``empty_cache``: releases without a shortage of memory."""
    action, stack_id = recording.trace.action, recording.trace.stack_id
    is_release = np.isin(action, LOSSES)
    begins = np.flatnonzero(is_release & ~np.r_[False, is_release[:-1]])
    ends = np.flatnonzero(is_release & ~np.r_[is_release[1:], False])
    following = np.append(action, 255)[ends + 1]
    by_name = passes_through(recording.stacks, "empty_cache")[stack_id[begins]]
    has_no_stack = stack_id[begins] == 0
    releases = release_events(recording)
    has_room = np.isin(ends, np.setdiff1d(releases, for_a_request(recording, releases)))
    return begins[by_name | has_room | (has_no_stack & ~np.isin(following, (*GAINS, Action.OOM)))]


def emptied_after(program: RequestSequence, recording: Recording, what: str) -> RequestSequence:
    """Return the same sequence with ``empty_cache`` after each step or epoch ('' for neither)."""
    if what not in ("", "step", "epoch"):
        raise UsageError(f"empty_cache after each {what!r}: steps and epochs are known")
    if not what:
        return program
    ends = recording.steps.end_event if what == "step" else ends_of_epochs(recording)
    if not len(ends):
        raise UsageError(
            f'no {what}s are known; `recorder.mark("epoch 1")` and `recorder.step()` record them'
        )
    return _with_ops(program, program.op >= 0, AllocatorOp.EMPTY_CACHE, np.full(len(ends), -1), ends - 1)


def with_frees(program: RequestSequence, rows: Array, events: Array) -> RequestSequence:
    """Return the sequence with other frees of *rows*, each right after its event; none where that is −1."""
    stays = ~(np.isin(program.row, rows) & (program.op != AllocatorOp.REQUEST))
    return _with_ops(program, stays, AllocatorOp.FREE, rows[events >= 0], events[events >= 0])


def _with_ops(
    program: RequestSequence, of: Array, op: AllocatorOp, rows: Array, at: Array
) -> RequestSequence:
    """Return the ops *of* a sequence, and one more *op* right after each of the events *at*."""
    order = np.argsort(np.append(2 * program.event[of], 2 * at + 1), kind="stable")
    more: dict[str, Any] = {"op": np.full(len(rows), op), "row": rows, "event": np.maximum(at, 0)}
    for name in ("op", "row", "event", "size", "stream", "pool"):
        more[name] = np.append(getattr(program, name)[of], more.get(name, np.zeros_like(rows)))[order]
    return replace(program, **more)


def replay(
    program: RequestSequence,
    settings: Settings,
    capacity_bytes: int | None = None,
    total_bytes: int | None = None,
) -> ReplayResult:
    """Replay a request sequence; the replay ends at the first request that cannot be served.

    Under the recorded settings it begins in the state before the first event, what was cached by then
    included; under others with the blocks of that state alone.

    No limit where *capacity_bytes* is None. *total_bytes* is the size of the whole device, used by others
    too. Raises UsageError if *capacity_bytes* is below 1.
    """
    if capacity_bytes is not None and capacity_bytes <= 0:
        raise UsageError(f"a capacity of {capacity_bytes} bytes: at least 1")
    made = mapped = 0

    def count(action: Action, *_: int) -> None:
        nonlocal made, mapped
        made += action == Action.SEGMENT_ALLOC
        mapped += action == Action.SEGMENT_MAP

    def empty() -> CachingAllocator:
        return CachingAllocator(settings, capacity_bytes, count, total_bytes)

    allocator, known = empty(), program.earlier if settings == program.settings else None
    if known is not None:
        if begin(allocator, known, capacity_bytes):
            program = _without_earlier(program)
        else:
            allocator, known, made, mapped = empty(), None, 0, 0
    replayer = _Replayer(program, allocator, known)
    failed = replayer.replay()
    return ReplayResult(
        settings=settings,
        capacity_bytes=capacity_bytes,
        peak_reserved_bytes=replayer.peak_reserved_bytes,
        peak_allocated_bytes=replayer.peak_allocated_bytes,
        n_segments=made + mapped,
        n_mappings=mapped,
        n_retries=allocator.counts.num_alloc_retries,
        failed_at=None if failed is None else int(program.event[failed]),
        failed_bytes=0 if failed is None else int(program.size[failed]),
        failed_requested_bytes=0 if failed is None else allocator.requested_bytes,
        events=np.array(replayer.events, "i8"),
        reserved_bytes=np.array(replayer.reserved, "i8"),
    )


def _without_earlier(program: RequestSequence) -> RequestSequence:
    """Return the sequence without the requests for blocks from before the trace."""
    names = ("op", "row", "event", "size", "stream", "pool")
    later = program.event >= 0
    return replace(program, **{name: getattr(program, name)[later] for name in names})


def _rows(columns: Sequence[Array]) -> Iterator[tuple[int, ...]]:
    """Yield the rows of *columns*, converted in parts: at once, 5 million let no other thread run for 1 s."""
    for first in range(0, len(columns[0]), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        yield from zip(*(column[part].tolist() for column in columns), strict=True)


class _Replayer:
    """Runs an allocator through a request sequence."""

    def __init__(
        self, program: RequestSequence, allocator: CachingAllocator, earlier: EarlierState | None
    ) -> None:
        self._program = program
        self._allocator = allocator
        self._address: dict[int, int] = {}
        if earlier is not None:
            self._address = dict(zip(earlier.row.tolist(), earlier.address.tolist(), strict=True))
        self.peak_reserved_bytes = allocator.reserved_bytes
        self.peak_allocated_bytes = allocator.allocated_bytes
        self.events: list[int] = []
        self.reserved: list[int] = []

    def replay(self) -> int | None:
        """Return the index of the op that failed, or None. Each op takes 1 µs and the allocator's time."""
        program, allocator = self._program, self._allocator
        columns = (program.op, program.row, program.size, program.stream, program.pool)
        stride = max(1, len(program) // _N_POINTS)
        address, between = self._address, BETWEEN.get()
        last = int(np.flatnonzero(program.op == AllocatorOp.REQUEST)[-1:].sum())
        for at, (op, row, size, stream, pool) in enumerate(_rows(columns)):
            if op == AllocatorOp.REQUEST:
                try:
                    address[row] = allocator.malloc(size, stream, pool)
                except OutOfMemory:
                    self._sample(at)
                    return at
                self.peak_reserved_bytes = max(self.peak_reserved_bytes, allocator.reserved_bytes)
                self.peak_allocated_bytes = max(self.peak_allocated_bytes, allocator.allocated_bytes)
            elif op == AllocatorOp.FREE:
                allocator.free(address.pop(row))
            elif op == AllocatorOp.REFUSED and at > last:
                # A refused request that nothing follows ended the program: it fits only if it is served now.
                if not self._try((size, stream, pool)):
                    self._sample(at)
                    return at
            else:
                self._apply_rare_op(op, row, (size, stream, pool))
            if at % stride == 0:
                self._sample(at)
                between()
        return None

    def _apply_rare_op(self, op: int, row: int, request: tuple[int, int, int]) -> None:
        allocator = self._allocator
        if op == AllocatorOp.FREE_LATER:
            if self._address[row]:  # torch's storage of 0 bytes is a null pointer
                allocator.record_stream(self._address[row], _SOME_STREAM)
            allocator.free(self._address[row])
        elif op == AllocatorOp.FINISH:
            address = self._address.pop(row)
            if allocator.is_pending(address):  # else a shortage of memory has waited for it already
                allocator.finish_events(address)
        elif op == AllocatorOp.EMPTY_CACHE:
            allocator.empty_cache()
        else:
            self._try(request)

    def _try(self, request: tuple[int, int, int]) -> bool:
        """Request and free a block that was refused in the recording; return whether it is served now."""
        try:
            address = self._allocator.malloc(*request)
        except OutOfMemory:
            return False
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._allocator.reserved_bytes)
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self._allocator.allocated_bytes)
        self._allocator.free(address)
        return True

    def _sample(self, at: int) -> None:
        self.events.append(int(self._program.event[at]))
        self.reserved.append(self._allocator.reserved_bytes)


ANALYSIS = asking(
    "What would the same requests have needed under other settings, or on another device?", what_if
)
