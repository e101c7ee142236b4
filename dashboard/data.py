"""Access to recordings: opens runs, follows them and caches the answers about them.

A run is named by an id of a closed dict; a path never comes from a request. Derived values are cached per
(run, version) and dropped when the run grows. The server's threads share one ``Data``.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock, Thread
from time import monotonic, time
from typing import Any

from vramscope import analysis, conversion_cache
from vramscope.analysis.shared_results import most_needed, shared_results
from vramscope.columns.scratch import Scratch
from vramscope.errors import UnknownNameError, VramscopeError
from vramscope.model.recording import Outcome, Recording, Run

from .address import Address
from .answers.finished import Answers
from .answers.live import LiveAnswers, LiveRecording
from .answers.open_run import OpenRun
from .queries.precedence import Precedence
from .queries.read_progress import Readings, ReadProgress
from .runs import Catalogue, Follower, HurriedFollower, Library, Pace, Stamp, changed_ns, stamp
from .server.malloc_tuning import keeping, trim

MAX_OPEN_RUNS = 6


@dataclass(frozen=True, slots=True)
class View:
    """One recording of one run, at one version."""

    run_id: str
    version: int
    run: Run
    recording: Recording

    @property
    def key(self) -> tuple[Hashable, ...]:
        """The key of everything that is derived from this view."""
        return (self.run_id, self.version, *self.here[1:])

    @property
    def here(self) -> tuple[str, int, int, int | None]:
        """Run, rank, device and restart, as an address has them."""
        process = self.recording.process
        return self.run_id, process.rank, self.recording.device.index, process.restarts or None

    @property
    def is_live(self) -> bool:
        """Whether the run is running, so that more events may come."""
        return self.run.outcome is Outcome.RUNNING


class Data:
    """Every run below one folder, or one file.

    *library* says where runs come from, local folders where None; *pace* how often files are checked.
    """

    def __init__(self, root: Path, library: Library | None = None, pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        self.runs = Catalogue(root, library or Library(), self.pace)
        """The catalogue of all runs."""
        self.precedence = Precedence()
        """What users wait for, which background work lets go first."""
        self.is_read_only = False
        """Whether viewers may read comments alone, since other machines reach the server."""
        self._scratch = Scratch(conversion_cache.cache_directory())
        self._lock = RLock()
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._began: dict[str, tuple[int, int]] = {}
        """Start time and last version of the run that was last opened under each id."""
        self._readings = Readings()
        self._opening: dict[str, RLock] = {}
        """Locks, each held while its run is read for the first time."""
        self._refused: dict[str, tuple[Stamp, VramscopeError]] = {}
        """Why a run cannot be read, with the stamp of those files."""

    def is_open(self, name: str, key: Hashable = None) -> bool:
        """Return whether a run is open, so that its events are read; with *key*, that answer known too."""
        with self._lock:
            opened = self._open.get(name)
            return opened is not None and (key is None or opened.has(key))

    def open_ahead(self, name: str) -> None:
        """Open a run for which nobody waits: reading it pauses while users wait for other runs."""
        self._open_once(name, self.runs.path(name))

    def view(self, address: Address) -> View:
        """Return the recording that *address* names; a VramscopeError says what is wrong with it."""
        opened = self._opened(address.run)
        with opened.lock:
            run = opened.follower.run
            return View(address.run, opened.version, run, _choose(run, address))

    def refresh(self, name: str, *, is_visited: bool = False) -> int:
        """Read what is new of a run, as often as the pace allows; return its version.

        Where *is_visited*, a page is loaded: it shows the files of an ended run as they are now.
        """
        opened = self._opened(name)
        with opened.lock:
            is_now = is_visited and opened.follower.run.outcome is not Outcome.RUNNING
            if not is_now and not opened.is_due(self.pace):
                return opened.version
            opened.begin_refresh()
            is_altered = opened.was_altered(stamp(self.runs.path(name)))
            has_grown = not is_altered and opened.read_on()
            if not has_grown and not is_altered:
                return opened.version
            if has_grown and opened.follower.run.started_ns <= self._began[name][0]:
                opened.grow(stamp(self.runs.path(name)))
                self._began[name] = opened.follower.run.started_ns, opened.version
                return opened.version
        # Offsets into the old files do not apply to the new ones.
        self._forget(name)
        return self._again(name, opened, is_altered=is_altered).version

    def _again(self, name: str, before: OpenRun, *, is_altered: bool) -> OpenRun:
        """Read a run from its beginning; for pages it is a later version."""
        if is_altered:
            self._began[name] = before.follower.run.started_ns, before.version + 1
        opened = self._opened(name)
        opened.is_altered = is_altered and not opened.is_other
        return opened

    def is_opening(self, name: str) -> bool:
        """Return whether a thread is reading that run for the first time."""
        with self._lock:
            return name in self._opening

    def reading(self, name: str) -> ReadProgress | None:
        """Return how much of a file that is being opened is read; None where unknown."""
        path = self.runs.path_if_any(name) if self.is_opening(name) else None
        return self._readings.progress(name, path)

    def stalled_s(self, name: str) -> int:
        """Return for how long nothing came of a running run, as ``OpenRun.stalled_s`` has it."""
        return self._opened(name).stalled_s

    def is_other(self, name: str) -> bool:
        """Return whether another run is at that path than when it was first opened."""
        return self._opened(name).is_other

    def is_altered(self, name: str) -> bool:
        """Return whether the files changed after the run had ended; pages show their current content."""
        return self._opened(name).is_altered

    def read(self, name: str) -> Run:
        """Return the run of that id; it is kept open only where it is open already, or still running."""
        with self._lock:
            opened = self._open.get(name)
        if opened is None and not self.is_opening(name):
            follower = self._read_first(name, self.runs.path(name))
            if isinstance(follower, HurriedFollower):
                follower.settle()
            if follower.run.outcome is not Outcome.RUNNING:
                return follower.run
        self.refresh(name)
        return self._opened(name).follower.run

    def answers(self, view: View) -> Answers:
        """Return who answers questions about a recording: one that grows is followed."""
        if view.is_live:
            opened = self._opened(view.run_id)
            with opened.lock:
                if opened.follower.run.outcome is Outcome.RUNNING:  # it may have ended since
                    key = view.key[2:]
                    if key not in opened.live_recordings:
                        opened.live_recordings[key] = LiveRecording(view.recording, self._scratch)
                    return LiveAnswers(self, view, opened.live_recordings[key], opened.apart)
        return Answers(self, view)

    def ask(self, view: View, question: str, **options: Any) -> Any:
        """Return the answer of the analysis *question*, computed once per (view, options)."""
        key = (question, *sorted(options.items()))
        return self.derive(view, key, lambda recording: answer(recording, question, **options))

    @contextmanager
    def sharing(self, view: View) -> Iterator[None]:
        """Begin the analyses of a block with what is known of their view, and keep what others begin with.

        Half of them begin with the totals and the lifetimes, which take 0.1 s each per million events.
        """
        opened = self._opened(view.run_id)
        with shared_results(view.recording, opened.analyzed(view.key)) as known:
            known.update(opened.begun(view.key, view.recording))
            yield
        opened.keep(view.key, view.recording, most_needed(known))

    def derive(self, view: View, what: Hashable, make: Callable[[Recording], Any]) -> Any:
        """Return ``make(recording)``, computed once per (view, *what*).

        A second thread that needs the same value waits for it; threads that need another do not wait.
        """

        def made() -> Any:
            with self.sharing(view):
                return make(view.recording)

        return self._opened(view.run_id).derive((view.key, what), made)

    def _opened(self, name: str) -> OpenRun:
        path = self._path(name)
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
                return self._open[name]
        with self.precedence.wants(name):
            return self._open_once(name, path)

    def _open_once(self, name: str, path: Path) -> OpenRun:
        with self._lock:
            opening = self._opening.setdefault(name, RLock())
        # Two threads must not read the same gigabyte; a thread that needs another run does not wait.
        with opening:
            try:
                return self._read(name, path)
            finally:
                with self._lock:
                    self._opening.pop(name, None)

    def _read(self, name: str, path: Path) -> OpenRun:
        with self._lock:
            opened = self._open.get(name)
        if opened is None:
            opened = self._follow(name, path)
            with self._lock:
                self._open[name] = opened
                is_full = len(self._open) > MAX_OPEN_RUNS
                while len(self._open) > MAX_OPEN_RUNS:
                    self._open.popitem(last=False)
            if is_full:
                trim()
            self._settle_later(name, opened)
        return opened

    def _settle_later(self, name: str, opened: OpenRun) -> None:
        """Keep the totals of a file that was read in a hurry, and settle it once its first chart is shown."""
        taken = opened.take_totals()
        if taken is not None:
            view = View(name, opened.version, opened.follower.run, taken[0])
            opened.answers[(view.key, ("timeline",))] = taken[1]
            waits = (self.precedence,)
            Thread(target=opened.settle, args=waits, name="vramscope-settle", daemon=True).start()

    def _follow(self, name: str, path: Path) -> OpenRun:
        """Read the run for the first time; files that failed to be read are tried again when they change."""
        now = stamp(path)
        known = self._refused.get(name)
        if known is not None and known[0] == now:
            raise known[1]
        try:
            opened = self._new(name, self._read_first(name, path))
        except VramscopeError as error:
            self._refused[name] = now, error
            raise
        self._refused.pop(name, None)
        opened.stamp = now
        return opened

    def _new(self, name: str, follower: Follower) -> OpenRun:
        began = follower.run.started_ns
        before, version = self._began.get(name, (began, -1))
        is_other = began > before
        version = version + 1 if is_other else max(version, 0)
        self._began[name] = began, version
        path = self.runs.path_if_any(name)
        age_s = max(time() - changed_ns(path) / 1e9, 0.0) if path is not None else 0.0
        return OpenRun(follower, version=version, is_other=is_other, changed_s=monotonic() - age_s)

    def _read_first(self, name: str, path: Path) -> Follower:
        # A run's directory is mapped or grows: its columns are no short-lived arrays.
        with keeping() if path.is_file() else nullcontext():
            return self.runs.library.follow(path, partial(self.precedence.let_pass, name), self._scratch)

    def _path(self, name: str) -> Path:
        try:
            return self.runs.path(name)
        except UnknownNameError:
            self._forget(name)
            raise

    def _forget(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)


def answer(recording: Recording, question: str, **options: Any) -> Any:
    """Return the answer of the analysis of that name, without the cache."""
    found = analysis.find(question)
    if found is None:
        raise UnknownNameError(f"there is no analysis named {question!r}")
    return found.run(recording, **options)


def _choose(run: Run, address: Address) -> Recording:
    """Return the requested recording; by default the one with most events, as others may be idle."""
    rank, device, restart = address.rank, address.device, address.restart
    fitting = [
        recording
        for recording in run.recordings
        if rank in (None, recording.process.rank)
        and device in (None, recording.device.index)
        and (restart is None or restart == recording.process.restarts)
    ]
    if not fitting:
        missing = f"rank {rank}, device {device}" if run.recordings else "any device"
        raise UnknownNameError(f"{run.name} has no recording of {missing}.")
    return max(fitting, key=lambda recording: len(recording.trace) or -1)
