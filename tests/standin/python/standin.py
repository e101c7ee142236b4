"""Control the stand-in for a GPU while it runs: other processes, and what NVML answers.

Inside the stand-in (its launcher puts this module on the path) ``Board()`` is this process' own devices.
From outside, ``Board(path, library)`` is the board that processes started with ``STANDIN_BOARD=path`` share.
Devices are numbered physically, sizes are bytes.
"""

import ctypes
import os
from pathlib import Path

QUERIES = (
    "init",
    "handle",
    "memory",
    "memory_v2",
    "processes",
    "utilization",
    "power",
    "temperature",
    "clocks",
)
VIEWS = ("all", "no bytes", "host pids", "nothing")

SUCCESS, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, GPU_IS_LOST = 0, 3, 4, 13, 15


class Board:
    """What the runtime and NVML know in common; see ``board.h``."""

    def __init__(self, path: Path | None = None, library: Path | str = "libstandin.so") -> None:
        self.path = path
        self._library = ctypes.CDLL(str(library))
        self._library.standin_used.restype = ctypes.c_uint64
        self._library.standin_set_other.restype = ctypes.c_bool

    def add_process(self, n_bytes: int, pid: int = 4242, device: int = 0) -> None:
        """Another process *pid*, made up, holds *n_bytes* from now on."""
        if not self._use().standin_set_other(device, pid, ctypes.c_uint64(n_bytes)):
            raise ValueError(f"{pid} is a real process on this device, or there are too many")

    def end_process(self, pid: int = 4242, device: int = 0) -> None:
        self.add_process(0, pid, device)

    def answer(self, query: str, code: int, device: int = 0) -> None:
        """NVML answers *query* about *device* with *code* from now on (``SUCCESS`` ends it)."""
        self._use().standin_set_answer(device, QUERIES.index(query), code)

    def lose(self, device: int = 0) -> None:
        """The device falls off the bus: whatever NVML is asked about it."""
        for query in QUERIES[1:]:
            self.answer(query, GPU_IS_LOST, device)

    def show_processes(self, view: str, device: int = 0) -> None:
        """NVML shows processes as *view* says: ``all``, ``no bytes``, ``host pids`` or ``nothing``."""
        self._use().standin_set_view(device, VIEWS.index(view))

    def used(self, device: int = 0) -> int:
        """What all processes hold on *device*, contexts included, without the driver's reserve."""
        return int(self._use().standin_used(device))

    def _use(self) -> ctypes.CDLL:
        if self.path is not None:
            error = self._library.standin_open(os.fsencode(self.path))
            if error:
                raise OSError(error, os.strerror(error), str(self.path))
        return self._library
