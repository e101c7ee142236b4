"""The memory of this process on the host: resident, free in the C library, and collected by Python."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO


def malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's ``malloc_trim``; None where the C library has none."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        # ctypes releases the interpreter's lock during the call.
        found = ctypes.CDLL(None).malloc_trim
        found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
        return found
    return None


def resident_bytes() -> int:
    """Return the resident memory of this process; −1 where the system does not say it."""
    with suppress(OSError), FileIO("/proc/self/statm") as file:  # open() may be the program's own
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return -1


@contextmanager
def collector_off() -> Iterator[None]:
    """Pause cyclic garbage collection, which would traverse millions of new containers several times."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()
