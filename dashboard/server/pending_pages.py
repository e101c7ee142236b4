"""Pages that take long are laid out in the background, and the newest runs are read ahead."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from threading import Lock, Thread
from time import monotonic
from typing import Any

from vramscope.errors import VramscopeError
from vramscope.store.directory import ranks_of

from ..address import Address
from ..answers import series_of
from ..data import Data
from ..figures.drawing.series import TIME
from ..queries.headline import headline
from ..queries.rank_answers import queries_of
from ..runs import MOST_OPENED_WHOLE

MOST_PENDING = 32
"""Limit of results that are kept: a user who leaves before the page is ready never fetches it."""
_N_THREADS = 4
_KEPT_S = 10.0
"""Seconds for which a page waits for its browser, which asks each second. One that was left and is opened
again later would show a run that grows as it was."""
MOST_RUNS = 2
"""Number of newest runs that are read: a folder may hold hundreds of gigabytes."""
_LOG = logging.getLogger(__name__)


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


def read_ahead(data: Data) -> Thread:
    """Start to read the newest runs in the background, the newest first; return the thread."""
    thread = Thread(target=_read, args=(data,), name="vramscope-ahead", daemon=True)
    thread.start()
    return thread


def _read(data: Data) -> None:
    for run, path in list(data.runs.paths().items())[:MOST_RUNS]:
        _ask(data, run, has_many_ranks=len(ranks_of(path)) > MOST_OPENED_WHOLE)


def _ask(data: Data, run: str, *, has_many_ranks: bool) -> None:
    """Compute the overview's chart, then its headline; of many ranks their comparison alone."""
    try:
        if has_many_ranks:
            queries_of(data).get(run)
            return
        data.open_ahead(run)
        view = data.view(Address(run=run))
        if len(view.recording.trace) or len(view.recording.initial.blocks):
            series_of(data, view, TIME)
            data.precedence.until_quiet()
            headline(data, view)
    except VramscopeError:
        return  # opening the run shows the reason
    except Exception:  # noqa: BLE001 — opening the run shows the same error on its page
        _LOG.debug("reading %s ahead failed", run, exc_info=True)
