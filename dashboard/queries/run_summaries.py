"""Summaries of the runs of the list, made in the background: a folder may hold gigabytes."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from vramscope.analysis.leaks.growth import LEAST_LEVELS
from vramscope.analysis.pace import StepPace, pace, pace_of_rows
from vramscope.analysis.rank_comparison import compare_ranks
from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.analysis.summary import has_allocator
from vramscope.analysis.verdicts import GrowthVerdict, is_exact, memory_growth
from vramscope.analysis.verdicts.missing import Part, full_device, missing_parts
from vramscope.errors import VramscopeError
from vramscope.fleet import RanksRead, read_ranks
from vramscope.model.rank_summary import RankSummary
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.model.table import Array
from vramscope.model.trace import Action
from vramscope.store.directory import ranks_of
from vramscope.units import format_bytes

from ..data import Data, View, answer
from ..figures.drawing.series import has_clock
from ..figures.drawing.window import folded_start
from ..figures.sparkline import outline
from ..runs import MOST_OPENED_WHOLE, changed_ns
from .headline import past_peak

_RUNS_PER_PACE = 200
"""Number of runs from which each is looked at less often."""
_ROUND_S = 0.2
"""Seconds between two rounds over the runs that a page lists."""
_WATCHED_S = 15.0
"""Seconds after which a page that has not asked again counts as closed; a browser asks every two."""


@dataclass(frozen=True, slots=True, eq=False)
class RunSummary:
    """The row of a run in the list."""

    name: str
    outcome: Outcome = Outcome.FILE
    source: str = ""
    started_ns: int = 0
    n_devices: int = 0
    n_runs: int = 1
    """Runs one after another in one file: restarts, or the programs of a sweep."""
    n_steps: int = 0
    n_events: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    is_least: bool = False
    """Whether the true peaks may be higher."""
    allocated: Array = field(default_factory=lambda: np.zeros(0, "i8"))
    """Outline in bytes over the run, of the recording with the greatest peak."""
    reserved: Array = field(default_factory=lambda: np.zeros(0, "i8"))
    tags: str = ""
    """The user's words for the run, separated by spaces."""
    verdict: str = ""
    """The most severe finding in a few words; '' for runs with more than MOST_EVENTS_JUDGED events."""
    error: str = ""
    """Why the run cannot be opened; '' where it can."""
    steps_per_s: float | None = None
    """The pace of the last steps; None where it is not known, and in a dry run, whose times mean nothing."""
    stalled_s: int = 0
    """Seconds without new events of a running run; 0 where it is not stalled."""


class RunSummaries:
    """Summaries by run id, as of the state of the files when they were made."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._lock = Lock()
        self._known: dict[str, tuple[int, RunSummary]] = {}
        self._asked: dict[str, int] = {}
        self._again_s: dict[str, float] = {}
        self._wanted: list[str] = []
        self._wanted_s = 0.0
        self._turn = 0
        self._changed: dict[str, int] = {}
        """The turn at which the row of a run last became another."""
        self._queue: SimpleQueue[str] = SimpleQueue()
        self._queued: set[str] = set()
        self._thread: Thread | None = None

    def get(self, run: str) -> RunSummary | None:
        """Return the latest summary of a run; None until the first is made."""
        with self._lock:
            known = self._known.get(run)
            is_due = monotonic() >= self._again_s.get(run, 0.0)
        runs = known is None or known[1].outcome is Outcome.RUNNING
        if runs or is_due:
            self._check(run, even_if_quiet=runs and is_due)
        return known[1] if known else None

    def watch(self, runs: list[str]) -> None:
        """Keep the summaries of *runs* up to date in the background, while this is called again and again.

        A look at the files of 1,000 runs takes a second on a busy machine, too long for a callback.
        """
        with self._lock:
            self._wanted, self._wanted_s = runs, monotonic()
            self._start()

    def since(self, turn: int) -> tuple[int, dict[str, RunSummary]]:
        """Return the present turn, and the summaries that changed after the turn that a browser has."""
        with self._lock:
            later = (run for run, changed in self._changed.items() if changed > turn)
            return self._turn, {run: self._known[run][1] for run in later}

    def _check(self, run: str, *, even_if_quiet: bool) -> None:
        changed = changed_ns(self._data.runs.paths()[run])
        with self._lock:
            if even_if_quiet or self._asked.get(run) != changed:
                self._asked[run] = changed
                # Once: on a busy machine a summary takes longer than the pause until the next look.
                if run not in self._queued:
                    self._queued.add(run)
                    self._queue.put(run)
                self._start()
            if monotonic() >= self._again_s.get(run, 0.0):
                # A look costs some 0.3 ms: of 1,000 runs, a tenth of a core with the pace of a few.
                pause_s = self._data.pace.listed_s * max(1.0, len(self._known) / _RUNS_PER_PACE)
                self._again_s[run] = monotonic() + pause_s

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="vramscope-summaries", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                run = self._queue.get(timeout=_ROUND_S)
            except Empty:
                self._round()
                continue
            with self._lock:
                self._queued.discard(run)
                changed = self._asked[run]
            made = summarize(self._data, run)
            with self._lock:
                before = self._known.get(run)
                if before is None or _look(before[1]) != _look(made):
                    self._turn += 1
                    self._changed[run] = self._turn
                self._known[run] = (changed, made)

    def _round(self) -> None:
        """Look at the files of every run that a page lists, and queue those that changed."""
        with self._lock:
            is_watched = monotonic() - self._wanted_s < _WATCHED_S
            wanted = self._wanted if is_watched else []
        for run in wanted:
            with suppress(KeyError):  # deleted since the page asked
                self.get(run)


_OF: WeakKeyDictionary[Data, RunSummaries] = WeakKeyDictionary()


def summaries_of(data: Data) -> RunSummaries:
    """Return the summaries of the dashboard of *data*."""
    return _OF.setdefault(data, RunSummaries(data))


def _look(summary: RunSummary) -> tuple[Any, ...]:
    """Return what differs when the row of the run would look different."""
    figures = (summary.n_events, summary.n_steps, summary.peak_allocated_bytes, summary.peak_reserved_bytes)
    return summary.outcome, summary.stalled_s, summary.verdict, summary.error, summary.started_ns, figures


def summarize(data: Data, run: str) -> RunSummary:
    """Open a run and summarize it; an error becomes the text of the row."""
    try:
        place = data.runs.location(run)
        if _is_costly(data, run) and not data.is_open(run):
            read = read_ranks(place)
            return _compared(_of_summaries(str(place), list(read.summaries.values())), read)
        row, path = _of(data, run, data.read(run)), data.runs.path(run)
        is_whole = row.outcome is not Outcome.RUNNING and path.is_dir() and len(ranks_of(path)) > 1
        return _compared(row, read_ranks(path)) if is_whole else row
    except VramscopeError as error:
        return RunSummary(run.rsplit("-", 1)[0], error=str(error))
    except Exception as error:  # noqa: BLE001 — one odd file must not end the list
        return RunSummary(run.rsplit("-", 1)[0], error=f"{type(error).__name__} in vramscope while reading")


def _compared(row: RunSummary, read: RanksRead) -> RunSummary:
    """Return the row with what is wrong with its ranks, unless it ran out of memory."""
    fleet = compare_ranks(list(read.summaries.values()), read.restarts)
    ended, odd = ({each.rank for each in found} for found in (fleet.ended, fleet.odd))
    kinds = ((set(fleet.missing), "missing"), (ended, "ended early"), (odd, "odd"))
    named = [(f"rank {min(r)}" if len(r) == 1 else f"{len(r):,} ranks", word) for r, word in kinds if r]
    words = ", ".join(f"{ranks} {word}" for ranks, word in named)
    return replace(row, verdict=words) if words and "out of memory" not in row.verdict else row


def _of(data: Data, run_id: str, run: Run) -> RunSummary:
    if not run.recordings:
        return RunSummary(run.name, run.outcome, started_ns=run.started_ns)
    each = [(_totals(data, View(run_id, 0, run, one)), one) for one in run.recordings]
    best, recording = max(each, key=lambda pair: _highest(pair[0], pair[1], "allocated"))
    position, levels = _course(best, recording, is_over=run.outcome is not Outcome.RUNNING)
    return RunSummary(
        name=run.name,
        outcome=run.outcome,
        source=recording.source,
        tags=recording.process.tags,
        started_ns=run.started_ns or int(best.time_ns[0]),
        n_devices=len({(one.process.rank, one.device.index) for one in run.recordings}),
        n_runs=1 + max(one.process.restarts if run.outcome is Outcome.FILE else 0 for one in run.recordings),
        n_steps=max(len(one.steps) + len(one.past.steps) for one in run.recordings),
        n_events=sum(len(one.trace) for one in run.recordings),
        peak_allocated_bytes=max(_highest(known, one, "allocated") for known, one in each),
        peak_reserved_bytes=max(_highest(known, one, "reserved") for known, one in each),
        is_least=any(not is_exact(missing_parts(one)) for one in run.recordings),
        allocated=outline(position, levels[0]),
        reserved=outline(position, levels[1]),
        steps_per_s=_pace_of(recording.source, pace(recording.steps)),
        stalled_s=data.stalled_s(run_id) if run.outcome is Outcome.RUNNING else 0,
        verdict=data.answers(View(run_id, 0, run, recording)).lagging(
            "verdict", lambda: _verdict(run, recording)
        ),
    )


def _course(known: Any, recording: Recording, *, is_over: bool) -> tuple[Array, tuple[Array, Array]]:
    """Return positions and levels of the picture; samples' where the events are not a course in time."""
    if not len(recording.trace) or not recording.has_layout:
        samples = recording.counters.rows(recording.counters.allocated_bytes >= 0)
        samples = samples.rows(slice(None if len(samples) > 1 else 0))
        return samples.time_ns, (samples.allocated_bytes, samples.reserved_bytes)
    position = np.maximum.accumulate(known.time_ns) if has_clock(recording) else np.arange(len(known.time_ns))
    levels = known.allocated_bytes, known.reserved_bytes
    if is_over and len(recording.steps):
        starts = recording.steps.start_event[:3].tolist()
        shown = slice(folded_start(position, starts, levels), None)
        position, levels = position[shown], (levels[0][shown], levels[1][shown])
    return position, levels


def _is_costly(data: Data, run: str) -> bool:
    """Return whether reading the events of a run for its row costs too much: many ranks, or in a store."""
    path, is_remote = data.runs.path(run), isinstance(data.runs.location(run), str)
    return path.is_dir() and (is_remote or len(ranks_of(path)) > MOST_OPENED_WHOLE)


def _of_summaries(place: str, ranks: list[RankSummary]) -> RunSummary:
    """Return the row of a run from the summaries of its ranks: its events are not read."""
    each = [(device.peak_bytes("allocated"), rank, device) for rank in ranks for device in rank.devices]
    run = RunSummary(
        place.rstrip("/").rpartition("/")[2],
        next((r.outcome for r in ranks if r.outcome is not Outcome.FINISHED), ranks[0].outcome),
        started_ns=min(rank.started_ns for rank in ranks),
        tags=ranks[0].process.tags,
    )
    if not each:
        return run
    allocated, _, device = max(each, key=lambda found: found[0])
    return replace(
        run,
        source=device.source,
        n_devices=len(each),
        n_steps=max(int(one.steps.n_steps.sum()) for _, _, one in each),
        n_events=sum(one.n_events for _, _, one in each),
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=max(one.peak_bytes("reserved") for _, _, one in each),
        allocated=outline(np.arange(len(device.steps)), device.steps.allocated),
        reserved=outline(np.arange(len(device.steps)), device.steps.reserved),
        steps_per_s=_pace_of(device.source, pace_of_rows(device.steps)),
        verdict="ran out of memory" if any(one.n_failed for _, _, one in each) else "",
    )


def _pace_of(source: str, found: StepPace | None) -> float | None:
    return found.steps_per_s if found is not None and source != "predicted" else None


def _totals(data: Data, view: View) -> Any:
    """Return the totals; cached only for a run that is open, as hundreds may be listed."""
    if data.is_open(view.run_id):
        return data.answers(view).totals()
    return answer(view.recording, "timeline")


def _highest(known: Any, recording: Recording, quantity: str) -> int:
    """Return the peak in bytes: of samples alone, or with that of the part that the size cap removed."""
    if not has_allocator(recording):
        return max(int(getattr(sampled_peaks(recording), f"{quantity}_bytes")), 0)
    before = past_peak(recording, quantity)
    return max(int(getattr(known, f"{quantity}_bytes").max()), before.n_bytes if before else 0)


MOST_EVENTS_JUDGED = 300_000


def _verdict(run: Run, recording: Recording) -> str:
    """Return the verdict in words: out of memory on any device first, then leaks on the fullest device."""
    failed = [int((each.trace.action == Action.OOM).sum()) for each in run.recordings]
    n_ooms = sum(n or bool(full_device(each)) for n, each in zip(failed, run.recordings, strict=True))
    if n_ooms:
        verb = "would run" if recording.source == "predicted" else "ran"
        return f"{verb} out of memory" if n_ooms == 1 else f"{verb} out of memory {n_ooms:,} times"
    missing = missing_parts(recording)
    if not is_exact(missing):
        return "incomplete" if missing[0].part is Part.EVENTS else "an estimate"
    if len(recording.trace) > MOST_EVENTS_JUDGED or len(recording.steps) < LEAST_LEVELS:
        return ""
    found = answer(recording, "leaks")
    rate = sum(leak.bytes_per_step for leak in found.leaks)
    word = memory_growth(recording, found, missing).verdict
    return f"leaks {format_bytes(round(rate))} a step" if rate else _WORDS.get(word, "")


_WORDS = {
    GrowthVerdict.GROWING_BATCH: "batch grows",
    GrowthVerdict.LITTLE: "steady",
    GrowthVerdict.NOTHING: "steady",
    GrowthVerdict.RISES: "rises now and then",
}
