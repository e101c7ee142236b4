"""Settings of memory: what is freed returns to the system, as a server is left open for weeks.

glibc keeps freed memory: in a heap per thread, and large arrays as well once it has seen one freed. Measured
while following a run: a constant 150 MB, where it was 190 to 240.

All threads share one heap: what one has freed serves the next, and only that heap holds arrays of any size.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from time import monotonic

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_N_ARENAS = 1
_PR_SET_THP_DISABLE = 41
"""Linux's name for: no transparent huge pages in this process."""
_LARGE = 256 << 10
_MANY_MAPPINGS = 1 << 16
"""The number of arrays with a mapping of their own from which on glibc makes no more; its own default."""
_NEVER = (1 << 31) - 1
_QUIET_S, _LATEST_S = 2.0, 60.0


class _Tuning:
    """What this process has set; malloc has one setting for all threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.is_tuned = False
        self.n_keeping = 0
        self.held_s = self.asked_s = 0.0
        """When a request began to keep freed memory, 0 where none does, and when the last request came."""

    def set(self, n_mappings: int, trim_bytes: int) -> None:
        """Set how many large arrays may be mappings of their own, and how much free heap is kept."""
        with suppress(AttributeError, OSError, TypeError):
            tune = ctypes.CDLL(None).mallopt
            tune(_MMAP_THRESHOLD, _LARGE)
            tune(_MMAP_MAX, n_mappings)
            tune(_TRIM_THRESHOLD, trim_bytes)

    def begin(self) -> None:
        """Keep freed memory; the lock is held."""
        self.n_keeping += 1
        if self.is_tuned:
            self.set(0, _NEVER)

    def end(self) -> None:
        """Return freed memory again, if nothing else keeps it; the lock is held."""
        self.n_keeping -= 1
        if self.is_tuned and not self.n_keeping:
            self.set(_MANY_MAPPINGS, 4 * _LARGE)
            trim()

    def await_quiet(self) -> None:
        """Return the memory of requests once none has come for a while, or they have come for long."""
        with self.lock:
            now_s = monotonic()
            if now_s - self.asked_s >= _QUIET_S or now_s - self.held_s >= _LATEST_S:
                self.held_s = 0.0
                self.end()
            else:
                _later(self.await_quiet)


def _later(act: Callable[[], None]) -> None:
    timer = Timer(_QUIET_S, act)
    timer.daemon = True
    timer.start()


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
        _TUNING.begin()
    try:
        yield
    finally:
        with _TUNING.lock:
            _TUNING.end()


def keep_between_requests() -> None:
    """Let this process keep freed memory until no request has come for 2 s, at most for a minute.

    Of a million events, a view of the timeline takes arrays of 30 MB in all. With 7,000 pages that the system
    mapped for each view its columns took 24 ms of CPU; with memory that the view before it had freed, 11 ms.
    """
    with _TUNING.lock:
        _TUNING.asked_s = monotonic()
        if _TUNING.held_s or not _TUNING.is_tuned:
            return
        _TUNING.held_s = _TUNING.asked_s
        _TUNING.begin()
        _later(_TUNING.await_quiet)


def trim() -> None:
    """Return freed memory of the heap to the system, also between what is in use; takes some ms.

    The columns of a file are in the heap, as it was read within ``keeping``.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
