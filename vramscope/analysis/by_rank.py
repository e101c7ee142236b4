"""Which rank holds how much, at one moment of all of them, or in the same step?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.step_peaks import step_peaks
from vramscope.analysis.timeline import Totals, timeline
from vramscope.errors import UsageError
from vramscope.model.quantities import QUANTITIES
from vramscope.model.recording import Recording
from vramscope.model.table import Table

NONE = -1
"""What is not known."""


@dataclass(frozen=True, slots=True)
class RankBytes(Table):
    """One row per recording, in the order given: a rank on a device.

    Aligned by time, ``allocated`` sums up to what all held at that moment. Aligned by step, each row is at a
    moment of its own. Own peaks are always that, and sum up to nothing.
    """

    DTYPES: ClassVar = {
        "rank": "i8",
        "device": "i8",
        "instant": "i8",
        "time_ns": "i8",
        "is_within": "?",
        "requested": "i8",
        "allocated": "i8",
        "active": "i8",
        "reserved": "i8",
        "own_peak": "i8",
        "own_instant": "i8",
    }

    rank: NDArray[Any]
    device: NDArray[Any]
    instant: NDArray[Any]
    """Of this recording; so every other question can be put to it there. −1 where it has none."""
    time_ns: NDArray[Any]
    """Of the event that led to the instant."""
    is_within: NDArray[Any]
    """Whether the process was recorded at the moment; else the row is what it held at its nearer end. All
    devices of a rank are recorded together: one whose last event came earlier still holds what it held."""
    requested: NDArray[Any]
    allocated: NDArray[Any]
    active: NDArray[Any]
    reserved: NDArray[Any]
    own_peak: NDArray[Any]
    """The most that was allocated here: in the window, in the step, or in all events that are there."""
    own_instant: NDArray[Any]
    aligned: str = "time"
    """``time`` or ``step``."""
    moment_ns: int = 0
    """Of all rows, where they are aligned by time and there is a clock."""

    @property
    def total_bytes(self) -> int:
        """Allocated by all whose bytes are known."""
        return int(self.allocated[self.allocated != NONE].sum())

    @property
    def names(self) -> tuple[str, ...]:
        """``rank 0``; with the device where a rank has several."""
        several = len(set(self.rank.tolist())) < len(self)
        rows = zip(self.rank.tolist(), self.device.tolist(), strict=True)
        return tuple(f"rank {rank}, device {device}" if several else f"rank {rank}" for rank, device in rows)


def by_rank(
    recording: Recording,
    others: Sequence[Recording] = (),
    time_ns: int | None = None,
    step: int | None = None,
    window: tuple[int, int] | None = None,
) -> RankBytes:
    """Of *recording* and the *others* of its run: at *time_ns*; or each at its own peak in the *step* that
    people know by that number; or when all together held most, within the *window* of Unix nanoseconds (both
    ends included) or ever.

    What happened at the same nanosecond is taken in the order of the recordings. Clocks of several hosts are
    taken as they are. Raises UsageError for a moment or a step of none of them, and where there is no clock.
    """
    if (time_ns, step, window).count(None) < 2:
        raise UsageError("by_rank: one of time_ns, step and window")
    recordings = (recording, *others)
    if step is not None:
        return _by_step(recordings, step)
    if others or time_ns is not None or window is not None:
        _check_clocks(recordings)
    courses = [_course(each, window) for each in recordings]
    asked = (time_ns, time_ns) if time_ns is not None else window
    if asked is not None and not any(_reaches(course, *asked) for course in courses):
        raise UsageError("by_rank: none of the recordings reaches to that time")
    return _by_time(courses, time_ns, window[0] if window is not None else 0)


# ------------------------------------------------------------------------------------------ by time


class _Course(NamedTuple):
    """One recording, and the instants of it that are looked at: *first* to *last*, both included."""

    recording: Recording
    totals: Totals
    times: NDArray[Any]
    """Of the events, never falling."""
    first: int
    last: int


def _check_clocks(recordings: Sequence[Recording]) -> None:
    for recording in recordings:
        if len(recording.trace) and not recording.trace.has_clock:
            name = f"rank {recording.process.rank}, device {recording.device.index}"
            raise UsageError(f"by_rank: {name} has no clock (torch before 2.2): ask for a step")


def _course(recording: Recording, window: tuple[int, int] | None) -> _Course:
    times = np.maximum.accumulate(recording.trace.time_ns)
    first, last = 0, len(times)
    if window is not None:
        # On entry, what was before the first nanosecond of it.
        first = int(np.searchsorted(times, window[0], side="left"))
        last = max(first, int(np.searchsorted(times, window[1], side="right")))
    return _Course(recording, timeline(recording), times, first, last)


def _reaches(course: _Course, start: int, end: int) -> bool:
    times = course.totals.time_ns
    return bool(times[0] <= end and start <= times.max())


def _by_time(courses: Sequence[_Course], moment_ns: int | None, earliest_ns: int) -> RankBytes:
    if moment_ns is None:
        instants, at_ns = _fullest(courses)
        moment_ns = max(at_ns, earliest_ns)
    else:
        instants = [int(np.searchsorted(course.times, moment_ns, side="right")) for course in courses]
    spans = _spans(courses)
    rows = [
        _row(course, instant, spans[course.recording.process.rank], moment_ns)
        for course, instant in zip(courses, instants, strict=True)
    ]
    return _table(rows, aligned="time", moment_ns=moment_ns)


def _fullest(courses: Sequence[_Course]) -> tuple[list[int], int]:
    """Of each the instant at which all together held most, first; and when that was."""
    times = np.concatenate([course.times[course.first : course.last] for course in courses])
    owner = np.repeat(np.arange(len(courses)), [course.last - course.first for course in courses])
    change = np.concatenate(
        [np.diff(course.totals.allocated[course.first : course.last + 1]) for course in courses]
    )
    order = np.argsort(times, kind="stable")
    total = np.append(0, np.cumsum(change[order]))
    happened = order[: int(total.argmax())]
    passed = np.bincount(owner[happened], minlength=len(courses)).tolist()
    began = min(_time_of(course, course.first) for course in courses)
    instants = [course.first + n for course, n in zip(courses, passed, strict=True)]
    return instants, int(times[happened[-1]]) if len(happened) else began


def _time_of(course: _Course, instant: int) -> int:
    return int(course.times[instant - 1]) if instant else int(course.totals.time_ns[0])


def _spans(courses: Sequence[_Course]) -> dict[int, tuple[int, int]]:
    """By rank the first and last nanosecond of any of its devices."""
    found: dict[int, tuple[int, int]] = {}
    for course in courses:
        rank, times = course.recording.process.rank, course.totals.time_ns
        first, last = found.get(rank, (int(times[0]), int(times.max())))
        found[rank] = min(first, int(times[0])), max(last, int(times.max()))
    return found


def _row(course: _Course, instant: int, span: tuple[int, int], moment_ns: int) -> dict[str, int]:
    peak = course.first + int(course.totals.allocated[course.first : course.last + 1].argmax())
    return {
        **_identity(course.recording),
        **_levels(course.totals, instant),
        "time_ns": _time_of(course, instant),
        "is_within": span[0] <= moment_ns <= span[1],
        "own_peak": int(course.totals.allocated[peak]),
        "own_instant": peak,
    }


# ------------------------------------------------------------------------------------------ by step


def _by_step(recordings: Sequence[Recording], step: int) -> RankBytes:
    rows = [_row_of_step(recording, step) for recording in recordings]
    if all(row["own_peak"] == NONE for row in rows):
        raise UsageError(f"by_rank: none of the recordings has a step {step}")
    return _table(rows, aligned="step", moment_ns=0)


def _row_of_step(recording: Recording, step: int) -> dict[str, int]:
    """At its own peak in the step; a step that a size cap took has that peak and nothing else."""
    past = np.flatnonzero(recording.past.steps.index == step)
    here = np.flatnonzero(recording.steps.index == step)
    unknown = {**_identity(recording), **dict.fromkeys(RankBytes.DTYPES.keys() - {"rank", "device"}, NONE)}
    unknown["is_within"] = False
    if len(past):
        most = int(step_peaks(recording).past_per_step.allocated[past[0]])
        return {**unknown, "allocated": most, "own_peak": most}
    if not len(here):
        return unknown
    totals, n_events = timeline(recording), len(recording.trace)
    start = min(int(recording.steps.start_event[here[0]]), n_events)
    end = min(int(recording.steps.end_event[here[0]]), n_events)
    instant = start + int(totals.allocated[start : end + 1].argmax())
    return {
        **_identity(recording),
        **_levels(totals, instant),
        "time_ns": int(totals.time_ns[instant]),
        "is_within": True,
        "own_peak": int(totals.allocated[instant]),
        "own_instant": instant,
    }


def _identity(recording: Recording) -> dict[str, int]:
    return {"rank": recording.process.rank, "device": recording.device.index}


def _levels(totals: Totals, instant: int) -> dict[str, int]:
    return {"instant": instant, **{name: int(getattr(totals, name)[instant]) for name in QUANTITIES}}


def _table(rows: Sequence[dict[str, int]], **rest: Any) -> RankBytes:
    return RankBytes.of(**{name: [row[name] for row in rows] for name in RankBytes.DTYPES}, **rest)


ANALYSIS = Analysis(
    "by_rank", "Which rank holds how much, at one moment of all of them, or in the same step?", by_rank
)
