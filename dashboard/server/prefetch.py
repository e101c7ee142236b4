"""Prefetch of runs, so that a chart's answers are there before it needs them."""

import logging
from threading import Thread

from vramscope.errors import VramscopeError
from vramscope.store.directory import ranks_of

from ..address import Address
from ..answers import series_of
from ..data import Data
from ..figures.drawing.series import TIME
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
