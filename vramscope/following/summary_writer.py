"""Keeps the summary of this rank up to date while it is recorded.

Rows pass through on their way to the writer and are only put on a list there. The background thread that
flushes works on them, in pieces, so that neither a step nor a long run pays more.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vramscope.analysis.folding import user_files
from vramscope.following import rank_summary
from vramscope.following.course import Course, advanced, begin
from vramscope.following.recent_peaks import MANY_QUEUED, PeakFollower, Row
from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.device import HOST, Device
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, Marks, Note, Steps
from vramscope.model.past import SummarizedSteps
from vramscope.model.rank_summary import DeviceSummary, PeakPlace, RankSummary, StepRows
from vramscope.model.recording import Outcome
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import Frame, Stacks
from vramscope.model.trace import Trace
from vramscope.steps import resolve
from vramscope.steps.retained import drop_older_marks, with_summarized
from vramscope.store import sources
from vramscope.store.read import assembly
from vramscope.store.read.streams import ColumnStream, FileChain, anybody
from vramscope.store.retention.carry_over import BOUNDARIES
from vramscope.store.schema import EVERY_DEVICE, STACKS, file_name
from vramscope.store.summaries import SUMMARY_FILE, StoredSummary, events_bytes, write_summary
from vramscope.store.write.own_file import OwnFile

if TYPE_CHECKING:
    from vramscope.store.write.writer import Writer

_MOST_SETTLED = 500_000
"""The most settled steps, 77 bytes each; after that a reader makes the summary."""


class SummaryPace(NamedTuple):
    """How often a summary is worked on and written."""

    write_every_s: float = 60.0
    piece_events: int = 1 << 14
    """The number of events worth a piece: fewer would sort the live blocks too often."""
    most_marks: int = 1000
    """The most marks that are resolved to steps for each scrape, in 5 ms; older ones are settled steps."""
    followed_events: int = MANY_QUEUED
    """The number of events that wait for whoever follows the peaks before the background works on them."""
    most_unsettled: int = 20_000
    """The most marks without the end of a step to settle at; after that a reader makes the summary."""


class _NotFollowedError(Exception):
    """The rows came in an order that the course cannot follow; a reader makes the summary."""


class SummaryWriter:
    """Passes a source's rows on to the writer, and writes ``summary.json`` each minute and at the end.

    It never raises for a reason of its own: after a failure there is no summary, and readers make one.
    """

    def __init__(self, writer: "Writer", pace: SummaryPace | None = None) -> None:
        """Write the summary of what *writer* writes."""
        self._writer = writer
        self._summary_file = OwnFile(writer.path / SUMMARY_FILE)
        self._sources_file = OwnFile(writer.path / sources.SOURCES_FILE)
        self._pace = pace or SummaryPace()
        self._queue: list[tuple[Trace | Marks | Counters | Snapshot | Note, int]] = []
        self._n_queued = 0
        self._courses: dict[int, _DeviceCourse] = {}
        self._notes: list[tuple[Note, int]] = []
        self._is_over = False
        self._is_closed = False
        """Whether nothing was appended since the last block was left."""
        self._written_s = time.monotonic()
        self._stacks: ColumnStream | None = None
        self._n_stacks = 0
        """The number of stacks whose source lines are written."""
        self._work = threading.Lock()
        """Held while the courses change."""
        self._follower: PeakFollower | None = None

    def stacks(self, rows: Sequence[tuple[int, str, str, int]]) -> None:
        """Append rows of call stacks."""
        self._writer.stacks(rows)

    def append(self, table: Trace | Marks | Labels | Holders | Counters, device: int) -> None:
        """Append the next rows of one stream of *device*."""
        self._writer.append(table, device)
        if isinstance(table, Labels | Holders) or device == HOST:
            return
        self._is_closed = False
        if not self._is_over:
            self._queue.append((table, device))
            self._n_queued += len(table)
        if self._follower is not None:
            self._follower.add(table, device)

    def state(self, snapshot: Snapshot, device: int, *, reported: bool) -> None:
        """Write a state of the allocator."""
        self._writer.state(snapshot, device, reported=reported)
        if reported or snapshot.event or device == HOST:
            return
        if not self._is_over:
            self._queue.append((snapshot, device))
        if self._follower is not None:
            self._follower.add(snapshot, device)

    def pools(self, pools: Sequence[tuple[int, int]], device: int) -> None:
        """Write torch's pool ids."""
        self._writer.pools(pools, device)

    def device(self, device: Device) -> None:
        """Add a device to the manifest."""
        self._writer.device(device)

    def note(self, note: Note, device: int | None = None) -> None:
        """Record that something is missing or doubtful."""
        self._writer.note(note, device)
        if note.code == NoteCode.SOME_STEPS and not self._is_over:
            # The course has the steps with events alone: a reader adds what torch counted in the others.
            self._give_up()
            if self._follower is not None:
                self._follower.stop()
        if not self._is_over:
            self._queue.append((note, EVERY_DEVICE if device is None else device))

    def current(self) -> RankSummary | None:
        """The figures so far, without lines of code; None where they cannot be followed."""
        if self._is_over:
            return None
        manifest = self._writer.manifest
        devices = {device.index: device for device in manifest.devices}
        try:
            self._advance(is_end=self._is_closed)
        except Exception:  # noqa: BLE001 -- the rows are gone: what follows would lack them
            self._give_up()
        with self._work:
            found = tuple(
                course.figures(devices.get(index, Device(index)), manifest.source, self._notes_of(index))
                for index, course in sorted(self._courses.items())
            )
        began, now = manifest.started_ns, time.time_ns()
        summary = RankSummary(manifest.process, Outcome.RUNNING, "", began, now, devices=found)
        return None if self._is_over else summary

    def follow(self) -> PeakFollower | None:
        """A follower of the peaks from now on; None where nothing can be followed."""
        if self._is_over:
            return None
        follower = PeakFollower(self._pace.followed_events)
        # First: what is appended from here on may be in the queue as well, but is never in neither.
        self._follower = follower
        with self._work:
            courses = {device: each.course for device, each in self._courses.items()}
            waiting = [(row, device) for device, each in self._courses.items() for row in each.waiting]
            queued = [(row, device) for row, device in list(self._queue) if not isinstance(row, Note)]
            follower.begin(courses, [*waiting, *queued])
        return follower

    def flush(self) -> None:
        """Work on what was appended; write the summary if the last one is a minute old."""
        if self._follower is not None:
            self._follower.relieve()
        self._work_on(Outcome.RUNNING, "", is_wanted=self._is_due(), is_final=False)

    def finish(self, outcome: Outcome, error: str, *, is_last: bool) -> None:
        """Work on what was appended to a closed recording; write the summary at the end, or where it is due.

        A loop that enters a block for each step closes its recording at each step, so not every close writes.
        """
        self._is_closed = True
        self._work_on(outcome, error, is_wanted=is_last or self._is_due(), is_final=True)

    def _work_on(self, outcome: Outcome, error: str, *, is_wanted: bool, is_final: bool) -> None:
        if self._is_over or not (is_wanted or self._n_queued >= self._pace.piece_events):
            return
        try:
            self._advance(is_end=is_final)
            if is_wanted:
                self._write(outcome, error, is_final=is_final)
        except Exception:  # noqa: BLE001 -- the recording must not end with its summary
            self._give_up()

    def _is_due(self) -> bool:
        return time.monotonic() - self._written_s >= self._pace.write_every_s

    def _give_up(self) -> None:
        self._is_over = True
        self._queue, self._courses, self._n_queued = [], {}, 0
        self._summary_file.remove()

    def _advance(self, *, is_end: bool) -> None:
        with self._work:
            # Taken in one operation: other threads go on appending to the list.
            queued, self._queue, self._n_queued = self._queue, [], 0
            for row, device in queued:
                if isinstance(row, Note):
                    self._notes.append((row, device))
                else:
                    self._courses.setdefault(device, _DeviceCourse(self._pace)).take(row)
            for course in self._courses.values():
                course.advance(is_end=is_end)

    def _notes_of(self, device: int) -> tuple[Note, ...]:
        return rank_summary.short_notes([note for note, of in self._notes if of in (EVERY_DEVICE, device)])

    def _write(self, outcome: Outcome, error: str, *, is_final: bool) -> None:
        self._writer.check_place()
        manifest, size = self._writer.manifest, events_bytes(self._writer.path)
        stacks, devices = self._known_stacks(), {device.index: device for device in manifest.devices}
        found = [
            replace(
                course.summary(devices.get(index, Device(index)), manifest.source, stacks, outcome),
                notes=self._notes_of(index),
            )
            for index, course in sorted(self._courses.items())
        ]
        began, now = manifest.started_ns, time.time_ns()
        summary = RankSummary(manifest.process, outcome, error, began, now, tuple(found))
        stored, file = StoredSummary(summary, manifest.id, is_final, size, now), self._summary_file
        write_summary(file.path, stored, file)
        self._write_sources(stacks)
        self._written_s = time.monotonic()

    def _write_sources(self, stacks: Stacks) -> None:
        """Write the source lines that the stacks name, where there are stacks since the last time."""
        if len(stacks) == self._n_stacks:
            return
        self._n_stacks = len(stacks)
        mine = user_files(stacks)
        named = np.unique(np.stack([stacks.file[1:], stacks.line[1:]], axis=1), axis=0).tolist()
        frames = [Frame("", stacks.strings[i], line) for i, line in named if stacks.strings[i] in mine]
        with suppress(OSError):
            own = self._sources_file
            sources.write(own.path, self._writer.manifest.id, sources.collect(frames), own)

    def _known_stacks(self) -> Stacks:
        """The call stacks as the file has them; each time only its new rows are read."""
        if self._stacks is None:
            files = FileChain([self._writer.path], file_name(STACKS), anybody)
            self._stacks = ColumnStream(files, STACKS, n_rows=1)
        self._stacks.refresh()
        return assembly.stacks_of(self._stacks)[0]


class _DeviceCourse:
    """The course of one device, its marks, and the maxima of its samples."""

    def __init__(self, pace: SummaryPace) -> None:
        self._pace = pace
        self._settled_beyond = pace.most_marks
        """The number of marks at which it is worth trying to settle the older half."""
        self._course: Course | None = None
        self._fresh: list[Trace] = []
        self._waiting: list[Trace] = []
        """Events that wait for one more flush, as their marks may be written after them."""
        self._marks = Marks.of()
        self._cuts = np.zeros(0, "i8")
        self._settled = _SettledSteps()
        self._peak: Mapping[str, PeakPlace] = {}
        """The peaks when steps were last settled, with their steps."""
        self._phases: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        self._last_ns = 0

    @property
    def course(self) -> Course:
        """The course so far, without the rows that wait."""
        return self._course or Course()

    @property
    def waiting(self) -> "list[Row]":
        """The marks so far, and the events after the course, in order."""
        return [self._marks, *self._waiting, *self._fresh]

    def take(self, rows: Trace | Marks | Counters | Snapshot) -> None:
        if isinstance(rows, Trace):
            self._fresh.append(rows)
        elif isinstance(rows, Marks):
            self._take_marks(rows)
        elif isinstance(rows, Counters):
            for name, most in rank_summary.sample_peaks(rows).items():
                self._samples[name] = max(most, self._samples.get(name, 0))
        elif self._course is not None:
            raise _NotFollowedError("the state before the first event came after events")
        else:
            self._course = begin(rows)

    def _take_marks(self, rows: Marks) -> None:
        rows = rows.rows(np.isin(rows.kind, BOUNDARIES))
        known = self._course or Course()
        late = rows.event[rows.event < known.n_events]
        if not np.isin(late, known.stretches.event).all():
            raise _NotFollowedError("a mark came after a later event")
        # Steps and phases do not depend on names.
        nameless = {name: getattr(rows, name) for name in Marks.DTYPES if name != "name"}
        columns = {name: np.concatenate([getattr(self._marks, name), new]) for name, new in nameless.items()}
        self._marks = Marks.of(**columns)
        self._cuts = np.concatenate([self._cuts, rows.event])

    def advance(self, *, is_end: bool) -> None:
        ready = [*self._waiting, *self._fresh] if is_end else self._waiting
        self._waiting, self._fresh = [] if is_end else self._fresh, []
        course = self._course or begin(Snapshot())
        if ready:
            events = Trace.joined(*ready)
            course = advanced(course, events, self._cuts)
            self._cuts = self._cuts[self._cuts > course.n_events]
            self._last_ns = max(self._last_ns, int(events.time_ns[-1]))
            self._course = course  # not before: samples may come before the first state
        if len(self._marks) > self._settled_beyond:
            self._settle()

    def _settle(self) -> None:
        """Replace the older half of the marks by finished steps."""
        course = self._course or Course()
        known = self._figures()
        within = int((self._marks.event <= course.n_events).sum())
        # The last settled step is all that later ones depend on.
        found = drop_older_marks(
            (self._marks.rows(slice(within)), course.stretches, self._settled.last), course.n_events
        )
        if found is None or len(self._settled) + len(found[2]) > _MOST_SETTLED:
            if len(self._marks) > self._pace.most_unsettled:
                raise _NotFollowedError("the marks of this run have no end of a step to be cut at")
            # A long step: the next try is worth it with twice as many marks.
            self._settled_beyond = 2 * len(self._marks)
            return
        self._settled_beyond = self._pace.most_marks
        self._peak = known.peak
        kept, stretches, settled = found
        self._settled.add(settled.rows(slice(len(self._settled.last), None)))
        rest = self._marks.rows(slice(within, None))
        self._marks = Marks.joined(kept, rest)
        self._course = replace(course, stretches=stretches)

    def _with_peaks(
        self, settled: SummarizedSteps, outcome: Outcome = Outcome.RUNNING
    ) -> rank_summary.StepsWithPeaks:
        """The steps and phases of the marks, after those of *settled*."""
        course = self._course or Course()
        last_ns = max(self._last_ns, int(self._marks.time_ns.max(initial=0)))
        found = with_summarized(settled, *resolve(self._marks, course.n_events, last_ns, outcome))
        return rank_summary.course_steps(course, *found, settled)

    def _keep_phases(self, known: rank_summary.StepsWithPeaks) -> rank_summary.StepsWithPeaks:
        """The same with the maximum of each phase since the beginning."""
        for name, most in known.phases.items():
            self._phases[name] = max(most, self._phases.get(name, 0))
        return known._replace(phases=rank_summary.in_order(self._phases))

    def _figures(self) -> DeviceSummary:
        """Levels, peaks, steps and phases, at the cost of the steps that are not settled."""
        last = self._settled.last
        known = self._keep_phases(self._with_peaks(last))
        later = slice(len(last), None)
        steps = known.steps.rows(later)
        steps = replace(steps, index=np.arange(len(steps)) + len(self._settled))
        known = known._replace(steps=steps, per_step=known.per_step.rows(later))
        rows = StepRows.of_steps(steps, known.per_step.allocated_bytes, known.per_step.reserved_bytes)
        found = rank_summary.figures_of_course(self._course or Course(), known)
        return replace(
            found,
            steps=rank_summary.joined_rows(self._settled.rows, rows),
            peak={name: self._placed(name, place) for name, place in found.peak.items()},
        )

    def _placed(self, quantity: str, place: PeakPlace) -> PeakPlace:
        """The place with its step; that of a settled step was known before it was settled."""
        before = self._peak.get(quantity)
        is_same = before is not None and before._replace(step=None) == place
        return before if before is not None and is_same else place

    def figures(self, device: Device, source: str, notes: tuple[Note, ...]) -> DeviceSummary:
        """The summary until now without what needs stacks."""
        found = replace(self._figures(), notes=notes, samples=dict(self._samples))
        return replace(found, device=device, source=source, is_exact=source != "counters")

    def summary(self, device: Device, source: str, stacks: Stacks, outcome: Outcome) -> DeviceSummary:
        """The summary until now."""
        known = self._keep_phases(self._with_peaks(self._settled.all(), outcome))
        found = rank_summary.summary_of_course(self._course or Course(), known, stacks, device, source)
        return replace(found, samples=dict(self._samples))


class _SettledSteps:
    """The finished steps whose marks are gone.

    They are kept in parts, and their rows in groups: after 100,000 steps, joining all of them took 16 ms at
    each scrape of metrics.
    """

    def __init__(self) -> None:
        self._parts: list[SummarizedSteps] = []
        self._n_steps = 0
        self.last = SummarizedSteps.of()
        """The last step; empty where there is none."""
        self.rows = StepRows.of()
        """All steps, in groups as in a summary."""

    def __len__(self) -> int:
        return self._n_steps

    def add(self, new: SummarizedSteps) -> None:
        """Append steps, at least one."""
        steps = Steps(
            index=np.arange(len(new)) + len(self),
            **{name: getattr(new, name) for name in Steps.DTYPES if name != "index"},
        )
        self.rows = rank_summary.joined_rows(self.rows, StepRows.of_steps(steps, new.allocated, new.reserved))
        self._parts.append(new)
        self._n_steps += len(new)
        self.last = new.rows(slice(-1, None))

    def all(self) -> SummarizedSteps:
        """Every step, in one table."""
        if len(self._parts) > 1:
            self._parts = [SummarizedSteps.joined(*self._parts)]
        return self._parts[0] if self._parts else SummarizedSteps.of()
