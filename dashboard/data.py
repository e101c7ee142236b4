"""Access to recordings: finds runs, follows them and caches the answers about them.

A run is named by an id of a closed dict; a path never comes from a request. Derived values are cached per
(run, version) and dropped when the run grows. The server's threads share one ``Data``.
"""

import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from hashlib import blake2s
from pathlib import Path
from threading import RLock, Thread
from time import monotonic, thread_time, time
from typing import Any, Protocol, cast

from vramscope import analysis, conversion_cache, loading
from vramscope.analysis.timeline import totals_of
from vramscope.columns.scratch import Scratch
from vramscope.errors import UnknownNameError, VramscopeError
from vramscope.model.partial_curve import PartialCurve, Watch
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.store.directory import rank_of
from vramscope.store.sources import SOURCES_FILE
from vramscope.store.summaries import SUMMARY_FILE

from .address import Address
from .answers.live import LiveRecording
from .queries.precedence import Precedence
from .queries.read_progress import ReadProgress, progress
from .server.malloc_tuning import keeping, trim

_LOG = logging.getLogger(__name__)

_ONE_RANK = re.compile(r"(.+)\.rank([0-9]{1,9})", re.ASCII)
MAY_BE_WRITTEN = frozenset({Outcome.RUNNING, Outcome.DIED})
"""Outcomes of a run whose files may still change: a live process of another machine may look dead."""
MOST_OPENED_WHOLE = 8
"""A run of more ranks is shown from their summaries; its ranks are opened one at a time."""
MAX_OPEN_RUNS = 6
MAX_ANSWERS = 64
STALLED_S = 20
"""A running run without new events for this long counts as stalled."""


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
    ahead_s: float = 0.5
    """Seconds from the first page of a long recording to the answers of its other pages."""
    events_ahead: int = 2_000_000
    """A recording with more events has no pages laid out ahead: their answers take 110 MB per million."""
    events_searched_live: int = 2_000_000
    """A running run with more events is searched for findings again when it ends: at ten million events a
    search takes 20 s and 3 GB beside the training."""
    events_searched_here: int = 50_000
    """A running run with more events is searched in another process, which takes 0.5 s to start."""
    events_at_once: int = 200_000
    """A recording with more events shows its chart first and the findings later."""
    events_replayed_here: int = 50_000
    """A recording with more events is replayed in another process, which takes 0.3 s to start."""


class FollowedRun(Protocol):
    """A run that may still be growing."""

    run: Run

    def refresh(self) -> bool:
        """Read what was written since the last call; return whether there was anything."""


_BESIDE = tuple(f"{Path(name).stem}." for name in (SUMMARY_FILE, SOURCES_FILE))
"""The names of what is derived from a run begin with these, those of the temporary files too."""


class Library(Protocol):
    """The source of runs: the module ``vramscope.loading``, or a stand-in."""

    def discover(self, root: Path) -> Sequence[Path]:
        """Return runs and files below *root*, newest first."""

    def follow(
        self, path: Path, watch: Watch | None = None, scratch: Scratch | None = None, *, hurries: bool = False
    ) -> FollowedRun:
        """Open one of them; *watch* gets the curve of a file while it is read, *scratch* keeps what grows.

        Where it *hurries*, what no answer needs is left for later.
        """


class StoreLibrary(Protocol):
    """A source of runs whose files are elsewhere, and are copied when a run opens."""

    url: str

    def discover(self, root: Path) -> Sequence[Path]:
        """Return the local directories of all runs, newest first."""

    def location(self, path: Path) -> str:
        """Return the URL of a run by its local directory."""


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
        return (self.run_id, self.version, self.recording.process.rank, self.recording.device.index)

    @property
    def is_live(self) -> bool:
        """Whether the run is running, so that more events may come."""
        return self.run.outcome is Outcome.RUNNING


Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of last change of each file."""


@dataclass(slots=True)
class _OpenRun:
    """A run that is open, with its cached answers."""

    follower: FollowedRun
    lock: RLock = field(default_factory=RLock)
    version: int = 0
    changed_s: float = field(default_factory=monotonic)
    """When this process last saw something new in the files."""
    answers: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    making: dict[Hashable, RLock] = field(default_factory=dict)
    """Locks, each held while its answer is computed."""
    live_recordings: dict[Hashable, LiveRecording] = field(default_factory=dict)
    """Incremental states by rank and device, while the run is running."""
    refreshed_s: float = field(default_factory=monotonic)
    spent_s: float = 0.0
    """CPU seconds of the answers since the last refresh."""
    is_other: bool = False
    """Whether another run was at this path when it was opened before."""
    stamp: Stamp = ()
    """Stamp of the files when they were last read."""
    is_altered: bool = False
    """Whether its files changed after the run had ended, so that it was read again."""


class Data:
    """Every run below one folder, or one file.

    Parameters
    ----------
    root
        A folder of runs, one run, or one file.
    library
        Where runs come from; ``vramscope.loading`` where None.
    pace
        How often files are checked; the defaults where None.
    """

    def __init__(self, root: Path, library: Library | None = None, pace: Pace | None = None) -> None:
        self.root = root
        self.pace = pace or Pace()
        self.precedence = Precedence()
        """What users wait for, which background work lets go first."""
        self._library = library or cast("Library", loading)
        self._scratch = Scratch(conversion_cache.cache_directory())
        self.shown_root = str(getattr(library, "url", root))
        """The folder as the user named it."""
        self._lock = RLock()
        self._paths: dict[str, Path] = {}
        self._scanned_s = float("-inf")
        self._scan_took_s = 0.0
        self._open: OrderedDict[str, _OpenRun] = OrderedDict()
        self._began: dict[str, tuple[int, int]] = {}
        """Start time and last version of the run that was last opened under each id."""
        self._read_bytes: dict[str, int] = {}
        """Sizes in bytes of files that are being read for the first time."""
        self._curves: dict[str, PartialCurve] = {}
        """The curves of those files, as far as they are read."""
        self._opening: dict[str, RLock] = {}
        """Locks, each held while its run is read for the first time."""
        self._refused: dict[str, tuple[Stamp, VramscopeError]] = {}
        """Why a run cannot be read, with the stamp of those files."""

    def paths(self) -> dict[str, Path]:
        """Return the path of every run by id, newest first; the folder is searched again after a second."""
        with self._lock:
            pause_s = self.pace.scan_s * max(1.0, self._scan_took_s / self.pace.share)
            if monotonic() - self._scanned_s > pause_s:
                began = thread_time()
                found = self._library.discover(self.root)
                self._paths = {run_id(path): path for path in found}
                self._scanned_s, self._scan_took_s = monotonic(), thread_time() - began
            return self._paths

    def path(self, name: str) -> Path:
        """Return the path of a run; raises UnknownNameError where the run does not exist, or no longer."""
        path = self._path(name)
        if path is None or not path.exists():
            self._forget(name)
            raise UnknownNameError(
                "This folder has no run of that name: it was moved or deleted, "
                "or the link belongs to another folder."
            )
        return path

    def _path(self, name: str) -> Path | None:
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
        path = self.path(name)
        if hasattr(self._library, "location"):
            return cast("StoreLibrary", self._library).location(path)
        return path

    def _opened_for_following(self, name: str, path: Path, *, hurries: bool = False) -> FollowedRun:
        if hasattr(self._library, "location"):
            place = cast("StoreLibrary", self._library).location(path)
            return cast("FollowedRun", loading.follow(place))

        def watch(curve: PartialCurve) -> None:
            self._curves[name] = curve
            self.precedence.let_pass(name)

        try:
            # A run's directory is mapped or grows: its columns are no short-lived arrays.
            with keeping() if path.is_file() else nullcontext():
                return self._library.follow(path, watch, self._scratch, hurries=hurries)
        finally:
            self._curves.pop(name, None)

    def is_open(self, name: str) -> bool:
        """Return whether a run is open, so that its events are read."""
        with self._lock:
            return name in self._open

    def open_ahead(self, name: str) -> None:
        """Open a run for which nobody waits: reading it pauses while users wait for other runs."""
        self._open_once(name, self.path(name))

    def view(self, address: Address) -> View:
        """Return the recording that *address* names; a VramscopeError says what is wrong with it."""
        opened = self._opened(address.run)
        with opened.lock:
            run = opened.follower.run
            return View(address.run, opened.version, run, _choose(run, address.rank, address.device))

    def refresh(self, name: str) -> int:
        """Read new events of a run that grows; return its version."""
        opened = self._opened(name)
        with opened.lock:
            if opened.version and monotonic() - opened.refreshed_s < self._pause_s(opened):
                return opened.version
            opened.refreshed_s, opened.spent_s = monotonic(), 0.0
            is_altered = self._was_altered(name, opened)
            has_grown = not is_altered and self._read_on(opened)
            if not has_grown and not is_altered:
                return opened.version
            if has_grown and opened.follower.run.started_ns <= self._began[name][0]:
                self._grow(name, opened)
                return opened.version
        # Offsets into the old files do not apply to the new ones.
        self._forget(name)
        return self._again(name, opened, is_altered=is_altered).version

    def _pause_s(self, opened: _OpenRun) -> float:
        """Return the seconds between two refreshes of a run."""
        return min(max(self.pace.refresh_s, opened.spent_s / self.pace.share), self.pace.longest_s)

    def _was_altered(self, name: str, opened: _OpenRun) -> bool:
        """Return whether the files of a run that has ended differ from those that were read."""
        if opened.follower.run.outcome in MAY_BE_WRITTEN:
            return False
        return stamp(self.path(name)) != opened.stamp

    def _again(self, name: str, before: _OpenRun, *, is_altered: bool) -> _OpenRun:
        """Read a run from its beginning; for pages it is a later version."""
        if is_altered:
            self._began[name] = before.follower.run.started_ns, before.version + 1
        opened = self._opened(name)
        opened.is_altered = is_altered and not opened.is_other
        return opened

    def _read_on(self, opened: _OpenRun) -> bool:
        try:
            return opened.follower.refresh()
        except OSError as error:  # deleted this very moment
            raise UnknownNameError("This run can no longer be read: it is being moved or deleted.") from error

    def _grow(self, name: str, opened: _OpenRun) -> None:
        opened.version += 1
        opened.changed_s = monotonic()
        opened.stamp = stamp(self.path(name))
        opened.answers.clear()
        run = opened.follower.run
        self._began[name] = run.started_ns, opened.version
        if run.outcome is not Outcome.RUNNING:
            opened.live_recordings.clear()

    def is_opening(self, name: str) -> bool:
        """Return whether a thread is reading that run for the first time."""
        with self._lock:
            return name in self._opening

    def reading(self, name: str) -> ReadProgress | None:
        """Return how much of a file that is being opened is read, and its curve; None where unknown."""
        path = self._path(name)
        if path is None or not self.is_opening(name):
            self._read_bytes.pop(name, None)
            return None
        now = progress(path)
        if now is not None:
            self._read_bytes[name] = now.n_bytes
        # The file is closed again: all of it is read, and the events are being sorted.
        n_bytes = self._read_bytes.get(name)
        now = now or (ReadProgress(n_bytes, n_bytes) if n_bytes is not None else None)
        return now._replace(curve=self._curves.get(name)) if now is not None else None

    def stalled_s(self, name: str) -> int:
        """Return the seconds without new events of a running run, in multiples of STALLED_S; 0 below that."""
        opened = self._opened(name)
        if opened.follower.run.outcome is not Outcome.RUNNING:
            return 0
        return int(monotonic() - opened.changed_s) // STALLED_S * STALLED_S

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
            follower = self._opened_for_following(name, self.path(name))
            if follower.run.outcome is not Outcome.RUNNING:
                return follower.run
        self.refresh(name)
        return self._opened(name).follower.run

    def live_recording(self, view: View) -> LiveRecording | None:
        """Return the incremental state of a recording that grows; None where the run has ended."""
        if not view.is_live:
            return None
        opened = self._opened(view.run_id)
        rank_device = view.key[2:]
        with opened.lock:
            if opened.follower.run.outcome is not Outcome.RUNNING:
                return None  # it ended since the view was made
            if rank_device not in opened.live_recordings:
                opened.live_recordings[rank_device] = LiveRecording(view.recording, self._scratch)
            return opened.live_recordings[rank_device]

    def ask_allowing_stale(
        self, view: View, what: Hashable, make: Callable[[], Any], *, waits: bool = True
    ) -> Any:
        """Return an answer over the full recording; for a live run it may lag behind.

        Its CPU time is budgeted apart (see ``SHARE`` and ``LONGER`` in ``answers.live``), so that
        refreshes do not become rarer because of it.

        Parameters
        ----------
        view
            The recording.
        what
            Key of the answer.
        make
            Computes the answer.
        waits
            Whether a page waits for it where it has an earlier one.
        """
        live_recording = self.live_recording(view)
        if live_recording is None:
            return make()
        opened = self._opened(view.run_id)

        def apart() -> Any:
            before = opened.spent_s
            made = make()
            opened.spent_s = before
            return made

        return live_recording.ask_allowing_stale(what, view.recording, apart, waits=waits)

    def is_searched(self, view: View) -> bool:
        """Return whether pages look for findings of a recording: not in a long one while it grows."""
        return not view.is_live or len(view.recording.trace) <= self.pace.events_searched_live

    def stale_answer(self, view: View, what: Hashable) -> Any:
        """Return the last answer to :meth:`ask_allowing_stale` about a live run; None where there is none."""
        live_recording = self.live_recording(view)
        return live_recording.stale_answer(what) if live_recording is not None else None

    def ask(self, view: View, question: str, **options: Any) -> Any:
        """Return the answer of the analysis *question*, computed once per (view, options)."""
        key = (question, *sorted(options.items()))
        return self.derive(view, key, lambda recording: answer(recording, question, **options))

    def derive(self, view: View, what: Hashable, make: Callable[[Recording], Any]) -> Any:
        """Return ``make(recording)``, computed once per (view, *what*).

        A second thread that needs the same value waits for it; threads that need another do not wait.
        """
        opened = self._opened(view.run_id)
        key = (view.key, what)
        with opened.lock:
            if key in opened.answers:
                opened.answers.move_to_end(key)
                return opened.answers[key]
            making = opened.making.setdefault(key, RLock())
        with making:
            with opened.lock:
                if key in opened.answers:
                    return opened.answers[key]
            began = thread_time()
            made = make(view.recording)
            with opened.lock:
                opened.spent_s += thread_time() - began
                opened.answers[key] = made
                opened.making.pop(key, None)
                while len(opened.answers) > MAX_ANSWERS:
                    opened.answers.popitem(last=False)
            return made

    def _opened(self, name: str) -> _OpenRun:
        path = self.path(name)
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
                return self._open[name]
        with self.precedence.wants(name):
            return self._open_once(name, path)

    def _open_once(self, name: str, path: Path) -> _OpenRun:
        with self._lock:
            opening = self._opening.setdefault(name, RLock())
        # Two threads must not read the same gigabyte; a thread that needs another run does not wait.
        with opening:
            try:
                return self._read(name, path)
            finally:
                with self._lock:
                    self._opening.pop(name, None)

    def _read(self, name: str, path: Path) -> _OpenRun:
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
            if isinstance(opened.follower, loading.Follower):
                self._begin_with(name, opened, opened.follower)
        return opened

    def _begin_with(self, name: str, opened: _OpenRun, follower: loading.Follower) -> None:
        """Keep the totals of a file that was read in a hurry, and settle it once its first chart is shown."""
        taken = follower.take_levels()
        if taken is None:
            return
        recording, levels = taken
        view = View(name, opened.version, follower.run, recording)
        opened.answers[(view.key, ("timeline",))] = totals_of(recording, levels)
        Thread(target=self._settle, args=(follower,), name="vramscope-settle", daemon=True).start()

    def _settle(self, follower: loading.Follower) -> None:
        self.precedence.until_quiet()
        try:
            with keeping():
                follower.settle()
        except (VramscopeError, OSError) as error:
            # The run is shown all the same; it is read again the next time.
            _LOG.warning("the conversion of a file was not cached: %s", error)

    def _follow(self, name: str, path: Path) -> _OpenRun:
        """Read the run for the first time; files that failed to be read are tried again when they change."""
        now = stamp(path)
        known = self._refused.get(name)
        if known is not None and known[0] == now:
            raise known[1]
        try:
            opened = self._new(name, self._opened_for_following(name, path, hurries=True))
        except VramscopeError as error:
            self._refused[name] = now, error
            raise
        self._refused.pop(name, None)
        opened.stamp = now
        return opened

    def _new(self, name: str, follower: FollowedRun) -> _OpenRun:
        began = follower.run.started_ns
        before, version = self._began.get(name, (began, -1))
        is_other = began > before
        version = version + 1 if is_other else max(version, 0)
        self._began[name] = began, version
        path = self._path(name)
        age_s = max(time() - changed_ns(path) / 1e9, 0.0) if path is not None else 0.0
        return _OpenRun(follower, version=version, is_other=is_other, changed_s=monotonic() - age_s)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)


def answer(recording: Recording, question: str, **options: Any) -> Any:
    """Return the answer of the analysis of that name, without the cache."""
    found = analysis.find(question)
    if found is None:
        raise UnknownNameError(f"there is no analysis named {question!r}")
    return found.run(recording, **options)


def one_rank(run: str, rank: int) -> str:
    """Return the id of one rank of a run, as a run of its own."""
    return f"{run}.rank{rank}"


def run_id(path: Path) -> str:
    """Return a readable id for a run that does not reveal its path.

    It follows from the absolute path alone: a link stays valid after a restart, whichever folder is served.
    """
    # Not Path.resolve(): it costs a system call per folder, for 1,000 runs every second.
    place = os.path.abspath(path)  # noqa: PTH100
    word = re.sub(r"[^A-Za-z0-9]+", "-", Path(place).name).strip("-")[:60] or "run"
    return f"{word}-{blake2s(os.fsencode(place), digest_size=3).hexdigest()}"


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


def _choose(run: Run, rank: int | None, device: int | None) -> Recording:
    """Return the requested recording; by default the one with most events, as others may be idle."""
    fitting = [
        recording
        for recording in run.recordings
        if rank in (None, recording.process.rank) and device in (None, recording.device.index)
    ]
    if not fitting:
        missing = f"rank {rank}, device {device}" if run.recordings else "any device"
        raise UnknownNameError(f"{run.name} has no recording of {missing}.")
    return max(fitting, key=lambda recording: len(recording.trace) or -1)
