"""Precedence of what users wait for over work in the background."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition, get_native_id
from time import monotonic, sleep, thread_time

QUIET_S = 1.0
"""Seconds without a page before work in the background goes on: the browser asks for the chart of a page some
0.3 s after its layout.
"""
_NICENESS = 5
LONGEST_S = 20.0
"""The longest pause in seconds, so that a page that hangs does not keep what others need."""
_RESTS, _LONGEST_REST_S = 9, 0.25
"""How many times longer than it worked long work rests while a hand moves, and at most how many seconds."""


class Precedence:
    """What users wait for now; background work asks when it may go on.

    Work in the background goes on after *quiet_s* without a page, and pauses for *longest_s* at most.
    """

    def __init__(self, quiet_s: float = QUIET_S, longest_s: float = LONGEST_S) -> None:
        self._quiet_s, self._longest_s = quiet_s, longest_s
        self._changed = Condition()
        self._n_pages = 0
        self._last_page_s = float("-inf")
        self._wanted: Counter[str] = Counter()
        """How many threads wait for each run to be read."""

    @contextmanager
    def page(self) -> Iterator[None]:
        """Mark that a page or its chart is computed within the block."""
        with self._changed:
            self._n_pages += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_pages -= 1
                self._last_page_s = monotonic()
                self._changed.notify_all()

    @contextmanager
    def wants(self, run: str) -> Iterator[None]:
        """Mark that somebody waits within the block for *run* to be read."""
        with self._changed:
            self._wanted[run] += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._wanted[run] -= 1
                if not self._wanted[run]:
                    del self._wanted[run]
                self._changed.notify_all()

    def let_pass(self, run: str) -> None:
        """Wait while users wait for other runs and nobody for *run*, which is being read."""
        end_s = monotonic() + self._longest_s
        with self._changed:
            while self._wanted and run not in self._wanted and monotonic() < end_s:
                self._changed.wait(end_s - monotonic())

    def until_quiet(self) -> None:
        """Wait until no page is computed, and none was for as long as usual."""
        end_s = monotonic() + self._longest_s
        with self._changed:
            while (now := monotonic()) < end_s:
                is_busy = self._n_pages > 0 or bool(self._wanted)
                quiet_at_s = self._last_page_s + self._quiet_s
                if not is_busy and now >= quiet_at_s:
                    return
                self._changed.wait(end_s - now if is_busy else min(quiet_at_s, end_s) - now)

    def rest_s(self, worked_s: float) -> float:
        """Return how long work in the background rests after a piece that took *worked_s* seconds.

        Not at all while no hand moves. Else it goes on slowly: it ends also where somebody moves for minutes.
        """
        with self._changed:
            is_quiet = not self._n_pages and monotonic() >= self._last_page_s + self._quiet_s / 2
        return 0.0 if is_quiet else min(_RESTS * worked_s, _LONGEST_REST_S)

    def resting(self) -> Callable[[], None]:
        """Return what a long computation in this thread calls between its pieces of some milliseconds."""
        resumed_s = thread_time()

        def rest() -> None:
            nonlocal resumed_s
            sleep(self.rest_s(thread_time() - resumed_s))
            resumed_s = thread_time()

        return rest


def let_others_go_first() -> None:
    """Lower the priority of this thread for good: of work that takes minutes, in Python.

    Where all cores are busy, the training, the browser and the threads that answer pages then run first. On
    600,000 events, beside a replay, zooms were answered in 18 ms (median) and 47 (p95) so, and in 15 and 36
    beside one in a process of its own.
    """
    with suppress(AttributeError, OSError):  # of Linux
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICENESS)
