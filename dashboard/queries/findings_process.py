"""Findings of a run that grows, in a process of their own.

A search of a million events takes 2 s and 300 MB. In the server each of them was 100 MB of memory and a page
that waited for the interpreter's lock. The process reads the files itself, and ends with its answer.
"""

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from vramscope.analysis import analyses
from vramscope.analysis.findings import collect
from vramscope.analysis.shared_results import shared_results
from vramscope.errors import VramscopeError
from vramscope.model.finding import Finding

if TYPE_CHECKING:  # the process starts in half the time without them
    from ..data import Data, View

_NICENESS = 5
"""The training, the server and the browser go first where all cores are busy."""
_LOG = logging.getLogger(__name__)


def is_searched_apart(data: "Data", view: "View") -> bool:
    """Return whether the recording is one of a long run that grows, whose files are here."""
    is_long = view.is_live and len(view.recording.trace) > data.pace.events_searched_here
    return is_long and isinstance(data.location(view.run_id), Path)


def findings_apart(data: "Data", view: "View") -> tuple[list[Finding], int] | None:
    """Return the findings of a recording, and the number of events that were searched.

    Returns None where the process failed, or is not meant for this recording.
    """
    if not is_searched_apart(data, view):
        return None
    recording = view.recording
    try:
        return _asked(data.path(view.run_id), recording.process.rank, recording.device.index)
    except (OSError, ValueError, KeyError, TypeError, VramscopeError):
        _LOG.warning("the process for findings failed; the server searches itself", exc_info=True)
        return None


def _asked(path: Path, rank: int, device: int) -> tuple[list[Finding], int]:
    # The code of this process, however it was put on the path.
    paths = os.pathsep.join(each for each in sys.path if each)
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", __name__, str(path), str(rank), str(device)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert process.stdout is not None  # noqa: S101 - for the type checker
    # Its input stays open until it has answered: it ends when the server ends.
    with process:
        found = json.loads(process.stdout.read())
    return [Finding(**each) for each in found["findings"]], int(found["n_events"])


def _answer(path: str, rank: str, device: str) -> dict[str, Any]:
    from ..address import Address
    from ..data import Data

    data = Data(Path(path))
    recording = data.view(Address(run=next(iter(data.paths())), rank=int(rank), device=int(device))).recording
    offered = analyses()
    with shared_results():
        found = collect(lambda name: offered[name].run(recording))
    return {
        "n_events": len(recording.trace),
        "findings": [asdict(each) | {"evidence": dict(each.evidence)} for each in found],
    }


def _end_with_the_server() -> None:
    # Not by sys.stdin: the interpreter could not shut down while a thread reads it.
    with suppress(OSError):
        os.read(0, 1)
    os._exit(0)


def _serve() -> None:
    os.nice(_NICENESS)
    Thread(target=_end_with_the_server, daemon=True).start()
    with suppress(VramscopeError, BrokenPipeError):
        json.dump(_answer(*sys.argv[1:]), sys.stdout)
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
