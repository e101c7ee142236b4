"""Pages that take long are laid out in the background; meanwhile the browser shows their progress."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from threading import Lock
from typing import Any

MOST_PENDING = 32
"""Limit of results that are kept: a user who leaves before the page is ready never fetches it."""
_N_THREADS = 4


class PendingPages:
    """Background work by name: a caller gets the result, or after a timeout None and may ask again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: OrderedDict[str, Future[Any]] = OrderedDict()
        self._threads = ThreadPoolExecutor(_N_THREADS, thread_name_prefix="vramscope-page")

    def get(self, name: str, make: Callable[[], Any], at_most_s: float) -> Any:
        """Return the result of *make*; None where it takes longer.

        Parameters
        ----------
        name
            Key of the work; work that is pending under it is not started again.
        make
            The work.
        at_most_s
            Seconds to wait.
        """
        with self._lock:
            work = self._pending.get(name) or self._threads.submit(make)
            self._pending[name] = work
            while len(self._pending) > MOST_PENDING:
                self._pending.popitem(last=False)
        try:
            made = work.result(at_most_s)
        except NotYet:
            return None
        with self._lock:
            if self._pending.get(name) is work:
                del self._pending[name]
        return made

    def is_done(self, name: str) -> bool:
        """Return whether :meth:`get` would return at once."""
        with self._lock:
            work = self._pending.get(name)
        return work is None or work.done()
