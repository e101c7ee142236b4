"""Answers over the whole of a recording that grows: computed now and then, and shown until the next."""

from collections.abc import Callable, Hashable
from threading import Lock, Thread
from time import monotonic, thread_time
from typing import Any, NamedTuple

from vramscope.model.recording import Recording


class Lag(NamedTuple):
    """How often an answer is computed again."""

    longer: float = 1.2
    """When the recording is longer by this factor: all times together then cost a few times the last one."""
    share: float = 0.02
    """Largest share of the time for it."""
    clock: Callable[[], float] = thread_time
    """What counts as its time, in seconds."""
    longest_s: float = float("inf")
    """The longest pause that follows from *share*."""
    meanwhile: Any = None
    """What is returned before the first answer, which a thread computes as every later one; a page waits for
    all of them where it is None."""


OF_ANALYSES = Lag()


class LaggingAnswers:
    """The last answers by key. Several threads may ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[Hashable, tuple[Any, int, int, float]] = {}
        """Each answer, the events and steps of its version, and the earliest time of the next."""
        self._making: dict[Hashable, Lock] = {}
        """Locks, each held while its answer is computed."""

    def ask(self, what: Hashable, recording: Recording, make: Callable[[], Any], lag: Lag) -> Any:
        """Return an answer over the full recording; it may be that of an earlier version.

        *what* is the key of the answer, *make* computes it, and *lag* says how often.
        """
        with self._lock:
            making = self._making.setdefault(what, Lock())
        # Where a thread computes it already, the others answer with what they have: at five million events
        # eight at once took 2 GB, and a page was four minutes late.
        is_awaited = lag.meanwhile is None
        if not making.acquire(blocking=is_awaited and self.latest(what) is None):
            return self.latest(what, lag.meanwhile)
        if is_awaited:
            return self._answered(what, recording, make, (lag, making))
        # On a busy machine a process took 12 s for it, and the page had no request to spare.
        if self._is_due(what, recording, lag):
            arguments = (what, recording, make, (lag, making))
            Thread(target=self._answered, args=arguments, daemon=True).start()
        else:
            making.release()
        return self.latest(what, lag.meanwhile)

    def latest(self, what: Hashable, meanwhile: Any = None) -> Any:
        """Return the last answer; *meanwhile* where there is none."""
        with self._lock:
            known = self._known.get(what)
        return known[0] if known is not None else meanwhile

    def _is_due(self, what: Hashable, recording: Recording, lag: Lag) -> bool:
        with self._lock:
            known = self._known.get(what)
        if known is None:
            return True
        _, n_events, n_steps, again_s = known
        now = len(recording.trace), len(recording.steps)
        is_longer = now[0] >= lag.longer * n_events or now[1] >= lag.longer * n_steps
        return is_longer and now != (n_events, n_steps) and monotonic() >= again_s

    def _answered(
        self, what: Hashable, recording: Recording, make: Callable[[], Any], of: tuple[Lag, Lock]
    ) -> Any:
        """Return the answer, computed if it is due; its lock is held, and released at the end."""
        lag, making = of
        try:
            if self._is_due(what, recording, lag):
                began = lag.clock()
                made = make()
                again_s = monotonic() + min((lag.clock() - began) / lag.share, lag.longest_s)
                with self._lock:
                    self._known[what] = made, len(recording.trace), len(recording.steps), again_s
            return self.latest(what)
        finally:
            making.release()
