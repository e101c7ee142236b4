"""Hands what is found to somebody outside of vramscope, on a thread that no step and no end waits for."""

import threading
from collections.abc import Callable
from queue import Full, SimpleQueue
from time import monotonic

from vramscope.model.finding import Located
from vramscope.recorder.messages import warn
from vramscope.stalls import own_thread

_MOST_WAITING = 64
_LONGEST_END_S = 5.0


class Receiver:
    """Calls *deliver* with one finding after the other; what it raises becomes one warning."""

    def __init__(
        self, name: str, deliver: Callable[[Located], object], longest_end_s: float = _LONGEST_END_S
    ) -> None:
        """Deliver to what warnings call *name*, on a thread that begins here: an ending program has none."""
        self._name = name
        self._deliver = deliver
        self._longest_end_s = longest_end_s
        self._waiting: SimpleQueue[Located | None] = SimpleQueue()
        self._has_warned = False
        self._thread: threading.Thread | None = None
        try:
            thread = own_thread(self._work, "alerts")
            thread.start()
            self._thread = thread
        except RuntimeError as error:
            self._warn(error)

    def put(self, found: Located) -> None:
        """Deliver *found* later; it is dropped where very many wait already."""
        if self._waiting.qsize() >= _MOST_WAITING:
            self._warn(Full(f"{_MOST_WAITING} findings wait already"))
        elif self._thread is not None:
            self._waiting.put(found)

    def close(self) -> None:
        """Wait for what is not delivered yet, for five seconds at most."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            began_s = monotonic()
            thread.join(self._longest_end_s)
            if thread.is_alive():
                self._warn(TimeoutError(f"not ready within {monotonic() - began_s:.0f} s"))

    def disown(self) -> None:
        """Leave what waits to the parent: this is a forked child."""
        self._waiting, self._thread = SimpleQueue(), None

    def _work(self) -> None:
        while (found := self._waiting.get()) is not None:
            try:
                self._deliver(found)
            # It is the program's, or somebody's server: whatever comes of it, the training goes on.
            except BaseException as error:  # noqa: BLE001, PERF203
                self._warn(error)

    def _warn(self, error: BaseException) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(f"vramscope: {self._name} fails, training goes on: {type(error).__name__}: {error}")
