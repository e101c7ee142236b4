"""Findings of a run that grows, in a process of their own that follows it.

A search of a million events takes 0.4 s, for which pages of the server would wait: it has one lock.
The process reads the files itself, and searches what it has followed each time that it is asked.
"""

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from time import process_time
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from vramscope import conversion_cache
from vramscope.columns.scratch import Scratch
from vramscope.errors import VramscopeError
from vramscope.following.growing import Following
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording, Run

from ..runs import Library

if TYPE_CHECKING:  # the process starts in half the time without them
    from ..data import Data, View

_NICENESS = 5
"""The training, the server and the browser go first where all cores are busy."""
_LOG = logging.getLogger(__name__)


class LatestFindings(NamedTuple):
    """The findings of all analyses but the peak, most severe first, and the instant they refer to."""

    findings: list[Finding]
    instant: int
    """Instant up to which they hold: those of a live run lag by some seconds."""


class FindingsProcess:
    """A process that follows one recording; it starts with the first search, and ends with this one."""

    def __init__(self, path: Path, recording: Recording) -> None:
        """Follow the rank and device of *recording*, whose run is at *path*."""
        self._arguments = [str(path), str(recording.process.rank), str(recording.device.index)]
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        """What ends the process, with this object or with the server."""
        self._has_failed = False
        self.spent_s = 0.0
        """CPU seconds of the process until its last answer."""

    @staticmethod
    def path(data: "Data", view: "View") -> Path | None:
        """Return where the run is if its files are here and it is long enough for a process; else None."""
        is_long = len(view.recording.trace) > data.pace.events_searched_here
        place = data.runs.location(view.run_id) if is_long else None
        return place if isinstance(place, Path) else None

    def search(self) -> LatestFindings | None:
        """Return the findings of what is written by now; None where the process failed, now or before."""
        with self._lock:
            if self._has_failed:
                return None
            try:
                found = self._asked()
            except (OSError, ValueError, KeyError, TypeError):
                self._has_failed = True
                if self._end is None or self._end.alive:  # it was not ended with the server
                    _LOG.warning("the process for findings failed; the server searches itself", exc_info=True)
                return None
        self.spent_s = float(found["spent_s"])
        return LatestFindings([Finding(**each) for each in found["findings"]], int(found["n_events"]))

    def _asked(self) -> dict[str, Any]:
        if self._process is None:
            # The child has the code of this process, however it was put on the path.
            paths = os.pathsep.join(path for path in sys.path if path)
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", __name__, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": paths},
            )
            self._end = finalize(self, _ended, self._process)
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _ended(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None  # noqa: S101 - for the type checker
        with suppress(BrokenPipeError):  # what was written last reached nobody
            pipe.close()


class Search:
    """What the process follows."""

    def __init__(self, path: Path, rank: int, device: int) -> None:
        self._of = rank, device
        self._scratch = Scratch(conversion_cache.cache_directory())
        self._follower = Library().follow(path, scratch=self._scratch)
        self._following = Following(self._recording(self._follower.run), self._scratch, finds=True)

    def answer(self) -> dict[str, Any]:
        """Return the findings of what is written by now, as JSON has them."""
        self._follower.refresh()
        recording = self._recording(self._follower.run)
        found = self._following.findings(recording)
        return {
            "n_events": len(recording.trace),
            "spent_s": process_time(),
            "findings": [asdict(each) | {"evidence": dict(each.evidence)} for each in found],
        }

    def _recording(self, run: Run) -> Recording:
        return next(one for one in run.recordings if (one.process.rank, one.device.index) == self._of)


def _serve(requests: IO[bytes]) -> None:
    """Answer each line, until the server closes the pipe or ends."""
    os.nice(_NICENESS)
    path, rank, device = sys.argv[1:]
    with suppress(VramscopeError, BrokenPipeError):
        search = Search(Path(path), int(rank), int(device))
        for _ in requests:
            sys.stdout.write(f"{json.dumps(search.answer())}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer)
