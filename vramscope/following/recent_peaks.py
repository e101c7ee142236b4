"""The peaks of a recording that goes on, since they were last taken: what a logger writes every few steps.

Rows are only put on a queue while the program runs. They are worked on when somebody takes the peaks, or in
the background where many wait.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from vramscope.following.course import Course, Highest, advanced, begin
from vramscope.following.rank_summary import course_steps, in_order, sample_peaks
from vramscope.model.codes import QUANTITIES
from vramscope.model.counters import Counters
from vramscope.model.marks import MarkKind, Marks
from vramscope.model.past import StretchPeaks, SummarizedSteps
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Trace
from vramscope.steps import resolve
from vramscope.steps.stretches import End, marks_at, stretches_of

Row: TypeAlias = Trace | Marks | Counters | Snapshot

MANY_QUEUED = 1 << 16
"""Number of queued events above which the background thread works on them, 60 bytes each."""
_KINDS = (MarkKind.PHASE_BEGIN, MarkKind.PHASE_END, MarkKind.EXIT)


class RecentPeaks(NamedTuple):
    """The peaks of one device since they were last taken, and the levels now."""

    device: int = 0
    peak_bytes: Mapping[str, int] = MappingProxyType({})
    """The maximum by quantity (``requested``, ``allocated``, ``active``, ``reserved``), the level at the
    beginning included: what ``max_memory_allocated()`` is after a reset then. Empty where only counters are
    recorded, or only some steps have events: a peak may be missed."""
    level_bytes: Mapping[str, int] = MappingProxyType({})
    """The bytes now, by quantity."""
    phases: Mapping[str, int] = MappingProxyType({})
    """The maximum of allocated bytes in each phase that ran."""
    samples: Mapping[str, int] = MappingProxyType({})
    """The maximum of each quantity that was sampled, in bytes, such as ``process_used_bytes`` of NVML."""
    inactive_split_bytes: int | None = None
    """Bytes now in free pieces of segments that are in use; None where unknown."""

    @property
    def fragmentation(self) -> float | None:
        """The share of the reserved bytes that is in free pieces of used segments; None where unknown."""
        reserved = self.level_bytes.get("reserved", 0)
        if self.inactive_split_bytes is None or not reserved:
            return None
        return self.inactive_split_bytes / reserved


class PeakFollower:
    """Follows the rows of a recording from some moment on."""

    def __init__(self, many_queued: int = MANY_QUEUED) -> None:
        """Work in the background where more than *many_queued* events wait."""
        self._many_queued = many_queued
        self._queue: deque[tuple[Row, int]] = deque()
        self._n_queued = 0
        self._work = threading.Lock()
        self._devices: dict[int, _FollowedDevice] = {}
        self._seen: set[int] = set()
        self._seen_rows: list[Row] = []
        self._is_over = False

    def stop(self) -> None:
        """Give samples alone from now on: the events no longer tell of everything."""
        self._is_over = True

    def add(self, row: Row, device: int) -> None:
        """Queue the next rows of *device*."""
        self._queue.append((row, device))
        if isinstance(row, Trace):
            self._n_queued += len(row)

    def begin(self, courses: Mapping[int, Course], waiting: Sequence[tuple[Row, int]]) -> None:
        """Begin at *courses*, by device, and the rows *waiting* after them; ``add`` may have some of them."""
        with self._work:
            for device, course in courses.items():
                self._devices[device] = _FollowedDevice(_fresh(course))
            self._seen_rows = [row for row, _ in waiting]
            self._seen = set(map(id, self._seen_rows))
            for row, device in waiting:
                self._device(device).take(row)
            for followed in self._devices.values():
                followed.advance()
                followed.restart()

    def relieve(self) -> None:
        """Work on the queue if it is long; a background thread calls this."""
        if self._n_queued >= self._many_queued:
            with self._work:
                self._advance()

    def take(self) -> tuple[RecentPeaks, ...]:
        """The peaks since the last call, one entry per device; the next call begins at this moment."""
        with self._work:
            self._advance()
            found = tuple(device.peaks(index) for index, device in sorted(self._devices.items()))
            if self._is_over:
                found = tuple(each._replace(peak_bytes={}, level_bytes={}, phases={}) for each in found)
            for device in self._devices.values():
                device.restart()
        return found

    def _advance(self) -> None:
        self._n_queued = 0
        with suppress(IndexError):
            while True:
                row, device = self._queue.popleft()
                if id(row) not in self._seen:
                    self._device(device).take(row)
        self._seen, self._seen_rows = set(), []
        for each in self._devices.values():
            each.advance()

    def _device(self, index: int) -> "_FollowedDevice":
        return self._devices.setdefault(index, _FollowedDevice(Course()))


class _FollowedDevice:
    """The window of one device: the maxima since it began."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._traces: list[Trace] = []
        self._marks = Marks.of()
        self._has_events = bool(course.n_events)
        self._last_ns = 0
        self._phases: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        self.restart()

    def take(self, row: Row) -> None:
        if isinstance(row, Trace):
            self._traces.append(row)
            self._has_events = True
        elif isinstance(row, Marks):
            kept = row.rows(np.isin(row.kind, _KINDS))
            # A mark may come after later events: the window has no earlier instant.
            names = [name for name in Marks.DTYPES if name != "name"]
            columns = {name: np.append(getattr(self._marks, name), getattr(kept, name)) for name in names}
            columns["event"] = np.maximum(columns["event"], self._course.n_events)
            self._marks = Marks.of(**columns)
        elif isinstance(row, Snapshot):
            self._course = _fresh(begin(row))
            self.restart()
        else:
            for name, most in sample_peaks(row).items():
                self._samples[name] = max(most, self._samples.get(name, 0))

    def advance(self) -> None:
        """Apply the queued events, and keep maxima only."""
        traces, self._traces = self._traces, []
        if traces:
            events = Trace.joined(*traces)
            self._course = advanced(self._course, events, self._marks.event)
            self._last_ns = int(events.time_ns[-1])
        for quantity, most in self._course.highest.items():
            self._peak[quantity] = max(most.n_bytes, self._peak.get(quantity, 0))
        self._keep_phases()
        self._marks = _open_phases(self._marks, self._course.n_events)
        self._course = _fresh(self._course)

    def _keep_phases(self) -> None:
        _, phases = resolve(self._marks, self._course.n_events, self._last_ns)
        if len(self._course.stretches) and len(phases):
            steps, _ = resolve(Marks.of(), 0, 0)
            known = course_steps(self._course, steps, phases, SummarizedSteps.of())
            for name, most in known.phases.items():
                self._phases[name] = max(most, self._phases.get(name, 0))

    def peaks(self, index: int) -> RecentPeaks:
        """The peaks of the window."""
        return RecentPeaks(
            device=index,
            peak_bytes=dict(self._peak) if self._has_events else {},
            level_bytes=dict(self._course.level) if self._has_events else {},
            phases=in_order({name: most for name, most in self._phases.items() if most >= 0}),
            samples=dict(self._samples),
        )

    def restart(self) -> None:
        """Begin the next window now."""
        self._peak = {name: self._course.level[name] for name in QUANTITIES}
        self._phases, self._samples = {}, {}


def _fresh(course: Course) -> Course:
    """The same state without the extremes until then."""
    highest = {name: Highest(n_bytes, course.n_events) for name, n_bytes in course.level.items()}
    return replace(course, highest=highest, stretches=StretchPeaks.of(), n_failed=0, failed=None)


def _open_phases(marks: Marks, n_events: int) -> Marks:
    """The begins of phases that are still open, moved to now."""
    stretches = stretches_of(marks_at(marks, np.arange(len(marks))), End(len(marks), n_events, 0))
    kept = marks.rows(np.array([each.first for each in stretches if each.last == len(marks)], "i8"))
    return replace(kept, event=np.full(len(kept), n_events))
