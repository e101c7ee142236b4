"""A recording's quantities over one horizontal axis: seconds since it began, or allocator events."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis.churn import retry_events
from vramscope.model.marks import MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array, first_greatest, rows_within

TIME, EVENTS = "time", "events"
DRAWN = ("allocated", "active", "reserved")
RETRY = 100
"""Kind of a flag beside those of ``MarkKind``: the cache was released because a request did not fit."""
_FULL_COLLECTION = 2
_STRETCH = 1 << 16
"""Instants per pass: intermediate arrays stay in the processor's cache."""
MAX_BANDS = 400


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A step function: *value* (bytes) holds from its position to the next."""

    position: Array
    value: Array


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Intervals of the axis, sorted by start; *label* is a Phase or the number of a step."""

    start: Array
    end: Array
    label: Array
    depth: Array


@dataclass(frozen=True, slots=True, eq=False)
class Flags:
    """Marked points of the axis: kind is a MarkKind or RETRY, the name is that of the program."""

    position: Array
    kind: Array
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Everything that the overview draws, on one axis. ``position`` and the totals are indexed by instant."""

    axis: str
    position: Array
    allocated: Array
    active: Array
    reserved: Array
    device_used: Curve
    capacity_bytes: int
    phases: Spans
    steps: Spans
    flags: Flags

    def top(self, name: str) -> int:
        """Return the greatest value of one curve."""
        return max(int(getattr(self, name).max(initial=0)), 0)

    @property
    def extent(self) -> tuple[float, float]:
        """First and last position; the width is never zero."""
        first, last = float(self.position[0]), float(self.position[-1])
        return first, last if last > first else first + 1.0

    @property
    def peak(self) -> int:
        """Instant of the greatest allocated bytes."""
        return first_greatest(self.allocated)


class SeriesParts(NamedTuple):
    """The parts of a series that take a pass over the recording."""

    ruler: "Ruler"
    retries: Array
    """Events of retries."""
    phases: Spans
    steps: Spans


def parts_of(recording: Recording, totals: Any, axis: str) -> SeriesParts:
    """Return the parts of the series of *recording* on *axis*."""
    placed = ruler(recording, totals, axis)
    return SeriesParts(
        placed,
        retry_events(recording),
        spans(*phase_columns(recording), placed),
        spans(*step_columns(recording), placed),
    )


def series(recording: Recording, totals: Any, axis: str, known: SeriesParts | None = None) -> Series:
    """Return the series of *recording* on *axis*; on events where the source has no clock.

    *axis* is TIME or EVENTS; *known* are its parts, where they are known already.
    """
    placed, again, phases, steps = known or parts_of(recording, totals, axis)
    sampled_at = placed.place(recording.counters.event, recording.counters.time_ns)
    return Series(
        axis=placed.axis,
        position=placed.instants,
        allocated=totals.allocated_bytes,
        active=totals.active_bytes,
        reserved=totals.reserved_bytes,
        device_used=_sampled(recording.counters.device_used_bytes, sampled_at),
        capacity_bytes=recording.device.total_bytes,
        phases=phases,
        steps=steps,
        flags=_flags(recording, placed, again),
    )


def has_clock(recording: Recording) -> bool:
    """Return whether times are those of the program: those of a dry run are not."""
    return recording.trace.has_clock and recording.source != "predicted"


def origin_ns(recording: Recording, totals: Any) -> int:
    """Return the start of the time axis in ns: the first thing recorded, which stays while the run grows."""
    firsts = [totals.time_ns[:1], recording.steps.start_ns[:1], recording.phases.start_ns[:1]]
    firsts.append(recording.counters.time_ns[:1])
    # In a run with a size cap the first step is retained when its events are deleted: the axis does not move.
    firsts.append(recording.past.steps.start_ns[:1])
    known = [int(first[0]) for first in firsts if len(first) and first[0] > 0]
    return min(known, default=0)


def instants(axis: str, origin: int, in_order: Array, first: int = 0) -> Array:
    """Return the positions of the instants from *first* on, whose times are *in_order*."""
    if axis == EVENTS:
        return np.arange(first, len(in_order), dtype="f8")
    return _seconds(in_order[first:], origin)


def _seconds(time_ns: Array, origin: int) -> Array:
    """Return seconds from *origin* on; takes no memory but that of the result, 40 MB of 5 million events."""
    found = np.empty(len(time_ns), "f8")
    for first in range(0, len(time_ns), _STRETCH):
        part = slice(first, first + _STRETCH)
        np.divide(np.maximum(time_ns[part] - origin, 0), 1e9, out=found[part])
    return found


def _in_order(time_ns: Array) -> Array:
    """Return the times, none before another; the same array where that is so already, as nearly always."""
    parts = range(0, len(time_ns), _STRETCH)
    pairs = ((time_ns[at : at + _STRETCH], time_ns[at + 1 : at + 1 + _STRETCH]) for at in parts)
    if all((before[: len(after)] <= after).all() for before, after in pairs):
        return time_ns
    return np.maximum.accumulate(time_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Ruler:
    """Conversion of instants and times to positions on one axis."""

    axis: str
    time_ns: Array
    """Time by instant, never decreasing."""
    origin: int
    instants: Array
    """The position of every instant."""

    def place(self, event: Array, time_ns: Array) -> Array:
        """Return positions of things known by event, time or both; event −1 and time 0 mean unknown."""
        at = np.minimum(event, len(self.time_ns) - 1)
        # Where the axis has times, a time needs no event: 18,000 samples are found among 20 million in 10 ms.
        lost = np.flatnonzero(at < 0 if self.axis == EVENTS else (at < 0) & (time_ns <= 0))
        at[lost] = np.maximum(np.searchsorted(self.time_ns, time_ns[lost], side="right") - 1, 0)
        if self.axis == EVENTS:
            return at.astype("f8")
        by_event = _seconds(self.time_ns[at], self.origin)
        return np.where(time_ns > 0, _seconds(time_ns, self.origin), by_event)


def ruler(recording: Recording, totals: Any, axis: str) -> Ruler:
    """Return the ruler of one recording; in events where it has no clock."""
    axis = axis if has_clock(recording) else EVENTS
    in_order, origin = _in_order(totals.time_ns), origin_ns(recording, totals)
    return Ruler(axis, in_order, origin, instants(axis, origin, in_order))


def _sampled(values: Array, position: Array) -> Curve:
    known = values >= 0
    return Curve(position[known], values[known])


def phase_columns(recording: Recording) -> tuple[Any, Array, Array]:
    """Return the phases, and the label and depth of their spans."""
    return recording.phases, recording.phases.phase, recording.phases.depth


def step_columns(recording: Recording) -> tuple[Any, Array, Array]:
    """Return the steps, and the label and depth of their spans."""
    return recording.steps, recording.steps.index, np.zeros(len(recording.steps), "i4")


def spans(table: Any, label: Array, depth: Array, placed: Ruler) -> Spans:
    """Return the spans of *table*, sorted by start; *label* and *depth* are by row."""
    start = placed.place(table.start_event, table.start_ns)
    end = np.maximum(placed.place(table.end_event, table.end_ns), start)
    order = np.argsort(start, kind="stable")
    return Spans(start[order], end[order], label[order].astype("i8"), depth[order].astype("i8"))


def _flags(recording: Recording, placed: Ruler, again: Array) -> Flags:
    marks = recording.marks
    is_mark = np.isin(marks.kind, (MarkKind.MARK, MarkKind.OOM, MarkKind.EMPTY_CACHE))
    shown = marks.rows(is_mark | ((marks.kind == MarkKind.GC) & (marks.value >= _FULL_COLLECTION)))
    retries = again + 1
    names = (*(marks.names[i] for i in shown.name), *("" for _ in retries))
    event = np.concatenate([shown.event, retries])
    time_ns = np.concatenate([shown.time_ns, recording.trace.time_ns[retries - 1]])
    kind = np.concatenate([shown.kind.astype("i8"), np.full(len(retries), RETRY)])
    return Flags(placed.place(event, time_ns), kind, names)


@dataclass(frozen=True, slots=True, eq=False)
class PhaseBands:
    """Adjacent intervals of the axis: *phase[i]* holds from *edges[i]* to *edges[i + 1]*."""

    edges: Array
    phase: Array


def phase_bands(phases: Spans, start: float, end: float) -> PhaseBands:
    """Return the innermost phase over ``[start, end]`` in at most MAX_BANDS intervals.

    Exact up to MAX_BANDS intervals; beyond, the phase in the middle of each of MAX_BANDS columns.
    """
    near = (phases.end > start) & (phases.start < end)
    borders = np.concatenate([[start, end], phases.start[near], phases.end[near]])
    edges = np.unique(np.clip(borders, start, end))
    if len(edges) > MAX_BANDS + 1:
        edges = np.linspace(start, end, MAX_BANDS + 1)
    phase = innermost(phases, (edges[:-1] + edges[1:]) / 2)
    changes = np.flatnonzero(np.concatenate([[True], phase[1:] != phase[:-1]]))
    return PhaseBands(np.append(edges[changes], edges[-1]), phase[changes])


def innermost(phases: Spans, at: Array) -> Array:
    """Return the innermost phase at each position; OTHER where none. One search per depth of nesting."""
    found = np.full(len(at), int(Phase.OTHER))
    for depth in np.unique(phases.depth):
        mine = np.flatnonzero(phases.depth == depth)
        row = rows_within(phases.start[mine], phases.end[mine], at)
        found[row >= 0] = phases.label[mine[row[row >= 0]]]
    return found
