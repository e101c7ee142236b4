"""Samples torch's counters and the driver's counters of one device.

They are read one after the other, in 0.1 to 5 ms: torch's counters and the driver's memory before and after
the shares of the processes, and all again if the reserved or the used bytes changed in between. What they
still changed by in the last try is recorded (``reserved_drift_bytes``).
"""

from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import Any, NamedTuple

import torch

from vramscope.capture import hooks
from vramscope.capture.hooks.gradients import backwards
from vramscope.capture.log import drained
from vramscope.capture.nvml import DeviceMemory, Memory, ProcessMemory
from vramscope.capture.ranks.nccl import CommunicatorBytes
from vramscope.capture.torch_versions import private_functions as private
from vramscope.capture.torch_versions import version
from vramscope.capture.torch_versions.interval_peaks import FIRST, ResetPeaks, as_seen, peaks_of
from vramscope.capture.undisturbed import Clockwork
from vramscope.malloc import resident_bytes
from vramscope.model.codes import NoteCode
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.marks import Note
from vramscope.units import format_bytes

_MOST_TRIES = 3
_INTERVAL_S = 0.1
_SAMPLES_PER_LIMIT = 10
"""The program's own limit is asked once a second."""
_STEPS_SAMPLED = 64

Row = tuple[int, ...]
"""One sample, its values in the order of ``Counters.DTYPES``."""


class HostMemory(NamedTuple):
    """Host memory of this process in bytes; −1 where unknown."""

    resident: int = UNKNOWN
    pinned: int = UNKNOWN
    """Held by torch's host allocator, cached blocks included."""
    pinned_active: int = UNKNOWN


class DriverReading(NamedTuple):
    """The part of a sample that comes from the driver."""

    memory: Memory
    shares: ProcessMemory
    utilization: int
    drift_bytes: int
    """Change of torch's reserved or the device's used bytes meanwhile; −1 if the driver was not read."""
    host: HostMemory


_UNASKED = DriverReading(Memory(), ProcessMemory(), UNKNOWN, UNKNOWN, HostMemory())
"""What a sample of torch's counters alone says of the driver."""
_UNCOUNTED = {"current": UNKNOWN, "peak": UNKNOWN}


def host_memory() -> HostMemory:
    """Read the resident memory of this process and torch's counters of pinned memory, in 15 µs.

    Before version 2.13 torch does not subtract from what is in use what is handed back: 20 steps with one
    buffer of 8 MiB count 160 MiB on an H200, of 8 held. Version 2.9 calls what it holds reserved.
    """
    stats = private.ask(private.HOST_STATISTICS)
    if stats is None:
        return HostMemory(resident_bytes())
    held = _current_of(stats, "allocated_bytes" if "active_bytes" in stats else "reserved_bytes")
    is_right = version(torch.__version__) >= (2, 13)
    return HostMemory(resident_bytes(), held, _current_of(stats, "active_bytes") if is_right else UNKNOWN)


def _current_of(stats: Mapping[str, Any], name: str) -> int:
    """The current value of a counter, which not every version of torch has."""
    level = stats.get(name)
    return int(level["current"]) if isinstance(level, dict) and "current" in level else UNKNOWN


def torch_counters(device: int) -> dict[str, Any]:
    """torch's nested allocator statistics of *device*; takes 20 µs and does not synchronize.

    Empty where the allocator is the program's own (``CUDAPluggableAllocator``), which torch asks for none.
    """
    found: dict[str, Any] = (
        {} if backend() == "pluggable" else private.ask(private.STATISTICS, device=device) or {}
    )
    if found and not _are_levels(found):
        private.lack(private.STATISTICS, "returned other statistics than any that were met")
        return {}
    return as_seen(device, found)


def levels_so_far(devices: Sequence[int]) -> tuple[dict[object, int], int]:
    """The most allocated and reserved bytes of each device, as the program sees them; what is allocated."""
    stats = [(device, torch_counters(device)) for device in devices]
    names = ("allocated_bytes", "reserved_bytes")
    highest: dict[object, int] = {
        (i, name): _level(found, name)["peak"] for i, found in stats for name in names
    }
    return highest, sum(_level(found, names[0])["current"] for _, found in stats)


def _are_levels(stats: Mapping[str, Any]) -> bool:
    """Whether the statistics have the two levels that every sample needs, in torch's form."""
    try:
        return all(
            type(stats[f"{name}_bytes"]["all"][key]) is int
            for name in ("allocated", "reserved")
            for key in ("current", "peak", "allocated", "freed")
        )
    except (KeyError, TypeError):
        return False


def backend() -> str:
    """The name of torch's allocator backend: ``native``, ``cudaMallocAsync`` or ``pluggable``."""
    return str(torch.cuda.get_allocator_backend())


def bus_id(device: int) -> str:
    """The PCI bus id of *device* in the form that NVML uses."""
    properties = torch.cuda.get_device_properties(device)
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))
    return f"{domain:08x}:{bus:02x}:{slot:02x}.0"


class Sampler:
    """Samples one device ten times a second on a background thread, and on request; never raises."""

    def __init__(self, device: int, uuid: str, failed: Callable[[BaseException], None]) -> None:
        self._device = device
        self._failed = failed
        self._memory = DeviceMemory(uuid, bus_id(device))
        self.communicators = CommunicatorBytes(device)
        self._rows: list[Row] = []
        self._clockwork: Clockwork | None = None
        self._is_native = backend() == "native"
        self._n_steps = 0
        self._peaks: ResetPeaks | None = None
        self._has_looked_for_peaks = False
        self._is_first = True
        self._n_samples = 0
        self._n_marks = 0
        self._limit_bytes: int | None = None
        self._limits: list[Note] = []

    def start(self) -> None:
        """Start sampling; the first sample is taken immediately."""
        self._is_first = True
        self._clockwork = Clockwork(self._on_time, _INTERVAL_S)

    def stop(self) -> None:
        """Take a last sample and stop."""
        if self._clockwork is not None:
            self._clockwork.stop()
            self._clockwork = None

    def retire(self) -> None:
        """Stop soon without waiting for the thread."""
        if self._clockwork is not None:
            self._clockwork.retire()

    def close(self) -> None:
        """Close NVML, which counts its users."""
        self._memory.close()

    def take(self) -> Counters:
        """The samples since the last call, oldest first."""
        rows = sorted(drained(self._rows))
        if not rows:
            return Counters.of()
        return Counters.of(**dict(zip(Counters.DTYPES, zip(*rows, strict=True), strict=True)))

    def notes(self) -> list[Note]:
        """Notes on what the driver does not report; each is returned once."""
        return drained(self._memory.notes)

    def take_limits(self) -> list[Note]:
        """Notes on what ``set_per_process_memory_fraction`` allows, if it changed since the last call."""
        return drained(self._limits)

    def ask_limit(self) -> None:
        """Ask torch what ``set_per_process_memory_fraction`` allows; older versions do not report it.

        torch makes the device the calling thread's, so this belongs on the thread whose allocation failed
        there, or on one of vramscope's own.
        """
        fraction = private.ask(private.MEMORY_FRACTION, self._device)
        if fraction is None or (fraction >= 1 and self._limit_bytes is None):
            return
        # torch stores the bytes, and reports them as a fraction.
        n_bytes = round(fraction * torch.cuda.get_device_properties(self._device).total_memory)
        if n_bytes != self._limit_bytes:
            self._limit_bytes = n_bytes
            text = f"{format_bytes(n_bytes)} allowed to this process (set_per_process_memory_fraction)"
            self._limits.append(Note(NoteCode.LIMIT, text, n_bytes))

    def sample_at_mark(self, now: int) -> None:
        """Sample torch's counters alone at *now* (ns): cheap enough for the program's own thread.

        The sample has the highest levels since the last one that had them, unless another thread may
        allocate at this very moment.
        """
        if not torch.cuda.is_initialized():
            return
        self._n_marks += 1
        if not self._has_looked_for_peaks:
            self._has_looked_for_peaks = True
            self._peaks = peaks_of(self._device) if self._is_native else None
        peaks = self._peaks
        if peaks is None or backwards or hooks.other_threads():
            self._keep(now, self._levels(torch_counters(self._device)), _UNASKED)
            return
        levels, (allocated, reserved, *_), highest = peaks.cut()
        if self._is_first:  # what was before it is of no interval
            self._is_first, highest = False, tuple(levels)
        self._keep(now, (*levels, allocated, reserved, UNKNOWN), _UNASKED, highest[:4])

    def step_ends(self) -> None:
        """Read NCCL's communicators; of the first steps, which may be short, keep a sample of host memory."""
        self.communicators.read()
        if self._n_steps < _STEPS_SAMPLED and torch.cuda.is_initialized():
            self._n_steps += 1
            levels = self._levels(torch_counters(self._device))
            self._keep(time_ns(), levels, _UNASKED._replace(host=host_memory()))

    def _on_time(self) -> None:
        try:
            if torch.cuda.is_initialized():
                self._sample()
        except Exception as error:  # noqa: BLE001 -- the recorder's boundary
            self._failed(error)

    def _sample(self) -> None:
        (now, stats), memory = self._torch_now(), self._memory.memory()
        for _ in range(_MOST_TRIES):
            shares = self._memory.shares()
            earlier, memory = memory, self._memory.memory()
            before, (now, stats) = stats, self._torch_now()
            moved_bytes = _moved_bytes(before) - _moved_bytes(stats), earlier.used - memory.used
            if not any(moved_bytes):
                break
        drift_bytes = max(map(abs, moved_bytes))
        # A device where torch has reserved nothing may have no context, which asking would make: 500 MB.
        if self._n_samples % _SAMPLES_PER_LIMIT == 0 and _moved_bytes(stats):
            self.ask_limit()
        self._n_samples += 1
        driver = DriverReading(memory, shares, self._memory.utilization(), drift_bytes, host_memory())
        self._keep(now, self._levels(stats), driver)

    def _torch_now(self) -> tuple[int, dict[str, Any]]:
        """torch's counters and their time (ns): no step or phase begins or ends between the two readings."""
        for _ in range(_MOST_TRIES):
            n_marks, now, stats = self._n_marks, time_ns(), torch_counters(self._device)
            if n_marks == self._n_marks:
                break
        return now, stats

    def _levels(self, stats: dict[str, Any]) -> tuple[int, ...]:
        """The levels, the two peaks and the number of retries that a sample has of torch's counters."""
        # torch 2.0 and older do not count requested bytes; cudaMallocAsync leaves both of these at 0.
        native = stats if self._is_native else {}
        places = zip((stats, stats, native, stats, native), FIRST, strict=True)
        levels = [_level(of, name) for of, name in places]
        retries = int(stats.get("num_alloc_retries", UNKNOWN))
        return *(level["current"] for level in levels), levels[0]["peak"], levels[1]["peak"], retries

    def _keep(self, now: int, levels: Row, driver: DriverReading, highest: Row = (UNKNOWN,) * 4) -> None:
        memory, shares, utilization, drift_bytes, host = driver
        torchs = (*levels[:2], memory.used, memory.total, shares.ours, utilization, *levels[2:-1])
        drivers = memory.free, shares.others, drift_bytes, *host, self.communicators.n_bytes
        self._rows.append((now, UNKNOWN, *torchs, *drivers, *highest, levels[-1]))


def _level(stats: dict[str, Any], name: str) -> Mapping[str, int]:
    """The current value of a counter and its peak; −1 where torch does not count it."""
    found = stats.get(name)
    return found["all"] if isinstance(found, dict) and "all" in found else _UNCOUNTED


def _moved_bytes(stats: dict[str, Any]) -> int:
    """Bytes ever reserved plus bytes ever released.

    The sum also changes when a release and a reservation of the same size cancel each other.
    """
    if not stats:
        return 0
    reserved = stats["reserved_bytes"]["all"]
    return int(reserved["allocated"]) + int(reserved["freed"])
