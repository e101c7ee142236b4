"""Returns to the system what the C library keeps free in this process."""

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress


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
