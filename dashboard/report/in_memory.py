"""Runs that are in memory, for pages: as they were read, or redacted."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from vramscope.model.recording import Run

from ..data import Data
from ..runs import Follower, Library


@contextmanager
def in_memory(*runs: Run) -> Iterator[tuple[Data, list[str]]]:
    """Yield the door to *runs*, as pages have it, and their ids in the same order."""
    with TemporaryDirectory(prefix="vramscope-") as folder:
        # A page asks whether the files of its run still exist.
        places = {Path(folder) / f"run{number}": run for number, run in enumerate(runs)}
        for place in places:
            place.mkdir()
        data = Data(Path(folder), _Opened(places))
        yield data, [*data.runs.paths()]


class _Opened(Library):
    """A source of runs that are read already."""

    def __init__(self, runs: dict[Path, Run]) -> None:
        self._runs = runs

    def discover(self, root: Path) -> Sequence[Path]:  # noqa: ARG002
        """Return the place of each run."""
        return [*self._runs]

    def follow(self, path: Path, *_: object) -> Follower:
        """Return the run at *path*."""
        return _Still(self._runs[path])


class _Still(Follower):
    """A run that does not grow while it is shown."""

    def __init__(self, run: Run) -> None:
        self._source = run
