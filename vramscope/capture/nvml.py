"""How full is the device as the driver counts it: context, libraries and other processes included?

What the driver does not tell is −1 in the samples, and one note says why.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import pynvml

from vramscope.model.codes import NoteCode
from vramscope.model.counters import UNKNOWN
from vramscope.model.marks import Note

Value = TypeVar("Value")


class Memory(NamedTuple):
    """Of one device, in bytes; −1 where the driver does not tell."""

    used: int = UNKNOWN
    """Without the driver's own reserve, where the driver can tell (R510 and later)."""
    free: int = UNKNOWN
    total: int = UNKNOWN
    """Used, free and the driver's reserve."""


class Shares(NamedTuple):
    """Of what is used, in bytes; −1 where the driver does not tell."""

    ours: int = UNKNOWN
    """This process, CUDA's context included."""
    others: int = UNKNOWN
    """All other processes."""


class DeviceMemory:
    """One device through NVML; never raises.

    CUDA's numbering is not NVML's, so the device is found by *uuid* (``GPU-…``, ``MIG-…``), or by *bus_id*
    where torch does not tell one.
    """

    def __init__(self, uuid: str, bus_id: str) -> None:
        self.notes: list[Note] = []
        self._complained: set[str] = set()
        self._handle: Any = None
        self._has_v2 = True
        self._has_graphics = True
        self._is_started = False
        self._attempt(NoteCode.NVML_DEVICE, lambda: self._open(uuid, bus_id), None)

    def _open(self, uuid: str, bus_id: str) -> None:
        pynvml.nvmlInit()
        self._is_started = True
        self._handle = _handle(uuid) if uuid else pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)

    def close(self) -> None:
        """NVML counts its users."""
        self._handle = None
        if self._is_started:
            self._is_started = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def memory(self) -> Memory:
        """How full the device is."""
        return self._attempt(NoteCode.NVML_MEMORY, self._memory, Memory())

    def shares(self) -> Shares:
        """Whose it is; a container may hide it."""
        return self._attempt(NoteCode.NVML_PROCESS_MEMORY, self._shares, Shares())

    def utilization(self) -> int:
        """Percent of the last moments in which a kernel ran; a MIG slice has none."""
        return self._attempt(
            NoteCode.NVML_UTILIZATION,
            lambda: int(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu),
            UNKNOWN,
        )

    def _memory(self) -> Memory:
        if self._has_v2:
            try:
                info = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
            except pynvml.NVMLError:
                self._has_v2 = False
            else:
                return Memory(int(info.used), int(info.free), int(info.total))
        info = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        self._note(
            NoteCode.NVML_MEMORY, "the driver is older than R510: its device used counts its own reserve too"
        )
        return Memory(int(info.used), int(info.free), int(info.total))

    def _shares(self) -> Shares:
        holds = self._processes()
        ours = os.getpid()
        if ours not in holds:
            # In a container the driver's pids are the host's. The only one listed may be ours, or not.
            self._note(
                NoteCode.NVML_PROCESS,
                "the driver does not list this process (a container?): its share is unknown",
            )
            return Shares()
        self._take_back(NoteCode.NVML_PROCESS)
        others = [n_bytes for pid, n_bytes in holds.items() if pid != ours]
        if UNKNOWN in holds.values():
            self._note(
                NoteCode.NVML_PROCESS_MEMORY,
                "the driver lists processes without their memory (WDDM, a virtual GPU?): shares are unknown",
            )
        return Shares(holds[ours], UNKNOWN if UNKNOWN in others else sum(others))

    def _processes(self) -> dict[int, int]:
        """By pid; one that computes and draws is in both lists with the same figure."""
        listed = list(pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        if self._has_graphics:
            try:
                listed += pynvml.nvmlDeviceGetGraphicsRunningProcesses(self._handle)
            except pynvml.NVMLError:
                self._has_graphics = False
        return {row.pid: UNKNOWN if row.usedGpuMemory is None else int(row.usedGpuMemory) for row in listed}

    def _take_back(self, code: NoteCode) -> None:
        """Before CUDA has its context no driver lists the process: that is no container."""
        if code in self._complained:
            self._complained.discard(code)
            self.notes[:] = [note for note in self.notes if note.code != code]

    def _attempt(self, code: NoteCode, ask: Callable[[], Value], default: Value) -> Value:
        if code is not NoteCode.NVML_DEVICE and self._handle is None:
            return default
        try:
            return ask()
        except pynvml.NVMLError as error:
            what = code.removeprefix("nvml_").replace("_", " ")
            self._note(code, f"NVML does not tell the {what}: {error}")
            return default

    def _note(self, code: NoteCode, text: str) -> None:
        if code not in self._complained:
            self._complained.add(code)
            self.notes.append(Note(code, text))


def _handle(uuid: str) -> Any:
    """torch tells the UUID of a MIG slice like that of a whole GPU."""
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError_NotFound:
        if not uuid.startswith("GPU-"):
            raise
        return pynvml.nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-", 1))


class Clockwork:
    """Calls *sample* ten times a second on a thread of its own, until stopped."""

    def __init__(self, sample: Callable[[], None], interval_s: float = 0.1) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._is_over = threading.Event()
        self._is_retired = False
        self._thread = threading.Thread(target=self._run, name="vramscope-nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last sample is in."""
        self._is_over.set()
        self._thread.join()

    def retire(self) -> None:
        """Stop soon, without waiting: the thread may be the one that asks, or be left behind by a fork."""
        self._is_retired = True

    def _run(self) -> None:
        self._sample()
        while not self._is_over.wait(self._interval_s):
            if self._is_retired:
                return
            self._sample()
        self._sample()
