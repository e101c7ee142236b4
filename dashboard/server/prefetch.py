"""Prefetch of the newest runs, so that they are read before the first chart needs them."""

import logging
from threading import Thread

from vramscope.errors import VramscopeError
from vramscope.store.directory import ranks_of

from ..address import Address
from ..data import MOST_OPENED_WHOLE, Data
from ..figures.drawing.series import TIME
from ..queries.answers import series_of
from ..queries.headline import headline
from ..queries.rank_answers import queries_of

MOST_RUNS = 2
"""Number of newest runs that are read: a folder may hold hundreds of gigabytes."""
_LOG = logging.getLogger(__name__)


def begin(data: Data) -> Thread:
    """Start to read the newest runs in the background, the newest first; return the thread."""
    thread = Thread(target=_read, args=(data,), name="vramscope-ahead", daemon=True)
    thread.start()
    return thread


def _read(data: Data) -> None:
    for run, path in list(data.paths().items())[:MOST_RUNS]:
        _ask(data, run, has_many_ranks=len(ranks_of(path)) > MOST_OPENED_WHOLE)


def _ask(data: Data, run: str, *, has_many_ranks: bool) -> None:
    """Compute the overview's chart, then its headline; of many ranks their comparison alone."""
    try:
        if has_many_ranks:
            queries_of(data).get(run)
            return
        view = data.view(Address(run=run))
        if len(view.recording.trace) or len(view.recording.initial.blocks):
            series_of(data, view, TIME)
            headline(data, view)
    except VramscopeError:
        return  # opening the run shows the reason
    except Exception:  # noqa: BLE001 — opening the run shows the same error on its page
        _LOG.debug("reading %s ahead failed", run, exc_info=True)
