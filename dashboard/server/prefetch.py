"""What will be asked first? Asked before anybody does, so that the first chart finds the run read."""

import logging
from threading import Thread

from vramscope.errors import VramscopeError

from ..address import Address
from ..data import Data
from ..figures.drawing.series import TIME
from ..queries.answers import series_of
from ..queries.headline import headline

MOST_RUNS = 2
"""The newest: a folder may hold hundreds of gigabytes."""
_LOG = logging.getLogger(__name__)


def begin(data: Data) -> Thread:
    """Read the newest runs in the background, the newest first."""
    thread = Thread(target=_read, args=(data,), name="vramscope-ahead", daemon=True)
    thread.start()
    return thread


def _read(data: Data) -> None:
    for run in list(data.paths())[:MOST_RUNS]:
        _ask(data, run)


def _ask(data: Data, run: str) -> None:
    """The chart of the overview, then who holds the peak."""
    try:
        view = data.view(Address(run=run))
        if len(view.recording.trace) or len(view.recording.initial.blocks):
            series_of(data, view, TIME)
            headline(data, view)
    except VramscopeError:
        return  # who opens it is told why
    except Exception:  # noqa: BLE001 — whoever opens the run meets the same error, in its place
        _LOG.debug("reading %s ahead failed", run, exc_info=True)
