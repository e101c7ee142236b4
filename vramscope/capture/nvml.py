"""Device memory as the driver counts it through NVML, including contexts, libraries and other processes.

A value that the driver does not report is −1 in the samples, and one note gives the reason.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import pynvml

from vramscope.model.codes import NoteCode
from vramscope.model.counters import UNKNOWN
from vramscope.model.marks import Note

Value = TypeVar("Value")


_LARGEST = 1 << 50
"""A petabyte: no device has that, but a driver that does not know a number may report one."""


class Memory(NamedTuple):
    """Memory of one device in bytes; −1 where the driver does not report it."""

    used: int = UNKNOWN
    """Used bytes, without the driver's own reserve if the driver reports it (R510 and later)."""
    free: int = UNKNOWN
    total: int = UNKNOWN
    """The sum of used, free and the driver's reserve."""


class ProcessMemory(NamedTuple):
    """Used memory by process in bytes; −1 where the driver does not report it."""

    ours: int = UNKNOWN
    """Bytes of this process, including its CUDA context."""
    others: int = UNKNOWN
    """Bytes of all other processes."""


class DeviceMemory:
    """Reads one device through NVML; never raises.

    CUDA and NVML number devices differently, so the device is found by *uuid* (``GPU-…``, ``MIG-…``), or by
    *bus_id* where torch reports no uuid.
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
        """Close NVML, which counts its users."""
        self._handle = None
        if self._is_started:
            self._is_started = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def memory(self) -> Memory:
        """The used, free and total memory of the device."""
        return self._attempt(NoteCode.NVML_MEMORY, self._memory, Memory())

    def shares(self) -> ProcessMemory:
        """The used memory by process; unknown if a container hides this process."""
        return self._attempt(NoteCode.NVML_PROCESS_MEMORY, self._shares, ProcessMemory())

    def utilization(self) -> int:
        """Percent of the last sampling period in which a kernel ran; −1 for a MIG slice."""
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
                return self._possible(info)
        info = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        self._note(
            NoteCode.NVML_MEMORY, "the driver is older than R510: its device used counts its own reserve too"
        )
        return self._possible(info)

    def _possible(self, info: Any) -> Memory:
        found = Memory(int(info.used), int(info.free), int(info.total))
        if all(0 <= n_bytes <= found.total < _LARGEST for n_bytes in found):
            return found
        text = "the driver reported memory that cannot be, more than there is: it is left out"
        self._note(NoteCode.NVML_MEMORY, text)
        return Memory()

    def _shares(self) -> ProcessMemory:
        holds = self._processes()
        ours = os.getpid()
        if ours not in holds:
            # In a container the driver lists the host's pids. A single listed one may be another process.
            self._note(
                NoteCode.NVML_PROCESS,
                "the driver does not list this process (a container? no context?): its share is unknown",
            )
            return ProcessMemory()
        if NoteCode.NVML_PROCESS in self._complained:
            # Taken back: before CUDA has its context, no driver lists the process, container or not.
            self._complained.discard(NoteCode.NVML_PROCESS)
            self.notes[:] = [note for note in self.notes if note.code != NoteCode.NVML_PROCESS]
        others = [n_bytes for pid, n_bytes in holds.items() if pid != ours]
        if UNKNOWN in holds.values():
            self._note(
                NoteCode.NVML_PROCESS_MEMORY,
                "the driver lists processes without their memory (WDDM, a virtual GPU?): shares are unknown",
            )
        return ProcessMemory(holds[ours], UNKNOWN if UNKNOWN in others else sum(others))

    def _processes(self) -> dict[int, int]:
        """Used bytes by pid; a process that both computes and draws is in both lists with the same value."""
        listed = list(pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        if self._has_graphics:
            try:
                listed += pynvml.nvmlDeviceGetGraphicsRunningProcesses(self._handle)
            except pynvml.NVMLError:
                self._has_graphics = False
        reported = ((row.pid, row.usedGpuMemory) for row in listed)
        return {pid: UNKNOWN if n is None or not 0 <= int(n) < _LARGEST else int(n) for pid, n in reported}

    def _attempt(self, code: NoteCode, ask: Callable[[], Value], default: Value) -> Value:
        if code is not NoteCode.NVML_DEVICE and self._handle is None:
            return default
        try:
            return ask()
        except pynvml.NVMLError as error:
            what = code.removeprefix("nvml_").replace("_", " ")
            self._note(code, f"NVML does not report the {what}: {error}")
            return default

    def _note(self, code: NoteCode, text: str) -> None:
        if code not in self._complained:
            self._complained.add(code)
            self.notes.append(Note(code, text))


def _handle(uuid: str) -> Any:
    """The NVML handle for *uuid*; torch reports the UUID of a MIG slice with the prefix of a whole GPU."""
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError_NotFound:
        if not uuid.startswith("GPU-"):
            raise
        return pynvml.nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-", 1))
