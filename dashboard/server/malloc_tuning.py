"""Settings of memory: what is freed returns to the system, as a server is left open for weeks.

glibc keeps freed memory: in a heap per thread, and large arrays as well once it has seen one freed. Measured
while following a run: a constant 150 MB, where it was 190 to 240.

All threads share one heap: what one has freed serves the next, and only that heap holds arrays of any size.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_N_ARENAS = 1
_PR_SET_THP_DISABLE = 41
"""Linux's name for: no transparent huge pages in this process."""
_LARGE = 256 << 10
_MANY_MAPPINGS = 1 << 16
"""The number of arrays with a mapping of their own from which on glibc makes no more; its own default."""
_NEVER = (1 << 31) - 1


class _Tuning:
    """What this process has set; malloc has one setting for all threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.is_tuned = False
        self.n_keeping = 0

    def set(self, n_mappings: int, trim_bytes: int) -> None:
        """Set how many large arrays may be mappings of their own, and how much free heap is kept."""
        with suppress(AttributeError, OSError, TypeError):
            tune = ctypes.CDLL(None).mallopt
            tune(_MMAP_THRESHOLD, _LARGE)
            tune(_MMAP_MAX, n_mappings)
            tune(_TRIM_THRESHOLD, trim_bytes)


_TUNING = _Tuning()


def give_back() -> None:
    """Make glibc return freed memory in this process, without huge pages.

    NumPy asks for huge pages: the system then clears 2 MB wherever a byte is written, and a virtual machine
    has to get them back from its host, which takes unused ones. With them, the first chart of 5 million
    unread events came after 5.3 s, without them after 4.7. Other systems and C libraries ignore all this.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _N_ARENAS)
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    with _TUNING.lock:
        _TUNING.is_tuned = True
        _TUNING.set(_MANY_MAPPINGS, 4 * _LARGE)


@contextmanager
def keeping() -> Iterator[None]:
    """Let this process keep freed memory within the block, which ends with returning all of it.

    A reader of files frees and requests the same arrays for every window: of 5 million events, the system
    mapped 1.15 million pages where 0.06 million do, and reading took 7.5 s of CPU instead of 4.8. No array is
    a mapping of its own meanwhile: columns of 40 MB that are mapped and unmapped one after the other took
    0.4 s of it.
    """
    with _TUNING.lock:
        _TUNING.n_keeping += 1
        if _TUNING.is_tuned:
            _TUNING.set(0, _NEVER)
    try:
        yield
    finally:
        with _TUNING.lock:
            _TUNING.n_keeping -= 1
            if _TUNING.is_tuned and not _TUNING.n_keeping:
                _TUNING.set(_MANY_MAPPINGS, 4 * _LARGE)
                trim()


def trim() -> None:
    """Return freed memory of the heap to the system, also between what is in use; takes some ms.

    The columns of a file are in the heap, as it was read within ``keeping``.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
