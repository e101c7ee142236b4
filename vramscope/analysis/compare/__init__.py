"""Compares two runs of a program, step by step.

The most that a line holds within a step does not depend on when other lines allocate in the step, so two
runs of the same program compare equal although their autograd threads never interleave alike. Everything
outside of steps (model setup, evaluation) is compared as one more interval; the totals are those of the
whole runs.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories import Assigned, assign
from vramscope.analysis.compare.kinds import different_in_kind
from vramscope.analysis.compare.names import CodeLine, common_names, in_package, line_name, moved_lines
from vramscope.analysis.folding import fold
from vramscope.analysis.lifetimes import Allocations, levels_by_group, lifetimes
from vramscope.analysis.lines import modules_by_place
from vramscope.analysis.peak import peak
from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.analysis.shared_results import shared_results
from vramscope.analysis.step_peaks import IntervalPeaks, step_peaks
from vramscope.analysis.timeline import timeline
from vramscope.model.counters import Counters
from vramscope.model.marks import Category, Phase
from vramscope.model.past import most_of
from vramscope.model.recording import Recording
from vramscope.model.table import Array, EqualByValue

_TOTALS = ("allocated", "reserved")

TOLERANCE = 0.001
"""Differences below this share of the first run's peak are not reported."""

_MOST_STEPS = 1000
"""Most steps in which lines and categories are compared: evenly spread, plus the highest of both runs."""


@dataclass(frozen=True, slots=True)
class Change:
    """One item that holds more, or less, memory than before."""

    kind: str
    """The kind of item: ``line``, ``category``, ``phase`` or ``total``."""
    name: str
    """Name of the item: ``net/model.py:31 forward``, ``activation``, ``backward``, ``allocated``."""
    before_bytes: int
    """Bytes: the most in any compared step and outside of steps; for a total the peak of the run."""
    after_bytes: int
    typical_bytes: int
    """Bytes: the median of the differences over the steps."""
    n_steps: int
    """Steps in which it differs by more than the tolerance."""
    place: CodeLine | None = None
    """The code line as the later run has it; as the earlier one has it where it is gone."""
    is_outside: bool = False
    """Whether it differs by more than the tolerance outside of every step."""
    module: str = ""
    """The module of a line, or the common part of several, ``h.*.mlp``; '' where none is known."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the difference; where the maxima are equal, the difference in the typical step."""
        return self.after_bytes - self.before_bytes or self.typical_bytes


@dataclass(frozen=True, slots=True)
class Comparison(EqualByValue):
    """Two recordings, aligned by the index of their steps."""

    steps: Array
    """Indices of the steps that both have; empty where a run has none: then whole recordings are compared."""
    before_bytes: Array
    """Bytes: peak allocated of each of these steps, or of the recording."""
    after_bytes: Array
    only_before: int
    """The number of steps that only the first recording has."""
    only_after: int
    tolerance_bytes: int
    changes: tuple[Change, ...]
    """The changes, largest first within each kind; empty for equal runs."""
    peak_before_bytes: int = 0
    """Bytes: the most allocated at any moment of the whole run, which every command calls its peak."""
    peak_after_bytes: int = 0
    in_kind: tuple[str, ...] = ()
    """What differs before any line does, in words: torch, device, settings, numbers, the batch."""

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)


class _Side(NamedTuple):
    """One recording, over the intervals that are compared."""

    recording: Recording
    allocations: Allocations
    start: Array
    end: Array
    rows: Array
    """Rows of ``Recording.steps``."""
    assigned: Assigned
    outside: IntervalPeaks
    """The intervals outside of every step; empty where whole recordings are compared."""
    run_peaks: dict[str, int]
    """Peaks of the whole run by quantity."""


def compare(recording: Recording, other: Recording | None = None, tolerance: float = TOLERANCE) -> Comparison:
    """The changes from *recording* to *other*; about 1 s per million events of each.

    Parameters
    ----------
    other
        The later recording; None compares with an empty one.
    tolerance
        Share of the first run's peak below which differences are not reported.
    """
    later = Recording() if other is None else other
    if has_samples_alone(recording) and has_samples_alone(later):
        return _of_samples(recording, later, tolerance)
    with shared_results():
        return _compared(recording, later, tolerance)


def _of_samples(recording: Recording, other: Recording, tolerance: float) -> Comparison:
    peaks = highest_level(recording), highest_level(other)
    least = max(int(tolerance * peaks[0]), 1)
    changes = _largest_first(
        Change("total", name, *pair, pair[1] - pair[0], 0)
        for name, pair in highest_pairs(recording.counters, other.counters).items()
        if abs(pair[1] - pair[0]) >= least
    )
    _, rows, other_rows = _common_steps(recording, other)
    levels = step_levels(recording)[rows], step_levels(other)[other_rows]
    return _comparison((recording, other), levels, peaks, least, changes, (0, 0))


def _compared(recording: Recording, other: Recording, tolerance: float) -> Comparison:
    _, rows, other_rows = _common_steps(recording, other)
    before, after = _side(recording, rows), _side(other, other_rows)
    totals = _totals(before), _totals(after)
    peaks = before.run_peaks["allocated"], after.run_peaks["allocated"]
    least = max(int(tolerance * peaks[0]), 1)
    changed_totals = _total_changes(before, after, totals, least)
    phases = _paired(_by_phase(before), _by_phase(after))
    # The intervals in which lines and categories are compared.
    one, two = totals[0][0], totals[1][0]
    spread = np.linspace(0, len(one) - 1, min(len(one), _MOST_STEPS)).astype("i8")
    chosen = np.unique(np.append(spread, [one.argmax(), two.argmax()]))
    inputs = _input_bytes(before), _input_bytes(after)
    before, after = _chosen(before, chosen), _chosen(after, chosen)
    changes = [*changed_totals, *_changes("phase", *phases, least)]
    if recording.has_allocations and other.has_allocations:
        changes += _changes("category", *_paired(_by_category(before), _by_category(after)), least)
        changes += _line_changes(before, after, least)
    return _comparison((recording, other), (totals[0][0], totals[1][0]), peaks, least, changes, inputs)


def _common_steps(recording: Recording, other: Recording) -> tuple[Array, Array, Array]:
    """Return the steps that both have by their index, and their rows in each."""
    return np.intersect1d(recording.steps.index, other.steps.index, return_indices=True)


def _comparison(
    runs: tuple[Recording, Recording],
    levels: tuple[Array, Array],
    peaks: tuple[int, int],
    least: int,
    changes: list[Change],
    input_bytes: tuple[int, int],
) -> Comparison:
    index = _common_steps(*runs)[0]
    only = [len(each.steps) - len(index) for each in runs]
    in_kind = tuple(different_in_kind(*runs, input_bytes))
    return Comparison(index, *levels, only[0], only[1], least, tuple(changes), *peaks, in_kind)


def _input_bytes(side: _Side) -> int:
    """Return the requested bytes of an input of the median size; 0 where none is known."""
    sizes = np.sort(side.allocations.size[side.assigned.category == Category.INPUT])
    return int(sizes[len(sizes) // 2]) if len(sizes) else 0


_Levels = dict[Hashable, Array]
"""Bytes by item: the most in each step, and last the most outside of all steps."""


def _side(recording: Recording, rows: Array) -> _Side:
    n_events = len(recording.trace)
    steps = recording.steps
    start = steps.start_event[rows] if len(rows) else np.array([0])
    end = np.minimum(steps.end_event[rows], n_events) if len(rows) else np.array([n_events])
    allocations = lifetimes(recording)
    outside = step_peaks(recording).outside if len(rows) else IntervalPeaks.of()
    high = peak(recording)
    return _Side(
        recording=recording,
        allocations=allocations,
        start=np.minimum(start, end),
        end=end,
        rows=rows,
        assigned=assign(recording, allocations),
        outside=outside.rows(np.argsort(-outside.allocated_bytes, kind="stable")[:_MOST_STEPS]),
        run_peaks={quantity: high.highest(quantity).n_bytes for quantity in _TOTALS},
    )


def _totals(side: _Side) -> tuple[Array, Array]:
    """The most allocated and the most reserved bytes of each interval."""
    if len(side.rows):
        peaks = step_peaks(side.recording).per_step
        return peaks.allocated_bytes[side.rows], peaks.reserved_bytes[side.rows]
    totals = timeline(side.recording)
    return totals.allocated_bytes.max(keepdims=True), totals.reserved_bytes.max(keepdims=True)


def _total_changes(before: _Side, after: _Side, totals: tuple[Any, Any], least: int) -> list[Change]:
    """Changes of the peaks of the whole runs, whichever steps are compared."""
    found = []
    for number, quantity in enumerate(_TOTALS):
        old, new = (
            np.append(steps[number], getattr(side.outside, f"{quantity}_bytes").max(initial=0))
            for side, steps in zip((before, after), totals, strict=True)
        )
        most = before.run_peaks[quantity], after.run_peaks[quantity]
        found.append(_change("total", quantity, old, new, least, most))
    return _largest_first(found)


def _by_phase(side: _Side) -> _Levels:
    """The most allocated while in each phase; 0 in a step without it."""
    if not len(side.rows):
        return {}
    peaks: IntervalPeaks = step_peaks(side.recording).per_phase
    at = np.full(len(side.recording.steps), -1)
    at[side.rows] = np.arange(len(side.rows))
    levels: _Levels = {}
    for phase in np.unique(peaks.phase).tolist():
        mine = peaks.rows((peaks.phase == phase) & (peaks.step >= 0))
        mine = mine.rows(at[mine.step] >= 0)
        level = np.zeros(len(side.rows) + 1, "i8")
        level[at[mine.step]] = mine.allocated_bytes
        outside = peaks.allocated_bytes[(peaks.phase == phase) & (peaks.step < 0)]
        level[-1] = outside.max(initial=0)
        levels[Phase(phase).name.lower()] = level
    return levels


def _by_category(side: _Side) -> _Levels:
    found = _grouped(side, side.assigned.category, len(Category))
    return {Category(i).name.lower(): found[:, i] for i in range(len(Category)) if found[:, i].any()}


def _by_line(
    side: _Side, common: Callable[[str], str]
) -> tuple[_Levels, dict[Hashable, tuple[CodeLine, str]]]:
    """Levels by code line with the common path; and the line with the path of its own run, and its module."""
    folded = fold(side.recording.stacks)
    names: dict[Hashable, int] = {}
    of_stack = np.zeros(len(folded.of), "i8")
    own: dict[Hashable, CodeLine] = {}
    for stack_id, (node, via) in enumerate(zip(folded.place.tolist(), folded.via.tolist(), strict=True)):
        function, file, line = folded.stacks.frame(node)
        is_library = bool(node) and folded.is_library(node)
        known_as = in_package(file) if is_library else common(file)
        place = CodeLine(known_as, line, function, folded.strings[via] if via else "", is_library)
        own.setdefault(place, place._replace(file=file))
        of_stack[stack_id] = names.setdefault(place, len(names))
    group = of_stack[side.allocations.stack_id]
    found = _grouped(side, group, len(names))
    modules = modules_by_place(side.recording, side.allocations, side.assigned, group)
    levels = {place: found[:, i] for place, i in names.items()}
    return levels, {place: (own[place], modules.get(i, "")) for place, i in names.items()}


def _chosen(side: _Side, stretches: Array) -> _Side:
    return side._replace(start=side.start[stretches], end=side.end[stretches])


def _grouped(side: _Side, group: Array, n_groups: int) -> Array:
    # In one call, which sorts all changes once.
    start = np.concatenate([side.start, side.outside.start_event])
    end = np.concatenate([side.end, side.outside.end_event])
    levels = group_peaks(side.allocations, group, n_groups, start, end)
    n_steps = len(side.start)
    outside = levels[n_steps:].max(axis=0, initial=0, keepdims=True)
    return np.concatenate([levels[:n_steps], outside])


def _paired(before: _Levels, after: _Levels) -> tuple[_Levels, _Levels]:
    """Both sides with zeros for items that only one has."""
    return _padded(before, after), _padded(after, before)


def _padded(levels: _Levels, others: _Levels) -> _Levels:
    return levels | {key: np.zeros_like(level) for key, level in others.items() if key not in levels}


def _changes(kind: str, before: _Levels, after: _Levels, least: int) -> list[Change]:
    """The changes above *least*, largest first."""
    return _largest_first(_change(kind, str(key), level, after[key], least) for key, level in before.items())


def _largest_first(changes: Iterable[Change | None]) -> list[Change]:
    return sorted(filter(None, changes), key=lambda change: -abs(change.n_bytes))


def _change(
    kind: str, name: str, before: Array, after: Array, least: int, most: tuple[int, int] | None = None
) -> Change | None:
    """The change; None where neither the maxima nor the typical steps differ by *least*."""
    difference = after - before
    by_step = difference[:-1]
    typical = int(np.median(by_step)) if len(by_step) else 0
    most = (int(before.max(initial=0)), int(after.max(initial=0))) if most is None else most
    if abs(most[1] - most[0]) < least and abs(typical) < least:
        return None
    n_steps = int((np.abs(by_step) >= least).sum())
    return Change(kind, name, *most, typical, n_steps, is_outside=bool(abs(int(difference[-1])) >= least))


def _line_changes(before: _Side, after: _Side, least: int) -> list[Change]:
    common = common_names(before.recording, after.recording)
    (old, old_places), (new, new_places) = _by_line(before, common[0]), _by_line(after, common[1])
    moved = moved_lines(old, new)
    new_places = {moved.get(key, key): place for key, place in new_places.items()}
    old, new = _paired(old, {moved.get(key, key): level for key, level in new.items()})
    found = []
    for key, level in old.items():
        place, module = new_places.get(key) or old_places[key]
        change = _change("line", line_name(place), level, new[key], least)
        found.append(change and replace(change, place=place, module=module))
    return _largest_first(found)


def group_peaks(allocations: Allocations, group: Array, n_groups: int, start: Array, end: Array) -> Array:
    """The maximum of each group over the instants *start* to *end*, both included.

    A group's peak is its own: the peaks of several groups need not be at the same instant, so their sum means
    nothing.

    *group* is that of each allocation, from 0 on. Returns bytes, shape (intervals, groups).
    """
    owner, instant, level = levels_by_group(allocations, group, n_groups)
    span = int(max(end.max(initial=0), instant.max(initial=0))) + 1
    groups = np.arange(n_groups)[None, :]
    moment = owner.astype("i8") * span + instant
    first = np.searchsorted(moment, groups * span + start[:, None], side="right")
    last = np.searchsorted(moment, groups * span + end[:, None], side="right")
    # The level at the start, which the previous change left, and that of all changes within.
    entry = level[first - 1]
    return np.maximum(entry, most_of(level, first.ravel(), last.ravel()).reshape(first.shape))


_LEVELS = ("device_used_bytes", "process_used_bytes")


def has_samples_alone(recording: Recording) -> bool:
    """Return whether a recording has samples and neither an event nor a block."""
    return bool(len(recording.counters)) and not len(recording.trace) and not len(recording.initial.segments)


def highest_pairs(before: Counters, after: Counters) -> dict[str, tuple[int, int]]:
    """Return the highest bytes of each series that both have."""
    pairs = {
        name.removesuffix("_bytes").replace("_", " "): (
            int(column.max(initial=-1)),
            int(getattr(after, name).max(initial=-1)),
        )
        for name, column in before.columns()
        if name.endswith("_bytes")
    }
    return {name: pair for name, pair in pairs.items() if min(pair) >= 0}


def highest_level(recording: Recording) -> int:
    """Return the highest bytes of what was sampled: allocated, else reserved, else as the driver counts."""
    found = sampled_peaks(recording)
    levels = [found.allocated_bytes, found.reserved_bytes]
    levels += [int(np.max(getattr(recording.counters, name), initial=-1)) for name in _LEVELS]
    return next((level for level in levels if level >= 0), 0)


def step_levels(recording: Recording) -> Array:
    """Return the highest allocated bytes of each step, −1 where no sample has them."""
    found = sampled_peaks(recording).per_step
    return found.allocated_bytes if len(found) else np.full(len(recording.steps), -1)


ANALYSIS = asking("What changed from one run to another, step by step?", compare)
