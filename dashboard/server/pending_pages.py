"""Pages that take long are laid out in the background; meanwhile the browser shows their progress."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from threading import Lock
from time import monotonic
from typing import Any

MOST_PENDING = 32
"""Limit of results that are kept: a user who leaves before the page is ready never fetches it."""
_N_THREADS = 4
_KEPT_S = 10.0
"""Seconds for which a page waits for its browser, which asks each second. One that was left and is opened
again later would show a run that grows as it was."""


class PendingPages:
    """Background work by name: a caller gets the result, or after a timeout None and may ask again."""

    def __init__(self, kept_s: float = _KEPT_S) -> None:
        self._kept_s = kept_s
        self._lock = Lock()
        self._pending: OrderedDict[str, Future[Any]] = OrderedDict()
        self._threads = ThreadPoolExecutor(_N_THREADS, thread_name_prefix="vramscope-page")

    def get(self, name: str, make: Callable[[], Any], at_most_s: float) -> Any:
        """Return the result of *make*; None where it takes longer.

        Work that is pending under *name* is not started again.
        """
        with self._lock:
            work = self._pending.get(name)
            if work is None or self._is_old(work):
                work = self._threads.submit(lambda: (make(), monotonic()))
            self._pending[name] = work
            while len(self._pending) > MOST_PENDING:
                self._pending.popitem(last=False)
        try:
            made, _ = work.result(at_most_s)
        except NotYet:
            return None
        with self._lock:
            if self._pending.get(name) is work:
                del self._pending[name]
        return made

    def _is_old(self, work: Future[Any]) -> bool:
        if not work.done() or work.exception() is not None:
            return False
        _, done_s = work.result()
        return bool(monotonic() - done_s > self._kept_s)

    def is_done(self, name: str, at_most_s: float = 0.0) -> bool:
        """Return whether :meth:`get` would return at once; waits *at_most_s* until it would."""
        with self._lock:
            work = self._pending.get(name)
        if work is not None:
            wait([work], at_most_s)
        return work is None or work.done()
