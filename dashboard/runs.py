"""The runs below one folder or at one URL, by ids that reveal no path, and the state of their files."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2s
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, thread_time
from typing import TypeAlias

from vramscope import loading
from vramscope.columns.scratch import Scratch
from vramscope.errors import UnknownNameError, VramscopeError
from vramscope.formats import Watch
from vramscope.model.recording import Outcome
from vramscope.store.directory import rank_of
from vramscope.store.sources import SOURCES_FILE
from vramscope.store.summaries import SUMMARY_FILE

_ONE_RANK = re.compile(r"(.+)\.rank([0-9]{1,9})", re.ASCII)
_BESIDE = tuple(f"{Path(name).stem}." for name in (SUMMARY_FILE, SOURCES_FILE))
"""The names of what is derived from a run begin with these, those of the temporary files too."""
MAY_BE_WRITTEN = frozenset({Outcome.RUNNING, Outcome.DIED})
"""Outcomes of a run whose files may still change: a live process of another machine may look dead."""
LONG_SCAN_S = 0.03
"""CPU seconds of a search of the folder from which on nobody waits for the next: some 400 runs."""
_ID_BYTES, _LONGEST_ID_BYTES = 8, 32
MOST_OPENED_WHOLE = 8
"""A run of more ranks is shown from their summaries; its ranks are opened one at a time."""

Follower: TypeAlias = loading.Follower
HurriedFollower: TypeAlias = loading.HurriedFollower

Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of last change of each file."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often files are checked, and how long a page may take; several pages may follow one run."""

    scan_s: float = 1.0
    """Seconds between two searches of the folder for runs."""
    refresh_s: float = 0.25
    """Seconds between two checks of a run for new events."""
    share: float = 0.2
    """Largest part of one core for the questions of pages about a run that grows.

    At 10,000 events a second two pages use 0.12; with 0.1, and a request each second, they lagged by 1.04 s
    in the median and 2.27 s at most, with this by 0.30 and 1.61.
    """
    longest_s: float = 10.0
    """The longest pause in seconds that follows from *share*."""
    listed_s: float = 5.0
    """Seconds between two checks by the list of a run that has ended or is quiet: it may be replaced."""
    live_ms: int = 500
    """Milliseconds between two requests of a page about a run that grows."""
    idle_ms: int = 2000
    """Milliseconds between two requests of any other page."""
    blank_s: float = 0.8
    """Seconds that a page may stay blank; then it shows what it is waiting for."""
    blank_unread_s: float = 0.4
    """The same for a page of a run that is not open yet; at most the other."""
    left_s: float = 2.0
    """Seconds without a sign of a page after which background work for it pauses; a page asks every 0.4 s."""
    events_searched_here: int = 50_000
    """A running run with more events is searched in another process, which takes 0.5 s to start."""
    events_at_once: int = 200_000
    """A recording with more events shows its chart first and the findings later."""


class Library:
    """Finds and opens the runs below a local folder."""

    def discover(self, root: Path) -> Sequence[Path]:
        """Return runs and files below *root*, newest first."""
        return loading.discover(root)

    def location(self, path: Path) -> Path | str:
        """Return where a run is: its path, or its URL where its files are copied from a store."""
        return path

    def follow(self, path: Path, watch: Watch | None = None, scratch: Scratch | None = None) -> Follower:
        """Open a run; the options are those of ``loading.HurriedFollower``."""
        place = self.location(path)
        return HurriedFollower(place, watch, scratch) if isinstance(place, Path) else loading.follow(place)


class Catalogue:
    """All runs below one folder, or of one file. Threads may share it.

    *library* finds and opens them, *pace* says how often the folder is searched.
    """

    def __init__(self, root: Path, library: Library, pace: Pace) -> None:
        self.root = root
        self.library = library
        self.shown_root = str(getattr(library, "url", root))
        """The folder as the user named it."""
        self._pace = pace
        self._lock = Lock()
        self._paths: dict[str, Path] = {}
        self._scanned_s = float("-inf")
        self._scan_took_s = 0.0
        self._searching: Thread | None = None

    def paths(self) -> dict[str, Path]:
        """Return the path of every run by id, newest first; the folder is searched again after a second.

        Nobody waits for another search of a large folder: what it finds comes with a later call.
        """
        with self._lock:
            pause_s = self._pace.scan_s * max(1.0, self._scan_took_s / self._pace.share)
            is_searched = self._searching is not None and self._searching.is_alive()
            if not is_searched and monotonic() - self._scanned_s > pause_s:
                if self._scan_took_s < LONG_SCAN_S:
                    self._scan()
                else:
                    self._searching = Thread(target=self._scan_beside, name="vramscope-runs", daemon=True)
                    self._searching.start()
            return self._paths

    def _scan_beside(self) -> None:
        self._scan_took_s, self._scanned_s = 0.0, monotonic()
        # The next call searches in its own thread, and says what is wrong.
        with suppress(OSError, VramscopeError):
            self._scan()

    def _scan(self) -> None:
        """Search the folder for the paths by their ids: the longest ones for all that would share one."""
        began = thread_time()
        sharing: dict[str, list[Path]] = {}
        for path in self.library.discover(self.root):
            sharing.setdefault(run_id(path), []).append(path)
        self._paths = {
            name if len(same) == 1 else run_id(path, _LONGEST_ID_BYTES): path
            for name, same in sharing.items()
            for path in same
        }
        self._scanned_s, self._scan_took_s = monotonic(), thread_time() - began

    def path(self, name: str) -> Path:
        """Return the path of a run; raises UnknownNameError where the run does not exist, or no longer."""
        path = self.path_if_any(name)
        if path is None or not path.exists():
            raise UnknownNameError(
                "This folder has no run of that name: the run was moved or deleted, or the link belongs to "
                "another folder or to an earlier vramscope, whose ids were shorter. "
                "Choose a run of the list, or serve the folder that has it."
            )
        return path

    def path_if_any(self, name: str) -> Path | None:
        """Return the path of a run, which may be deleted already; None for a name of no run."""
        path = self.paths().get(name)
        # One rank of a run as a run of its own: those with a thousand ranks are never opened as a whole.
        whole = self.whole_run(name) if path is None else None
        return path if whole is None else rank_of(self.paths()[whole[0]], whole[1])

    def whole_run(self, name: str) -> tuple[str, int] | None:
        """Return the run and the rank where *name* is that of one rank of a run (:func:`one_rank`)."""
        found = _ONE_RANK.fullmatch(name)
        is_one = found is not None and name not in self.paths() and found[1] in self.paths()
        return (found[1], int(found[2])) if found is not None and is_one else None

    def location(self, name: str) -> Path | str:
        """Return where a run is: its path, or its URL where its files are copied from a store."""
        return self.library.location(self.path(name))


def one_rank(run: str, rank: int) -> str:
    """Return the id of one rank of a run, as a run of its own."""
    return f"{run}.rank{rank}"


def run_id(path: Path, n_bytes: int = _ID_BYTES) -> str:
    """Return a readable id for a run that does not reveal its path.

    It follows from the absolute path alone: a link stays valid after a restart, whichever folder is served.
    """
    # Not Path.resolve(): it costs a system call per folder, for 1,000 runs every second.
    place = os.path.abspath(path)  # noqa: PTH100
    word = re.sub(r"[^A-Za-z0-9]+", "-", Path(place).name).strip("-")[:60] or "run"
    return f"{word}-{blake2s(os.fsencode(place), digest_size=n_bytes).hexdigest()}"


def stamp(path: Path) -> Stamp:
    """Return the state of a run's files without reading them; empty where they are deleted.

    A summary does not count: a reader may keep one in a run that has none; nor do the kept source lines.
    """
    try:
        files = [path] if path.is_file() else [*path.glob("*.*"), *path.glob("rank*/*.*")]
        found = ((str(file), file.stat()) for file in files if not file.name.startswith(_BESIDE))
        return tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in found))
    except OSError:
        return ()


def changed_ns(path: Path) -> int:
    """Return when a run or file was last written to, in ns; 0 where it is deleted."""
    try:
        inside = [path, *path.iterdir(), *path.glob("*/*")] if path.is_dir() else [path]
        return max(entry.stat().st_mtime_ns for entry in inside)
    except OSError:
        return 0
