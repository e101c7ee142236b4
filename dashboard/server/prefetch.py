"""Prefetch of runs and pages, so that a chart's answers are there before it needs them."""

import logging
from collections.abc import Hashable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from time import sleep

from vramscope.errors import VramscopeError
from vramscope.store.directory import ranks_of

from ..address import Address
from ..answers import series_of
from ..data import MAX_OPEN_RUNS, Data, View
from ..figures.drawing.series import TIME
from ..pages import Context, Page
from ..queries.headline import headline
from ..queries.rank_answers import queries_of
from ..runs import MOST_OPENED_WHOLE

MOST_RUNS = 2
"""Number of newest runs that are read: a folder may hold hundreds of gigabytes."""
_LOG = logging.getLogger(__name__)


def begin(data: Data) -> Thread:
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


class PagesAhead:
    """The other pages of a recording that was opened, laid out in the background for their cached answers.

    Recordings that grow have answers of their own, short ones are laid out at once, and the answers of very
    long ones would take too much memory.

    *pages* are in the order of the menu; those that are not ``is_prefetched`` are left out. Answers are kept
    in *data*, at most ``MAX_ANSWERS`` of each run.
    """

    def __init__(self, data: Data, pages: Sequence[Page]) -> None:
        self._data = data
        self._pages = [page for page in pages if page.about_run and page.reads_events and page.is_prefetched]
        self._lock = Lock()
        self._known: list[Hashable] = []
        self._wanted: SimpleQueue[View] = SimpleQueue()
        self._thread: Thread | None = None

    def open(self, view: View) -> None:
        """Lay out the pages of a recording, soon and once; one thread works for all of them."""
        pace = self._data.pace
        if view.is_live or not pace.events_at_once < len(view.recording.trace) <= pace.events_ahead:
            return
        with self._lock:
            if view.key in self._known:
                return
            self._known = [*self._known[1 - MAX_OPEN_RUNS :], view.key]
            self._wanted.put(view)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="vramscope-pages-ahead", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            view = self._wanted.get()
            sleep(self._data.pace.ahead_s)
            self.lay_out(view)

    def lay_out(self, view: View) -> None:
        """Lay out every page of *view*, unless its run was closed or another one was opened meanwhile."""
        for page in self._pages:
            # Not a moment longer: whoever reads one page of the run opens another one soon.
            self._data.precedence.until_quiet(0.0)
            if not self._wanted.empty() or not self._data.is_open(view.run_id):
                return
            recording = view.recording
            address = Address(page.path, view.run_id, recording.process.rank, recording.device.index)
            context = Context(self._data, address)
            try:
                page.layout(context)
                if page.ask_ahead is not None:
                    page.ask_ahead(view, context)
            except VramscopeError:
                continue  # the page shows the reason
            except Exception:  # noqa: BLE001 — the page shows the same error
                _LOG.debug("laying out %s ahead failed", page.name, exc_info=True)
