"""How full is the device as the driver counts it: context, libraries and other processes included?

What the driver does not tell is −1 in the samples, and one note says why.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pynvml

from vramscope.model.marks import Note

Value = TypeVar("Value")

UNKNOWN = -1


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
        self._is_started = False
        self._attempt("device", lambda: self._open(uuid, bus_id), None)

    def _open(self, uuid: str, bus_id: str) -> None:
        pynvml.nvmlInit()
        self._is_started = True
        if uuid:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        else:
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)

    def close(self) -> None:
        """NVML counts its users."""
        self._handle = None
        if self._is_started:
            self._is_started = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def used_and_total(self) -> tuple[int, int]:
        """Bytes; used without the driver's own reserve where the driver can tell (R510 and later)."""
        return self._attempt("memory", self._memory, (UNKNOWN, UNKNOWN))

    def process_used(self) -> int:
        """Bytes of this process, CUDA's context included; a container may hide it."""
        return self._attempt("process memory", self._process, UNKNOWN)

    def utilization(self) -> int:
        """Percent of the last moments in which a kernel ran; a MIG slice has none."""
        return self._attempt(
            "utilization", lambda: int(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu), UNKNOWN
        )

    def _memory(self) -> tuple[int, int]:
        if self._has_v2:
            try:
                info = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
            except pynvml.NVMLError:
                self._has_v2 = False
            else:
                return int(info.used), int(info.total)
        info = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        self._note("nvml_memory", "the driver is older than R510: its device used counts its own reserve too")
        return int(info.used), int(info.total)

    def _process(self) -> int:
        ours = os.getpid()
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
            if process.pid == ours:
                self._take_back("nvml_process")
                return UNKNOWN if process.usedGpuMemory is None else int(process.usedGpuMemory)
        # In a container the driver's pids are the host's.
        self._note(
            "nvml_process", "the driver does not list this process (a container?): its share is unknown"
        )
        return UNKNOWN

    def _take_back(self, code: str) -> None:
        """Before CUDA has its context no driver lists the process: that is no container."""
        if code in self._complained:
            self._complained.discard(code)
            self.notes[:] = [note for note in self.notes if note.code != code]

    def _attempt(self, what: str, ask: Callable[[], Value], default: Value) -> Value:
        if what != "device" and self._handle is None:
            return default
        try:
            return ask()
        except pynvml.NVMLError as error:
            self._note(f"nvml_{what.replace(' ', '_')}", f"NVML does not tell the {what}: {error}")
            return default

    def _note(self, code: str, text: str) -> None:
        if code not in self._complained:
            self._complained.add(code)
            self.notes.append(Note(code, text))


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
