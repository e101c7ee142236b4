"""``with vramscope.record("traces/run"):`` around a loop or a step records what uses the memory.

If anything fails here, one warning and one note in the trace report it, and the training goes on.
"""

import atexit
import os
import sys
import threading
import time
import warnings
from _thread import get_ident
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple

from vramscope.capture.undisturbed import (
    is_of_a_signal_handler,
    undisturbed,
)
from vramscope.errors import CaptureError, StoreError, UsageError
from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind, Note, Phase
from vramscope.model.recording import Outcome
from vramscope.recorder.configured import MAX_SIZE, NUMBERED, STACK_DEPTH, RecordOptions, completed
from vramscope.recorder.failure_notifier import FailureNotifier
from vramscope.recorder.leak_notifier import LeakNotifier
from vramscope.recorder.malloc_trimmer import MallocTrimmer
from vramscope.recorder.this_process import default_name, this_process
from vramscope.recorder.wrapping import Function, recorded, untraced
from vramscope.remote import local_path
from vramscope.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from vramscope.capture import Capture, Source
    from vramscope.following.recent_peaks import PeakFollower, RecentPeaks
    from vramscope.following.summary_writer import SummaryPace, SummaryWriter
    from vramscope.model.device import Process
    from vramscope.model.rank_summary import RankSummary
    from vramscope.model.recording import Run
    from vramscope.recorder.uploading import UploadProcess
    from vramscope.store.write.writer import Writer

_DEVICES = ("auto", "cuda", "simulated")
_MODES = ("events", "counters")
# Together with the time for writing, this bounds what a killed process loses to two seconds.
_FLUSH_INTERVAL_S = 0.8
_LEAST_SIZE = 16 << 20
"""Smallest size cap: a single write must be small compared with it."""
_LONGEST_TAGS = 500
"""Characters of all tags together: the summary of a rank, which has them too, is at most 200,000 bytes."""
_MOST_INTERRUPTIONS = 1000
"""Bound for one exit, so that a program whose signal handlers keep raising still leaves the block."""
_PHASES = {phase.name.lower(): phase for phase in Phase if phase not in (Phase.OTHER, Phase.USER)}


@untraced
def record(  # noqa: PLR0913 -- all but the first by name
    directory: str | os.PathLike[str] | None = None,
    *,
    device: Literal["auto", "cuda", "simulated"] | None = None,
    mode: Literal["events", "counters"] | None = None,
    capacity: str | int | None = None,
    stack_depth: int | None = None,
    max_size: str | int | None = MAX_SIZE,
    quiet: bool | None = None,
    tags: str | Sequence[str] | None = None,
) -> "Recorder":
    """Record what uses the memory, as a context manager or a decorator.

    A recorder that is entered again, inside itself or later, continues the same run. An option that is not
    given is taken from the environment (``VRAMSCOPE_MODE=counters``), else from ``[tool.vramscope]`` of
    pyproject.toml, by the same name.

    Parameters
    ----------
    directory
        The trace directory. Without it the recording goes to ``traces/<script>-<time>``, or continues the run
        that is being recorded. With a URL of fsspec, such as ``s3://bucket/run``, it goes to a local spool,
        and a process of its own uploads it.
    device
        ``cuda`` records the CUDA device. ``simulated`` runs every CPU tensor through a model of CUDA's
        allocator. ``auto``, the default, takes ``cuda`` if there is a GPU, else ``simulated``.
    mode
        ``events``, the default, records every event with its stack. ``counters`` records torch's and the
        driver's counters at steps and phases and ten times a second, cheap enough to stay on; without a GPU
        it records steps alone.
    capacity
        Capacity of the simulated device (``"20GiB"`` or a number of bytes). A real device has its own: there
        *capacity* is refused, or ignored with a line on stderr if *device* is ``auto``.
    stack_depth
        Number of frames kept of each call stack, from the innermost; 64 by default. Refused with
        ``counters``, which records no stacks.
    max_size
        Size cap of a rank's directory (``"2 GiB"`` or a number of bytes). Beyond it the oldest details are
        dropped; peaks per step, samples and marks stay. None means no limit.
    quiet
        Print nothing on stderr but warnings.
    tags
        Words of your own, such as ``"baseline fp8"`` or a list of them: the dashboard's list of runs shows
        them and finds ``tag:fp8``. A recorder that continues a run keeps those of the run.

    Returns
    -------
    Recorder
        The recorder of the run; recording begins when it is entered.

    Raises
    ------
    UsageError
        If an option is invalid or contradicts another one.
    MissingExtraError
        If the package for the store of a URL is not installed.
    """
    given = {
        "directory": directory,
        "device": device,
        "mode": mode,
        "capacity": capacity,
        "stack_depth": stack_depth,
        "quiet": quiet,
        "tags": None if tags is None else _tags(tags),
    }
    found = {name: value for name, value in given.items() if value is not None}
    # None is a value of its own here: no limit.
    chosen = completed(found if max_size == MAX_SIZE else found | {"max_size": max_size})
    return _checked(chosen, continues=directory is None)


def _checked(chosen: RecordOptions, *, continues: bool) -> "Recorder":
    """Return the recorder for the options, or the active one if *continues*.

    Raises UsageError, MissingExtraError.
    """
    device, mode, stack_depth = chosen.device, chosen.mode, chosen.stack_depth
    if device not in _DEVICES:
        raise UsageError(f"no device {device!r}; there is: {', '.join(_DEVICES)}")
    if mode not in _MODES:
        raise UsageError(f"no mode {mode!r}; there is: {', '.join(_MODES)}")
    if mode == "counters" and device == "simulated":
        raise UsageError("the simulated device has events only: leave out mode='counters'")
    if type(stack_depth) is not int or stack_depth < 0:
        raise UsageError(f"stack_depth: a number of frames from 0 on, not {stack_depth!r}")
    if mode == "counters" and stack_depth != STACK_DEPTH:
        raise UsageError("mode='counters' records no call stacks: leave out stack_depth")
    if chosen.capacity is not None and (mode == "counters" or device == "cuda"):
        raise UsageError(
            "capacity is of the simulated device; a real one has its own: leave it out, or limit torch with "
            "torch.cuda.set_per_process_memory_fraction()"
        )
    capacity_bytes, max_bytes = _size("capacity", chosen.capacity), _size("max_size", chosen.max_size)
    if max_bytes is not None and max_bytes < _LEAST_SIZE:
        raise UsageError(f"max_size: at least {format_bytes(_LEAST_SIZE)}, or None for no limit")
    if continues and _runs.active is not None:
        return _runs.active
    path, url = _place(chosen.directory)
    source = "counters" if mode == "counters" else device
    options = RecorderOptions(
        path, source, capacity_bytes, stack_depth, max_bytes, url=url, tags=_tags(chosen.tags)
    )
    return recorder_of(options, quiet=chosen.quiet)


def recorder_of(options: "RecorderOptions", *, quiet: bool) -> "Recorder":
    """Return this process's only recorder for a directory; it is closed when the process exits."""
    if options.directory not in _runs.by_directory:
        _runs.by_directory[options.directory] = Recorder(options, quiet=quiet)
    return _runs.by_directory[options.directory]


def _place(directory: str | os.PathLike[str] | None) -> tuple[Path | None, str]:
    """Return where to record to on this machine, and the URL to upload it to, if any."""
    if directory is None:
        return None, ""
    local = local_path(directory) if isinstance(directory, str) else Path(directory)
    if local is not None:
        return Path(os.path.abspath(local)), ""  # noqa: PTH100 -- keeps links
    from vramscope.recorder.uploading import spool_of

    url = str(directory).rstrip("/")
    return spool_of(url), url


def active_recorder() -> "Recorder | None":
    """Return the recorder in whose block this process is, if any."""
    return _runs.active


def import_everything() -> None:
    """Import everything that recording needs.

    This must not be interrupted: a module whose import is interrupted stays unusable.
    """
    import torch  # noqa: F401 -- whether it is installed; only capture/ uses it

    import vramscope.following.summary_writer
    import vramscope.store.write.writer  # noqa: F401
    from vramscope.capture import sources

    sources()


def _size(name: str, text: str | int | None) -> int | None:
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _tags(words: str | Sequence[str]) -> str:
    """Return tags as the manifest keeps them; they are separated by commas or white space, or by a list."""
    if not isinstance(words, str) and not all(isinstance(word, str) for word in words):
        raise UsageError(f"tags: a text or a list of texts, not {words!r}")
    text = words if isinstance(words, str) else " ".join(words)
    return " ".join(dict.fromkeys(_as_text(text).replace(",", " ").split()))[:_LONGEST_TAGS]


def _as_text(name: object) -> str:
    """The text for a name that the program passes, such as the number of an epoch."""
    # Never a tensor's values: reading them would wait for the device.
    text = str(name) if isinstance(name, str | int | float) else type(name).__name__
    return text.encode("utf-8", "replace").decode()


class RecorderOptions(NamedTuple):
    """The checked options of one recorder."""

    directory: Path | None
    device: str
    capacity_bytes: int | None
    stack_depth: int
    max_bytes: int | None
    summary_pace: "SummaryPace | None" = None
    """How often the rank's summary is written; each minute where None."""
    url: str = ""
    """Where to upload it; empty for a run that stays on this machine."""
    tags: str = ""
    source: "Source | None" = None
    """Records instead of a device of this machine: a dry run."""


class Recorder:
    """One run of this process, created by ``record``."""

    def __init__(self, options: RecorderOptions, *, quiet: bool) -> None:
        self._requested_dir = options.directory
        self._device = options.device
        self._options = options
        self._quiet = quiet
        self._lock = threading.RLock()
        self._transition = threading.Lock()
        """Held while recording begins or pauses."""
        # Sets, not counts: an operation that a signal handler interrupts is repeated and still counts once.
        self._inside: set[_Entry] = set()
        self._thread = _Inside()
        self._is_running = False
        self._n_too_deep = 0
        self._directory: Path | None = None
        self._capture: Capture | None = None
        self._writer: Writer | None = None
        self._summary: SummaryWriter | None = None
        self._upload: UploadProcess | None = None
        self._flusher: _Flusher | None = None
        self._trimmer = MallocTrimmer()
        self._n_blocks = 0
        self._total_steps = 0
        self._ended = (Outcome.FINISHED, "")
        self._has_failed = False
        self._failure_claim = threading.Lock()
        """The first failure acquires this lock and never releases it."""
        self._entered: list[_Entry] = []
        self._leak_notifier = LeakNotifier()
        self._failure_notifier = FailureNotifier()
        self._follower: PeakFollower | None = None
        self._can_follow = True
        self._report: Callable[[str], None] | None = None

    @property
    def directory(self) -> Path:
        """The run's directory on this machine; before the first entry, the requested one."""
        if self._directory is None:
            self._directory = self._requested_dir or Path.cwd() / "traces" / default_name()
        return self._directory

    @property
    def has_failed(self) -> bool:
        """Whether vramscope stopped recording because of an error of its own, which it warned of."""
        return self._has_failed

    def __repr__(self) -> str:
        return f"<vramscope.Recorder of {self._requested_dir or self._directory or 'traces/…'}>"

    # Not ``untraced`` as a whole: an exception of a signal handler would reach the program from the wrapper,
    # after the block was entered or before it was left.
    def __enter__(self) -> "Recorder":
        entry = _Entry(_runs.active or self)
        try:
            return self._enter_block(entry)
        except BaseException:
            # Python calls no __exit__ if __enter__ raises.
            self._leave_surely(entry, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry = None
        try:
            entry = self._innermost()
            self._leave_block(entry, error)
        except BaseException:
            # Again, as a second signal may come just when the first one is handled.
            self._leave_surely(entry or self._innermost(), error)
            raise

    def __call__(self, function: Function) -> Function:
        """Decorate *function* so that every call of it is recorded."""
        return recorded(self, function)

    def phase(self, name: str) -> "_NamedPhase":
        """Name a stretch of the program: ``with recorder.phase("augment"):``.

        Parameters
        ----------
        name
            ``forward``, ``backward``, ``optimizer``, ``recompute``, ``eval``, ``zero_grad``, ``data`` and
            ``loss`` are the phases that vramscope knows; any other is one of your own.

        Returns
        -------
        context manager
            The phase lasts as long as its block. Inside of another phase it overrides that.
        """
        return _NamedPhase(self, name)

    @untraced
    def step(self) -> None:
        """End a training step here.

        Without a call a step ends where the last optimizer of its cycle has stepped. If there is one call,
        calls alone end steps.
        """
        self._mark(MarkKind.STEP)

    @untraced
    def expect_steps(self, total: int) -> None:
        """Say how many steps this run will have, so that the dashboard shows how much time is left.

        Parameters
        ----------
        total
            All steps of the recording, those that are done included; another number replaces it.

        Raises
        ------
        UsageError
            If *total* is no number from 1 on.
        """
        if type(total) is not int or total < 1:
            raise UsageError(f"expect_steps: a number of steps from 1 on, not {total!r}")
        self._total_steps = total
        self._guarded(self._tell_total_steps)

    @untraced
    def mark(self, name: str) -> None:
        """Put a named mark on the timeline at this moment.

        Parameters
        ----------
        name
            What the timeline shows.
        """
        self._mark(MarkKind.MARK, name=_as_text(name))

    def load(self) -> "Run":
        """Open what this recorder has written.

        Returns
        -------
        Run
            Inside of the block the last second may be missing.

        Raises
        ------
        UnknownNameError
            Nothing has been recorded yet.
        """
        from vramscope.loading import load

        return load(self.directory)

    def flush(self) -> None:
        """Write what was recorded until this moment, so that ``load`` has it; takes 1.1 µs per new event."""
        self._guarded(lambda capture: capture.catch_up())

    def take_peaks(self) -> "tuple[RecentPeaks, ...]":
        """Take the peaks since the last call, exact to this moment, for a logger.

        The first call begins to follow them. Each call reads what the source has not handed over yet: some
        milliseconds, so once per logging step, not per operation.

        Returns
        -------
        tuple of RecentPeaks
            One entry per device; empty at the first call and where nothing is recorded.
        """
        self._guarded(lambda capture: capture.catch_up())
        try:
            return self._taken()
        # Peaks for a logger are worth no recording: it goes on without them.
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            self._can_follow = False
            _warn(f"vramscope has no more peaks to log: {type(error).__name__}: {error}")
            return ()

    def summaries(self) -> "tuple[RankSummary, ...]":
        """The figures of this rank so far, up to two seconds old, for systems of metrics.

        Returns
        -------
        tuple of RankSummary
            One, or none before the recording begins and where it cannot be followed. It has levels, peaks,
            phases and steps, and no lines of code. Takes some milliseconds, on any thread.
        """
        found = None if self._summary is None else self._summary.current()
        return () if found is None else (found,)

    def report_to(self, report: Callable[[str], None]) -> None:
        """Pass what is found while the program runs (leaks, failed allocations) to *report*.

        Parameters
        ----------
        report
            Takes one sentence. It is called from a background thread, and instead of printing on stderr.
        """
        self._report = report

    def explain_leaks(self) -> None:
        """Search now for what holds the allocated memory, for about 2 s; ``vramscope leaks`` reports it.

        Where memory grows from step to step the search starts by itself, so this call is not needed.
        """
        frame = sys._getframe(1)
        self._guarded(lambda capture: None if capture.watch is None else capture.watch.explain(frame))

    def _taken(self) -> "tuple[RecentPeaks, ...]":
        if self._summary is None or self._capture is None or not self._can_follow or self._has_failed:
            return ()
        if self._follower is None:
            self._follower = self._summary.follow()
            return ()
        split = self._capture.inactive_split_bytes()
        return tuple(
            each._replace(inactive_split_bytes=split.get(each.device)) for each in self._follower.take()
        )

    # ------------------------------------------------------------------------- entering and leaving

    @untraced
    def _enter_block(self, entry: "_Entry") -> "Recorder":
        run = entry.run
        if run is not self and self._requested_dir is not None:
            run._print(f"already recording to {run.directory}; nothing goes to {self._requested_dir}")
        self._entered.append(entry)
        run._enter(entry)
        return run

    def _innermost(self) -> "_Entry":
        """The last entry of the calling thread, or else of any: a generator may move between threads."""
        own = [entry for entry in self._entered if entry.thread == get_ident()]
        return (own or self._entered)[-1]

    def _leave_surely(self, entry: "_Entry", error: BaseException | None) -> None:
        """Leave a block that may be left already."""
        if entry in self._entered:
            self._leave_block(entry, error)

    @untraced
    def _leave_block(self, entry: "_Entry", error: BaseException | None) -> None:
        """Leave a block, however often a signal handler interrupts it; raises what the last one raised."""
        raised: BaseException | None = None
        for _ in range(_MOST_INTERRUPTIONS):
            try:
                if isinstance(raised, Exception) and not is_of_a_signal_handler(raised):
                    break
                entry.run._exit(entry, error)
                if entry in self._entered:
                    self._entered.remove(entry)
                break
            except BaseException as interruption:  # noqa: BLE001 -- raised again below
                # Nothing is called here, where another interruption would leave the loop.
                raised = interruption
        if raised is not None:
            raise raised

    def _enter(self, entry: "_Entry") -> None:
        with self._lock:
            self._inside.add(entry)
            self._thread.inside.add(entry)
            _runs.active = self
            self._resume()
            if not self._has_failed:
                self._guarded(lambda capture: capture.enter_thread())
            self._mark(MarkKind.ENTER, value=len(self._inside) - 1)

    def _exit(self, entry: "_Entry", error: BaseException | None) -> None:
        """Leave a block; may be called again if a signal handler interrupted it."""
        with self._lock:
            if entry in self._inside and not entry.is_marked:
                entry.is_marked = True
                self._mark(MarkKind.EXIT, value=len(self._inside) - 1)
            self._thread.inside.discard(entry)
            if not self._thread.inside:
                self._guarded(lambda capture: capture.exit_thread())
            self._inside.discard(entry)
            if not self._inside:
                if _runs.active is self:
                    _runs.active = None
                undisturbed(lambda: self._settle(None, error))

    def _resume(self) -> None:
        # A pause that an earlier block began may still be going on: then it has to end first.
        if self._is_running and not self._transition.locked():
            return
        try:
            opened = self._open() if self._capture is None and not self._has_failed else None
            undisturbed(lambda: self._settle(opened, None))
        except (CaptureError, UsageError):
            raise
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            self._fail(error)

    def _settle(self, opened: "tuple[str, Capture] | None", error: BaseException | None) -> None:
        """Begin recording if a block is entered, and pause it if none is.

        An interrupted thread may no longer wait for an earlier call, which then runs at the same time. So one
        call waits for the other, and each looks at the current state.
        """
        with self._transition:
            if self._inside and not self._is_running:
                self._is_running = True
                if not self._has_failed:
                    self._begin(opened)
            elif not self._inside and self._is_running:
                try:
                    self._pause(error)
                finally:
                    self._is_running = False

    def _begin(self, opened: "tuple[str, Capture] | None") -> None:
        """Start the source, or continue it after the last block."""
        if self._writer is not None and self._capture is not None:
            self._writer.reopen()
            self._capture.resume()
        elif opened is not None:
            self._start(*opened)
        self._flusher = _Flusher(self)

    def _open(self) -> tuple[str, "Capture"]:
        """Open the source and return its name with it.

        Raises CaptureError if there is no torch or no such device; at this point nothing runs yet.
        """
        try:
            undisturbed(import_everything)
        except ImportError:
            raise CaptureError('recording needs torch: pip install "vramscope[torch]"') from None
        from vramscope.capture import Options, sources

        options = Options(self._options.capacity_bytes, self._options.stack_depth)
        if self._options.source is not None:
            return self._options.source.name, self._options.source.open(options, self._fail)
        offered = sources()
        name = self._device
        if name == "auto":
            name = "cuda" if offered["cuda"].available() else "simulated"
        elif not offered[name].available():
            raise CaptureError("no CUDA device here; record(device='simulated') needs none")
        name = offered[name].instead() or name
        if name == "cuda" and self._options.capacity_bytes is not None:
            self._print("capacity is of the simulated device: ignored on cuda", always=True)
        return name, offered[name].open(options, self._fail)

    def _start(self, source: str, capture: "Capture") -> None:
        from vramscope.following.summary_writer import SummaryWriter

        self._writer = self._create(source, capture)
        self._summary = SummaryWriter(self._writer, self._options.summary_pace)
        self._capture = capture
        capture.start(self._summary)
        self._print(f"recording to {self._options.url or self.directory} ({source})")
        if self._options.url:
            self._start_upload(self._writer.path)

    def _start_upload(self, rank: Path) -> None:
        from vramscope.recorder.uploading import UploadProcess

        try:
            self._upload = UploadProcess(rank, self._options.url)
        # The trace stays in the spool: whatever prevents the upload must not end the recording.
        except Exception as error:  # noqa: BLE001
            text = f"nothing is uploaded while this runs ({error}): `vramscope upload {rank}` does it later"
            self._print(text, always=True)

    def _create(self, source: str, capture: "Capture") -> "Writer":
        """Create the writer in the requested directory, or in the first free one next to it."""
        process = replace(this_process(capture.torch, capture.settings), tags=self._options.tags)
        requested = self.directory
        for number in range(1, 10_000):
            path = requested if number == 1 else requested.with_name(f"{requested.name}-{number}")
            if _is_of_another_job(path, process.job):
                continue
            writer = self._claimed(path, process, (source, capture))
            if writer is None:
                continue
            if path != requested:
                self._print(f"{requested} holds another run; recording to {path}", always=True)
            self._directory = path
            return writer
        raise StoreError(f"{requested}: 9,999 runs of that name exist already")

    def _claimed(self, run: Path, process: "Process", of: "tuple[str, Capture]") -> "Writer | None":
        """Create the writer of this process' rank in *run*; None if that has one already.

        A process of ``vramscope run COMMAND`` that no launcher numbers takes the first number that is free.
        """
        from vramscope.store.directory import rank_name
        from vramscope.store.write.writer import Writer

        source, capture = of
        for rank in range(10_000) if process.launcher == NUMBERED else (process.rank,):
            try:
                return Writer(
                    run,
                    source=source,
                    process=replace(process, rank=rank),
                    devices=capture.devices,
                    started_ns=time.time_ns(),
                    max_bytes=self._options.max_bytes,
                )
            except StoreError:  # noqa: PERF203 -- one attempt for each process of the run
                if not (run / rank_name(rank, process.restarts)).exists():
                    raise
        return None

    def _pause(self, error: BaseException | None) -> None:
        if self._flusher is not None:
            self._flusher.stop()
            self._flusher = None
        self._guarded(lambda capture: capture.pause())
        if not self._has_failed:
            self._guarded(lambda capture: self._close(capture, error))
            self._report_leaks(is_end=True)
            self._report_failure()

    def _close(self, capture: "Capture", error: BaseException | None) -> None:
        capture.finish()
        if self._writer is None:
            return
        for note in capture.notes():
            self._writer.note(note)
            if note.code == NoteCode.NOTHING_SEEN:
                self._print(note.text)
        if self._n_too_deep:
            text = "marks of the program had no room below Python's recursion limit, and are missing"
            self._writer.note(Note(NoteCode.RECURSION_LIMIT, text, self._n_too_deep))
            self._n_too_deep = 0
        self._n_blocks += 1
        self._ended = _outcome(error)
        self._tell_mesh(capture)
        self._tell_total_steps(capture)
        self._writer.close(*self._ended)
        if self._summary is not None:
            self._summary.finish(*self._ended, is_last=False)

    def _leave(self) -> None:
        """Close an open block (a notebook's, a thread's) when the interpreter ends, and write the rest."""
        with self._lock:
            self._inside.clear()
            undisturbed(lambda: self._settle(None, None))
            if self._n_blocks > 1 and not self._has_failed:
                undisturbed(lambda: self._guarded(self._conclude))
            if self._summary is not None and not self._has_failed:
                summary = self._summary
                undisturbed(lambda: summary.finish(*self._ended, is_last=True))
            undisturbed(lambda: self._report_leaks(is_end=True))
            self._leak_notifier.close()
            if self._upload is not None:
                upload, self._upload = self._upload, None
                self._print(upload.finish())

    def _conclude(self, capture: "Capture") -> None:
        if self._writer is not None:
            self._writer.reopen()
            capture.conclude()
            self._writer.close(*self._ended)

    # ------------------------------------------------------------------------- failures, messages

    def _mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        if self._inside:
            self._guarded(lambda capture: capture.mark(kind, phase, value, name))

    def _guarded(self, do: Callable[["Capture"], None]) -> None:
        capture = self._capture
        if capture is None:
            return
        try:
            do(capture)
        except RecursionError:
            # The program caused the depth, not vramscope. Any call made here could exceed the limit again.
            self._n_too_deep += 1
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            self._fail(error)

    def _flush(self) -> None:
        if not self._has_failed:
            self._guarded(lambda capture: capture.flush())
            self._guarded(self._tell_mesh)
            self._guarded(self._tell_total_steps)
            if self._summary is not None:
                self._summary.flush()
            self._report_leaks()
            self._report_failure()
            self._trimmer.trim_if_grown()

    def _tell_total_steps(self, _: "Capture") -> None:
        if self._writer is not None and self._total_steps:
            self._writer.total_steps(self._total_steps)

    def _tell_mesh(self, capture: "Capture") -> None:
        """Put the coordinates of the program's parameters into the manifest, where it has none yet."""
        if self._writer is not None and capture.mesh:
            self._writer.mesh(capture.mesh)

    def _report_leaks(self, *, is_end: bool = False) -> None:
        """Print each leaking line of code once; looks only after the watch has seen memory grow."""
        watch = getattr(self._capture, "watch", None)
        if watch is not None and self._directory is not None and watch.n_walks:
            # A failure of the analysis must not end the recording.
            with suppress(Exception):
                for text in self._leak_notifier.check(self._directory, watch.n_walks, is_end=is_end):
                    self._tell(text)

    def _report_failure(self) -> None:
        """Pass the cause of the first failed allocation on, where the program's own log wants to know."""
        if self._report is not None and self._follower is not None and self._directory is not None:
            # A failure of the analysis must not end the recording.
            with suppress(Exception):
                text = self._failure_notifier.check(self._directory, self._follower.n_failed)
                if text is not None:
                    self._tell(text)

    def _fail(self, error: Exception) -> None:
        """Stop recording, warn once, and let the training go on.

        This runs on any thread and waits for no other: a thread that leaves the block may be waiting for it.
        """
        if not self._failure_claim.acquire(blocking=False):
            return
        text = f"vramscope stopped recording, training goes on: {type(error).__name__}: {error}"
        undisturbed(lambda: self._give_up(text))
        _warn(text)

    def _give_up(self, text: str) -> None:
        self._has_failed = True
        capture, writer = self._capture, self._writer
        if capture is not None:
            # Whatever fails here is a consequence of the failure that is reported.
            with suppress(Exception):
                capture.abandon()
        if writer is not None:
            # Separately: if the note cannot be written, the run must still be closed.
            with suppress(Exception):
                writer.note(Note(NoteCode.RECORDING_FAILED, text))
            with suppress(Exception):
                writer.close(Outcome.FAILED, text)

    def _disown(self) -> None:
        """Detach from the run in a forked child, which copies locks as they are and no threads."""
        self._has_failed = True
        self._lock, self._transition = threading.RLock(), threading.Lock()
        self._flusher = self._writer = self._summary = self._follower = None
        with suppress(Exception):
            self._leak_notifier.close(is_forked=True)
        if self._upload is not None:
            self._upload.disown()
            self._upload = None
        # The capture stays: leaving the block removes its dispatch mode from this thread.
        if self._capture is not None:
            with suppress(Exception):
                self._capture.abandon()

    def _tell(self, text: str) -> None:
        """Pass what was found on to the program's own log, or print it."""
        if self._report is None:
            self._print(text, always=True)
        else:
            self._report(text)

    def _print(self, text: str, *, always: bool = False) -> None:
        if always or not self._quiet:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"vramscope: {text}\n")


class _NamedPhase:
    """A part of the program that the user named."""

    __slots__ = ("_name", "_phase", "_recorder")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = _as_text(name)
        self._phase = _PHASES.get(self._name.lower(), Phase.USER)

    @untraced
    def __enter__(self) -> None:
        self._recorder._mark(MarkKind.PHASE_BEGIN, self._phase, name=self._name)

    @untraced
    def __exit__(self, *_: object) -> None:
        self._recorder._mark(MarkKind.PHASE_END, self._phase, name=self._name)


class _Entry:
    """One entry into a recorded block of a run."""

    __slots__ = ("is_marked", "run", "thread")

    def __init__(self, run: Recorder) -> None:
        self.run = run
        self.thread = get_ident()
        self.is_marked = False
        """Whether the end of the block is marked."""


class _Inside(threading.local):
    """The blocks of this run that the current thread is in."""

    def __init__(self) -> None:
        self.inside: set[_Entry] = set()


class _Flusher:
    """Flushes the recorder about once a second on a background thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vramscope-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_FLUSH_INTERVAL_S):
            self._recorder._flush()


class _RunRegistry:
    """Every recorder of this process, by directory."""

    def __init__(self) -> None:
        self.active: Recorder | None = None
        self.by_directory: dict[Path | None, Recorder] = {}

    def forget(self) -> None:
        """Forget every run in a forked child: only the parent continues recording them."""
        for recorder in self.by_directory.values():
            recorder._disown()
        self.active = None
        self.by_directory = {}

    def leave(self) -> None:
        for recorder in self.by_directory.values():
            recorder._leave()


_runs = _RunRegistry()
atexit.register(_runs.leave)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_runs.forget)


def _warn(text: str) -> None:
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except Warning:  # the user's filters turn it into an error, which must not end the training
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")


def _is_of_another_job(run: Path, job: str) -> bool:
    """Whether a run is known to be of another job.

    Where that had fewer ranks, the directories of its ranks alone would not keep ours apart from it.
    """
    from vramscope.store import manifest
    from vramscope.store.directory import MANIFEST, ranks_of

    with suppress(StoreError):
        for rank in ranks_of(run)[:1]:
            return manifest.is_other_job(manifest.read(rank / MANIFEST).process.job, job)
    return False


def _outcome(error: BaseException | None) -> tuple[Outcome, str]:
    is_quiet_exit = isinstance(error, SystemExit) and not error.code
    if error is None or is_quiet_exit or isinstance(error, GeneratorExit):
        return Outcome.FINISHED, ""
    return Outcome.FAILED, " ".join(f"{type(error).__name__}: {error}".split())[:2000].removesuffix(":")
