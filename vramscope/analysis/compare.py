"""What became different from one run to another, step by step?

What a place holds at most within a step does not depend on when in the step other places allocate, so two
runs of the same program compare equal although their autograd threads never run alike twice.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from os.path import commonpath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis._group_peaks import group_peaks
from vramscope.analysis.categories import assign
from vramscope.analysis.folding import fold
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.step_peaks import IntervalPeaks, step_peaks
from vramscope.analysis.timeline import timeline
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

TOLERANCE = 0.001
"""Differences below this share of the first run's peak are not told."""

_MOST_STEPS = 1000
"""Lines and categories are compared in so many steps, spread evenly, and in the highest of both runs."""


class Place(NamedTuple):
    """A line of the program, and the framework's function that it called."""

    file: str
    line: int
    function: str
    via: str


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that holds more, or less, than before."""

    kind: str
    """``line``, ``category``, ``phase`` or ``total``."""
    name: str
    """``model.py:31 forward``, ``activation``, ``backward``, ``allocated``."""
    before: int
    """Bytes: the most in any of the steps compared."""
    after: int
    typical: int
    """Bytes: the median over the steps of what became different in each."""
    n_steps: int
    """Steps in which it differs by more than the tolerance."""
    place: Place | None = None
    """Of a line, as the later run has it; as the earlier one has it where it is gone."""

    @property
    def n_bytes(self) -> int:
        """Of the difference; where the maxima are alike, that of the typical step."""
        return self.after - self.before or self.typical


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two recordings, aligned by the index of their steps."""

    steps: NDArray[Any]
    """Indexes of the steps that both have; empty where a run has none: then whole recordings are compared."""
    before: NDArray[Any]
    """Bytes: peak allocated of each of these steps, or of the recording."""
    after: NDArray[Any]
    only_before: int
    """Steps that just one has."""
    only_after: int
    tolerance_bytes: int
    changes: tuple[Change, ...]
    """Largest first within each kind; empty for equal runs."""

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)


class _Side(NamedTuple):
    """One recording, over the stretches that are compared."""

    recording: Recording
    allocations: Allocations
    start: NDArray[Any]
    end: NDArray[Any]
    rows: NDArray[Any]
    """Of ``Recording.steps``."""


def compare(recording: Recording, other: Recording | None = None, tolerance: float = TOLERANCE) -> Comparison:
    """From *recording* to *other* (to nothing where None); about 1 s per million events of each."""
    other = Recording() if other is None else other
    index, rows, other_rows = np.intersect1d(recording.steps.index, other.steps.index, return_indices=True)
    before, after = _side(recording, rows), _side(other, other_rows)
    totals = _totals(before), _totals(after)
    least = max(int(tolerance * totals[0][0].max(initial=0)), 1)
    phases = _paired(_by_phase(before), _by_phase(after))
    telling = _telling(totals[0][0], totals[1][0])
    before, after = _chosen(before, telling), _chosen(after, telling)
    changes = [
        *_changes("total", _by_total(totals[0]), _by_total(totals[1]), least),
        *_changes("phase", *phases, least),
        *_changes("category", *_paired(_by_category(before), _by_category(after)), least),
        *_line_changes(before, after, least),
    ]
    return Comparison(
        steps=index,
        before=totals[0][0],
        after=totals[1][0],
        only_before=len(recording.steps) - len(index),
        only_after=len(other.steps) - len(index),
        tolerance_bytes=least,
        changes=tuple(changes),
    )


# --------------------------------------------------------------------------------- what is compared

_Levels = dict[Hashable, NDArray[Any]]
"""Bytes of each step, by what holds them."""


def _side(recording: Recording, rows: NDArray[Any]) -> _Side:
    n_events = len(recording.trace)
    steps = recording.steps
    start = steps.start_event[rows] if len(rows) else np.array([0])
    end = np.minimum(steps.end_event[rows], n_events) if len(rows) else np.array([n_events])
    return _Side(recording, lifetimes(recording), np.minimum(start, end), end, rows)


def _totals(side: _Side) -> tuple[NDArray[Any], NDArray[Any]]:
    """The most allocated and the most reserved of each stretch."""
    if len(side.rows):
        peaks = step_peaks(side.recording).per_step
        return peaks.allocated[side.rows], peaks.reserved[side.rows]
    totals = timeline(side.recording)
    return totals.allocated.max(keepdims=True), totals.reserved.max(keepdims=True)


def _by_total(totals: tuple[NDArray[Any], NDArray[Any]]) -> _Levels:
    return dict(zip(("allocated", "reserved"), totals, strict=True))


def _by_phase(side: _Side) -> _Levels:
    """The most allocated while in each phase; 0 in a step that had none."""
    if not len(side.rows):
        return {}
    peaks: IntervalPeaks = step_peaks(side.recording).per_phase
    at = np.full(len(side.recording.steps), -1)
    at[side.rows] = np.arange(len(side.rows))
    levels: _Levels = {}
    for phase in np.unique(peaks.phase).tolist():
        mine = peaks.rows((peaks.phase == phase) & (peaks.step >= 0))
        mine = mine.rows(at[mine.step] >= 0)
        level = np.zeros(len(side.rows), "i8")
        level[at[mine.step]] = mine.allocated
        levels[Phase(phase).name.lower()] = level
    return levels


def _by_category(side: _Side) -> _Levels:
    assigned = assign(side.recording, side.allocations).category
    found = _grouped(side, assigned, len(Category))
    return {Category(i).name.lower(): found[:, i] for i in range(len(Category)) if found[:, i].any()}


def _by_line(side: _Side, common: Callable[[str], str]) -> tuple[_Levels, dict[Hashable, Place]]:
    """By place; the place itself with its file as it is called in its own run."""
    folded = fold(side.recording.stacks)
    names: dict[tuple[Any, ...], int] = {}
    of_stack = np.zeros(len(folded.of), "i8")
    own: dict[Hashable, Place] = {}
    for stack_id, (own_id, via) in enumerate(zip(folded.of.tolist(), folded.via.tolist(), strict=True)):
        function, file, line = folded.stacks.frame(own_id)
        place = Place(common(file), line, function, folded.strings[via])
        own.setdefault(place, place._replace(file=file))
        of_stack[stack_id] = names.setdefault(place, len(names))
    found = _grouped(side, of_stack[side.allocations.stack_id], len(names))
    return {place: found[:, i] for place, i in names.items()}, own


def _chosen(side: _Side, stretches: NDArray[Any]) -> _Side:
    return side._replace(start=side.start[stretches], end=side.end[stretches])


def _telling(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """Which stretches are looked into."""
    spread = np.linspace(0, len(before) - 1, min(len(before), _MOST_STEPS)).astype("i8")
    return np.unique(np.append(spread, [before.argmax(), after.argmax()]))


def _grouped(side: _Side, group: NDArray[Any], n_groups: int) -> NDArray[Any]:
    return group_peaks(side.allocations, group, n_groups, side.start, side.end)


# ------------------------------------------------------------------------------------- what changed


def _paired(before: _Levels, after: _Levels) -> tuple[_Levels, _Levels]:
    """With zeros for what just one has."""
    return _padded(before, after), _padded(after, before)


def _padded(levels: _Levels, others: _Levels) -> _Levels:
    return levels | {key: np.zeros_like(level) for key, level in others.items() if key not in levels}


def _changes(kind: str, before: _Levels, after: _Levels, least: int) -> list[Change]:
    """Those above *least*, largest first."""
    found = []
    for key, level in before.items():
        change = _change(kind, str(key), level, after[key], least)
        if change is not None:
            found.append(change)
    return sorted(found, key=lambda change: -abs(change.n_bytes))


def _change(
    kind: str, name: str, before: NDArray[Any], after: NDArray[Any], least: int, place: Place | None = None
) -> Change | None:
    by_step = after - before
    typical = int(np.median(by_step)) if len(by_step) else 0
    most = int(before.max(initial=0)), int(after.max(initial=0))
    if abs(most[1] - most[0]) < least and abs(typical) < least:
        return None
    return Change(kind, name, *most, typical, int((np.abs(by_step) >= least).sum()), place)


def _line_changes(before: _Side, after: _Side, least: int) -> list[Change]:
    common = _common_names(_files(before.recording), _files(after.recording))
    old, old_places = _by_line(before, common[0])
    new, new_places = _by_line(after, common[1])
    moved = _moved(old, new)
    new = {moved.get(key, key): level for key, level in new.items()}
    new_places = {moved.get(key, key): place for key, place in new_places.items()}
    old, new = _paired(old, new)
    found = []
    for key, level in old.items():
        place = new_places.get(key) or old_places.get(key)
        change = _change("line", _words(place), level, new[key], least, place)
        if change is not None:
            found.append(change)
    return sorted(found, key=lambda change: -abs(change.n_bytes))


def _moved(old: _Levels, new: _Levels) -> dict[Hashable, Hashable]:
    """New places → old ones, for an edited file: a function's lines in order, where none came or went."""
    gone, come = _by_function(old.keys() - new.keys()), _by_function(new.keys() - old.keys())
    moved: dict[Hashable, Hashable] = {}
    for function, places in come.items():
        if len(gone.get(function, ())) == len(places):
            moved |= dict(zip(places, gone[function], strict=True))
    return moved


def _by_function(places: Any) -> dict[tuple[str, str, str], list[Place]]:
    found: dict[tuple[str, str, str], list[Place]] = {}
    for place in sorted(places):
        found.setdefault((place.file, place.function, place.via), []).append(place)
    return found


def _files(recording: Recording) -> frozenset[str]:
    """Of the program's own frames."""
    folded = fold(recording.stacks)
    return frozenset(folded.stacks.strings[i] for i in np.unique(folded.stacks.file).tolist()) - {""}


def _common_names(
    before: frozenset[str], after: frozenset[str]
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Files as both runs call them: as they are, or below their own roots where no file is the same."""
    if before & after or not (before and after):
        return _as_it_is, _as_it_is
    return _below(sorted(before)), _below(sorted(after))


def _as_it_is(file: str) -> str:
    return file


def _below(files: Sequence[str]) -> Callable[[str], str]:
    folders = [file.replace("\\", "/").rpartition("/")[0] for file in files]
    try:
        root = commonpath(folders)
    except ValueError:  # some absolute, some not
        return _as_it_is
    return lambda file: file.replace("\\", "/").removeprefix(root).lstrip("/")


def _words(place: Place | None) -> str:
    if place is None or not (place.file or place.via):
        return "no stack was recorded"
    if not place.file:
        return place.via
    name = place.file.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{place.line} {place.function}" + (f": {place.via}" if place.via else "")


ANALYSIS = Analysis("compare", "What became different from one run to another, step by step?", compare)
