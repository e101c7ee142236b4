"""Prefetch of the newest runs, so that they are read before the first chart needs them."""

import logging
from threading import Thread

from vramscope.errors import VramscopeError

from ..address import Address
from ..data import Data
from ..figures.drawing.series import TIME
from ..queries.answers import series_of
from ..queries.headline import headline

MOST_RUNS = 2
"""Number of newest runs that are read: a folder may hold hundreds of gigabytes."""
_LOG = logging.getLogger(__name__)


def begin(data: Data) -> Thread:
    """Start to read the newest runs in the background, the newest first; return the thread."""
    thread = Thread(target=_read, args=(data,), name="vramscope-ahead", daemon=True)
    thread.start()
    return thread


def _read(data: Data) -> None:
    for run in list(data.paths())[:MOST_RUNS]:
        _ask(data, run)


def _ask(data: Data, run: str) -> None:
    """Compute the overview's chart, then its headline."""
    try:
        view = data.view(Address(run=run))
        if len(view.recording.trace) or len(view.recording.initial.blocks):
            series_of(data, view, TIME)
            headline(data, view)
    except VramscopeError:
        return  # opening the run shows the reason
    except Exception:  # noqa: BLE001 — opening the run shows the same error on its page
        _LOG.debug("reading %s ahead failed", run, exc_info=True)
