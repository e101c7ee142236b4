"""When the history is read, and whether the ring is emptied then."""

from collections.abc import Callable
from time import monotonic

from vramscope.capture.cuda import history
from vramscope.capture.cuda.history import RawReading

_BOUNDARY_S, _FLUSH_S = 0.7, 1.0
"""Age of the last reading at which a boundary of the program, or the guard of the ring, reads again.

The guard looks every 0.1 s: with its own time this bounds what a killed process loses to two seconds.
"""
_MANY_NEW = 20_000
"""Number of new entries that are read at any age, by a boundary of the program or by the guard of the ring.

From torch 2.9 on an emptied ring begins without room, and each thread that allocates doubles it: 27 MB for
65,537 entries, of which glibc keeps nearly all in the heap of that thread.
"""
_MOST_RETRIES = 3
"""Number of readings soon after one whose emptying another thread prevented, which is one in 10 to 30."""
_RETRY_NEW = 2_000
"""Number of new entries that such a reading waits for."""
_MOST_TIME_SHARE = 0.05
"""Largest share of time spent on entries that were read before, where the ring cannot be emptied."""
_MOST_LOST_SHARE = 0.02
"""Largest share of emptied rings that may lose entries; above it the ring is not emptied any more.

Under three times the load of a busy machine it was 0.006.
"""


class ReadingPace:
    """What the readings so far say about the next one."""

    def __init__(self, n_entries: int) -> None:
        """Begin without a reading of a ring of *n_entries*."""
        self.n_entries = n_entries
        self.take_s = 0.0
        """Thread time of the last reading; the clock shows several times as much on a busy machine."""
        self._n_read = 0
        """The allocation count up to which the history has been read."""
        self._read_at = 0.0
        self._is_emptied = False
        """Whether the last reading emptied the ring."""
        self._n_emptied = self._n_lost_by_emptying = 0
        self._n_prevented = 0
        """Number of readings in a row whose emptying another thread prevented."""
        self._n_left = 0
        """Number of entries that the last reading left in the ring: the next one reads them again."""

    def has_read(self, n_allocations: int | None = None) -> None:
        """Take note that a reading has ended, up to an allocation count."""
        if n_allocations is not None:
            self._n_read = n_allocations
        self._read_at = monotonic()

    def reads_at_boundary(self, n_allocations: int, has_unread: Callable[[], bool]) -> bool:
        """Whether a boundary of the program reads, at an allocation count; asked eight times a step."""
        # An allocation makes about three entries: one for itself and two for its free.
        n_new = 3 * (n_allocations - self._n_read)
        # Nearly always neither time nor number can be enough, whatever was left.
        is_young = monotonic() - self._read_at <= _BOUNDARY_S
        if is_young and n_new <= min(_RETRY_NEW, self.n_entries // 2):
            return False
        return self._is_due(_BOUNDARY_S, has_unread) or n_new > self._most_new()

    def reads_by_guard(self, n_new: Callable[[], int], has_unread: Callable[[], bool]) -> bool:
        """Whether the guard of the ring reads: it fills up, or the program has passed no boundary."""
        return self._is_due(_FLUSH_S, has_unread) or n_new() > self._most_new()

    def _most_new(self) -> int:
        """Number of new entries that are read at any age: after some retries as many as were left."""
        most = _RETRY_NEW if self._is_retrying() else max(_MANY_NEW, self._n_left)
        return min(most, self.n_entries // 2)

    def _is_retrying(self) -> bool:
        return 0 < self._n_prevented <= _MOST_RETRIES

    def _is_due(self, age_s: float, has_unread: Callable[[], bool]) -> bool:
        # If the ring cannot be emptied, a reading takes all of it again, however little is new.
        is_long = self._n_left >= history.FEWEST_EMPTIED and not self._is_retrying()
        least = max(age_s, self.take_s / _MOST_TIME_SHARE) if is_long else age_s
        return monotonic() - self._read_at > least and has_unread()

    def wants_emptying(self, n_new: Callable[[], int]) -> bool:
        """Whether the ring is worth emptying, and that is safe enough.

        It is safe while few attempts lost entries to threads of C++.
        """
        if self._n_lost_by_emptying > 1 + self._n_emptied * _MOST_LOST_SHARE:
            return False
        least = min(history.FEWEST_EMPTIED, self.n_entries // 2)
        return self._n_left + n_new() >= least

    def count_emptying(self, raw: RawReading, *, is_wanted: bool, is_whole: bool) -> None:
        """Take note whether the last emptying lost entries, and of what this reading leaves in the ring."""
        n_read = max(map(len, raw.snapshot["device_traces"]), default=0)
        if self._is_emptied and n_read < self.n_entries:
            self._n_lost_by_emptying += not is_whole
        self._is_emptied = raw.is_emptied
        self._n_emptied += raw.is_emptied
        self._n_left = 0 if raw.is_emptied else n_read
        self._n_prevented = self._n_prevented + 1 if is_wanted and not raw.is_emptied else 0
