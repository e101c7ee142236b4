"""A recording's quantities over one horizontal axis: seconds since it began, or allocator events."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.churn import retry_events
from vramscope.model.marks import MarkKind
from vramscope.model.recording import Recording

TIME, EVENTS = "time", "events"
RETRY = 100
"""Kind of a flag beside those of marks: the cache was released because something did not fit."""
_FULL_COLLECTION = 2


@dataclass(frozen=True, slots=True)
class Curve:
    """A step function: *value* (bytes) holds from its position to the next."""

    position: NDArray[Any]
    value: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Spans:
    """Stretches of the axis, sorted by start; *label* is a Phase or the step's number."""

    start: NDArray[Any]
    end: NDArray[Any]
    label: NDArray[Any]
    depth: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Flags:
    """Points of the axis worth a sign: kind is a MarkKind or RETRY, name what the program called it."""

    position: NDArray[Any]
    kind: NDArray[Any]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Everything the overview draws, on one axis. Index of ``position`` and of the totals: the instant."""

    axis: str
    position: NDArray[Any]
    allocated: NDArray[Any]
    active: NDArray[Any]
    reserved: NDArray[Any]
    device_used: Curve
    capacity_bytes: int
    phases: Spans
    steps: Spans
    flags: Flags

    @property
    def extent(self) -> tuple[float, float]:
        """First and last position; never of zero width."""
        first, last = float(self.position[0]), float(self.position[-1])
        return first, last if last > first else first + 1.0

    @property
    def peak(self) -> int:
        """Instant of the greatest allocated bytes."""
        return int(self.allocated.argmax())


def series(recording: Recording, totals: Any, axis: str) -> Series:
    """The series of *recording* on *axis*; on events where the source has no clock."""
    axis = axis if recording.trace.has_clock else EVENTS
    ruler = _Ruler(recording, totals, axis)
    return Series(
        axis=axis,
        position=ruler.instants(),
        allocated=totals.allocated,
        active=totals.active,
        reserved=totals.reserved,
        device_used=_device_used(recording, ruler),
        capacity_bytes=recording.device.total_bytes,
        phases=_spans(recording.phases, recording.phases.phase, recording.phases.depth, ruler),
        steps=_spans(recording.steps, recording.steps.index, np.zeros(len(recording.steps), "i4"), ruler),
        flags=_flags(recording, ruler),
    )


def origin_ns(recording: Recording, totals: Any) -> int:
    """Where the time axis starts: the first thing recorded, which does not move while the run grows."""
    firsts = [totals.time_ns[:1], recording.steps.start_ns[:1], recording.phases.start_ns[:1]]
    firsts.append(recording.counters.time_ns[:1])
    known = [int(first[0]) for first in firsts if len(first) and first[0] > 0]
    return min(known, default=0)


class _Ruler:
    """Instants and times to positions on one axis."""

    __slots__ = ("_origin", "_time_ns", "axis")

    def __init__(self, recording: Recording, totals: Any, axis: str) -> None:
        self.axis = axis
        self._time_ns = np.maximum.accumulate(totals.time_ns)
        self._origin = origin_ns(recording, totals)

    def instants(self) -> NDArray[Any]:
        """The position of every instant."""
        if self.axis == EVENTS:
            return np.arange(len(self._time_ns), dtype="f8")
        return self._seconds(self._time_ns)

    def place(self, event: NDArray[Any], time_ns: NDArray[Any]) -> NDArray[Any]:
        """Positions of things known by event, time or both; −1 and 0 mean unknown."""
        last = len(self._time_ns) - 1
        by_time = np.searchsorted(self._time_ns, time_ns, side="right") - 1
        at = np.clip(np.where(event >= 0, event, by_time), 0, last)
        if self.axis == EVENTS:
            return at.astype("f8")
        return np.where(time_ns > 0, self._seconds(time_ns), self._seconds(self._time_ns[at]))

    def _seconds(self, time_ns: NDArray[Any]) -> NDArray[Any]:
        return np.maximum(time_ns - self._origin, 0) / 1e9


def _device_used(recording: Recording, ruler: _Ruler) -> Curve:
    counters = recording.counters
    known = counters.rows(counters.device_used_bytes >= 0)
    return Curve(ruler.place(known.event, known.time_ns), known.device_used_bytes)


def _spans(table: Any, label: NDArray[Any], depth: NDArray[Any], ruler: _Ruler) -> Spans:
    start = ruler.place(table.start_event, table.start_ns)
    end = np.maximum(ruler.place(table.end_event, table.end_ns), start)
    order = np.argsort(start, kind="stable")
    return Spans(start[order], end[order], label[order].astype("i8"), depth[order].astype("i8"))


def _flags(recording: Recording, ruler: _Ruler) -> Flags:
    marks = recording.marks
    told = np.isin(marks.kind, (MarkKind.MARK, MarkKind.OOM, MarkKind.EMPTY_CACHE))
    shown = marks.rows(told | ((marks.kind == MarkKind.GC) & (marks.value >= _FULL_COLLECTION)))
    retries = retry_events(recording) + 1
    names = (*(marks.names[i] for i in shown.name), *("" for _ in retries))
    event = np.concatenate([shown.event, retries])
    time_ns = np.concatenate([shown.time_ns, recording.trace.time_ns[retries - 1]])
    kind = np.concatenate([shown.kind.astype("i8"), np.full(len(retries), RETRY)])
    return Flags(ruler.place(event, time_ns), kind, names)
