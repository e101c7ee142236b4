"""``with vramscope.record("traces/run"):`` around a loop or a step records what uses the memory.

If anything fails here, one warning and one note in the trace report it, and the training goes on.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from vramscope.errors import UsageError
from vramscope.model.marks import MarkKind, Phase
from vramscope.recorder.blocks import Entry, RecordedBlocks, runs
from vramscope.recorder.configured import MAX_SIZE, completed
from vramscope.recorder.messages import Messages
from vramscope.recorder.options import RecorderOptions, check, name_text, recorder_options, tags_text
from vramscope.recorder.pipeline import Pipeline
from vramscope.recorder.wrapping import Function, recorded, untraced

if TYPE_CHECKING:
    from vramscope.following.recent_peaks import RecentPeaks
    from vramscope.model.finding import Finding
    from vramscope.model.rank_summary import RankSummary
    from vramscope.model.recording import Run

__all__ = ["Recorder", "RecorderOptions", "active_recorder", "record", "recorder_of"]

_PHASES = {phase.name.lower(): phase for phase in Phase if phase not in (Phase.OTHER, Phase.USER)}


@untraced
def record(  # noqa: PLR0913 -- all but the first by name
    directory: str | os.PathLike[str] | None = None,
    *,
    device: Literal["auto", "cuda", "simulated"] | None = None,
    mode: Literal["events", "counters"] | None = None,
    every: int | Literal["auto"] | None = None,
    capacity: str | int | None = None,
    stack_depth: int | None = None,
    max_size: str | int | None = MAX_SIZE,
    quiet: bool | None = None,
    tags: str | Sequence[str] | None = None,
    on_finding: "Callable[[Finding], object] | None" = None,
    alert_at: str | None = None,
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
    every
        Record events with their stacks in the first two steps and in each whose number is a multiple of this;
        levels and peaks of all steps come from torch's counters and are exact. A step ends where the program
        calls ``step()``, or else where its optimizers have stepped; a program without either gets events
        throughout. With ``"auto"`` also in steps 2, 4, 8 and so on, after a step with a higher peak than
        any before, and in the first evaluation; beyond that in each hundredth, or in the next step in which
        memory is to rise, where it rises at even distances. Left out it is 1, under tracemalloc ``"auto"``.
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
    on_finding
        A function that is called with each finding while the program runs: a leak, a failed allocation, a
        limit in sight, and what *alert_at* asks for. It is called on a thread of its own; what it raises is
        one warning.
    alert_at
        Thresholds to hear of, once each: ``"level=90%, growth=10MiB, forecast=500"``. ``level`` is reserved
        memory, as bytes or as a part of what torch may reserve; ``growth`` is that of the peaks of steps, in
        a step; ``forecast`` is the number of steps left until the limit, without which any limit in sight is
        reported.

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
        "every": every,
        "capacity": capacity,
        "stack_depth": stack_depth,
        "quiet": quiet,
        "tags": None if tags is None else tags_text(tags),
        "alert_at": alert_at,
    }
    given = {name: value for name, value in given.items() if value is not None}
    # None is a value of its own here: no limit.
    chosen = completed(given if max_size == MAX_SIZE else given | {"max_size": max_size})
    sizes = check(chosen)
    if on_finding is not None and not callable(on_finding):
        raise UsageError(f"on_finding: a function that takes a finding, not {type(on_finding).__name__}")
    if directory is None and runs.active is not None:
        found = runs.active.recorder
    else:
        found = recorder_of(recorder_options(chosen, sizes), quiet=chosen.quiet)
    if on_finding is not None:
        found._pipeline.notifiers.pass_to(on_finding)
    return found


def recorder_of(options: RecorderOptions, *, quiet: bool) -> "Recorder":
    """Return this process's only recorder for a directory; it is closed when the process exits."""
    if options.directory not in runs.by_directory:
        runs.by_directory[options.directory] = Recorder(options, quiet=quiet)._blocks
    return runs.by_directory[options.directory].recorder


def active_recorder() -> "Recorder | None":
    """Return the recorder in whose block this process is, if any."""
    return None if runs.active is None else runs.active.recorder


class Recorder:
    """One run of this process, created by ``record``."""

    _is_finalizing = staticmethod(sys.is_finalizing)
    """Asked when the names of this module may be gone."""

    def __init__(self, options: RecorderOptions, *, quiet: bool) -> None:
        self._requested_dir = options.directory
        self._messages = Messages(quiet=quiet)
        self._pipeline = Pipeline(options, self._messages)
        self._blocks = RecordedBlocks(self, self._pipeline)

    @property
    def directory(self) -> Path:
        """The run's directory on this machine; before the first entry, the requested one."""
        return self._pipeline.directory

    @property
    def has_failed(self) -> bool:
        """Whether vramscope stopped recording because of an error of its own, which it warned of."""
        return self._pipeline.has_failed

    def __repr__(self) -> str:
        directory = self.directory if self._pipeline.is_placed else self._requested_dir
        return f"<vramscope.Recorder of {directory or 'traces/…'}>"

    # Not ``untraced`` as a whole: an exception of a signal handler would reach the program from the wrapper,
    # after the block was entered or before it was left.
    def __enter__(self) -> "Recorder":
        entry = Entry(runs.active or self._blocks)
        try:
            return self._entered(entry)
        except BaseException:
            # Python calls no __exit__ if __enter__ raises.
            self._blocks.leave_surely(entry, None)
            raise

    @untraced
    def _entered(self, entry: Entry) -> "Recorder":
        run = entry.run.recorder
        if run is not self and self._requested_dir is not None:
            text = f"already recording to {run.directory}; nothing goes to {self._requested_dir}"
            run._messages.say(text)
        self._blocks.enter(entry)
        return run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry = None
        try:
            if self._is_finalizing():
                return  # a generator that nobody exhausted: its block was left, and written, before
            entry = self._blocks.innermost()
            self._blocks.leave(entry, error)
        except BaseException:
            # Again, as a second signal may come just when the first one is handled.
            self._blocks.leave_surely(entry or self._blocks.innermost(), error)
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
        return _NamedPhase(self._blocks, name)

    @untraced
    def step(self) -> None:
        """End a training step here.

        Without a call a step ends where the last optimizer of its cycle has stepped. If there is one call,
        calls alone end steps.
        """
        self._blocks.mark(MarkKind.STEP)

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
        self._pipeline.total_steps = total
        self._pipeline.guarded(self._pipeline.put_facts)

    @untraced
    def mark(self, name: str) -> None:
        """Put a named mark on the timeline at this moment.

        Parameters
        ----------
        name
            What the timeline shows.
        """
        self._blocks.mark(MarkKind.MARK, name=name_text(name))

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

        self._blocks.await_pause()
        return load(self.directory)

    def flush(self) -> None:
        """Write what was recorded until this moment, so that ``load`` has it; takes 1.1 µs per new event."""
        self._pipeline.guarded(lambda capture: capture.catch_up())

    def take_peaks(self) -> "tuple[RecentPeaks, ...]":
        """Take the peaks since the last call, exact to this moment, for a logger.

        The first call begins to follow them. Each call reads what the source has not handed over yet: some
        milliseconds, so once per logging step, not per operation.

        Returns
        -------
        tuple of RecentPeaks
            One entry per device; empty at the first call and where nothing is recorded.
        """
        self._pipeline.guarded(lambda capture: capture.catch_up())
        summary, capture = self._pipeline.summary, self._pipeline.capture
        if summary is None or capture is None or self._pipeline.has_failed:
            return ()
        return self._pipeline.peaks.take(summary, capture)

    def summaries(self) -> "tuple[RankSummary, ...]":
        """The figures of this rank so far, up to two seconds old, for systems of metrics.

        Returns
        -------
        tuple of RankSummary
            One, or none before the recording begins and where it cannot be followed. It has levels, peaks,
            phases and steps, and no lines of code. Takes some milliseconds, on any thread.
        """
        writer = self._pipeline.summary
        summary = None if writer is None else writer.current()
        return () if summary is None else (summary,)

    def report_to(self, report: Callable[[str], None]) -> None:
        """Pass what is found while the program runs (leaks, failed allocations) to *report*.

        Parameters
        ----------
        report
            Takes one sentence. It is called from a background thread, and instead of printing on stderr.
        """
        self._messages.report = report

    def explain_leaks(self) -> None:
        """Search now for what holds the allocated memory, for about 2 s; ``vramscope leaks`` reports it.

        Where memory grows from step to step the search starts by itself, so this call is not needed.
        """
        frame = sys._getframe(1)
        self._pipeline.guarded(
            lambda capture: None if capture.watch is None else capture.watch.explain(frame)
        )


class _NamedPhase:
    """A part of the program that the user named."""

    __slots__ = ("_blocks", "_name", "_phase")

    def __init__(self, blocks: RecordedBlocks, name: str) -> None:
        self._blocks = blocks
        self._name = name_text(name)
        self._phase = _PHASES.get(self._name.lower(), Phase.USER)

    @untraced
    def __enter__(self) -> None:
        self._blocks.mark(MarkKind.PHASE_BEGIN, self._phase, name=self._name)

    @untraced
    def __exit__(self, *_: object) -> None:
        self._blocks.mark(MarkKind.PHASE_END, self._phase, name=self._name)
