"""How many bytes does a step need for a batch of another size?

Steps that do the same things in the same order are replayed with the sizes that another batch would have,
see ``_step_program``, and checked against the steps seen. Where steps differ in what they do, one straight
line goes through the peaks of each phase. From two sizes alone nobody knows whether bytes grow with the
size or with its square (a longer sequence): the interval holds both. What is outside of training steps, as
evaluation, is taken to stay as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import Settings
from vramscope.analysis import Analysis
from vramscope.analysis.batch_fit.step_program import (
    Needs,
    Programs,
    StepProgram,
    StepSequence,
    program,
)
from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.step_and_phase import place
from vramscope.analysis.step_peaks import step_peaks
from vramscope.analysis.timeline import timeline
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

_SAMPLES = "samples"
_CARRIES = {2: 2.0, 3: 4.0}
"""By the number of different sizes (3: or more): up to so many times the largest is foreseen."""
_STRAIGHT = 0.01
"""Steps whose peak is this share away from what is foreseen are not on a line."""
_LEAST_ERROR = 0.005
"""Of the bytes: beyond the sizes seen nothing is called surer than that."""
_MOST_STEPS = 16
"""Of each size so many steps say enough."""


class Estimate(NamedTuple):
    """Bytes, from what steps of other sizes needed."""

    low: int
    likely: int
    """Allocated at most."""
    high: int
    reserved: int | None
    """At most; None where no replay says it."""
    phase: Phase
    """In which most is allocated."""
    categories: dict[str, int]
    """Of ``likely``, with ``rounding``; empty where no replay says it."""

    def fits(self, free_bytes: int) -> bool | None:
        """Return whether it fits *free_bytes* for the allocator; None where the interval decides nothing."""
        if self.low > free_bytes:
            return False
        is_surely = self.high <= free_bytes and (self.reserved is None or self.reserved <= free_bytes)
        return True if is_surely else None


class Largest(NamedTuple):
    """The largest size that fits."""

    size: int
    """0 where not even the smallest fits."""
    is_limited_by_data: bool
    """Larger ones may fit too, but the steps recorded do not carry so far."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Straight lines through the peaks of phases."""

    phase: NDArray[Any]
    fixed: NDArray[Any]
    """Bytes."""
    per_unit: NDArray[Any]
    """Bytes per unit of size, that of the step before included."""
    per_square: NDArray[Any] | float = 0.0
    """Bytes per square of the size."""

    def needs(self, size: int) -> Needs:
        """The highest of them."""
        level = self.fixed + self.per_unit * size + self.per_square * (float(size) * size)
        row = int(level.argmax())
        return Needs(round(float(level[row])), -1, Phase(int(self.phase[row])), {})


@dataclass(frozen=True, slots=True)
class BatchFit:
    """What steps needed, for other sizes; or the reason why nothing can be said."""

    unit: str
    """``samples``: as told; ``bytes of input``: as capture saw them."""
    sizes: tuple[int, ...] = ()
    """The different sizes there were."""
    n_steps: int = 0
    """Steps that it rests upon."""
    model: StepProgram | Lines | None = None
    error_bytes: int = 0
    """The farthest that the peak of a step was from what is foreseen for it."""
    problem: str = ""
    """Why nothing can be said, or why to doubt it."""
    bounds: tuple[StepProgram, StepProgram] | tuple[Lines, Lines] | None = None
    """Least and greatest growth that the sizes seen leave open; None where they leave none."""
    floor_bytes: int = 0
    """Allocated at most outside of training steps, whatever their batch."""
    floor_phase: Phase = Phase.OTHER
    """Phase in which that was."""
    _known: dict[int, Needs] = field(default_factory=dict, repr=False, compare=False)

    @property
    def basis(self) -> str:
        """``replay``, ``lines`` or nothing."""
        return "" if self.model is None else "lines" if isinstance(self.model, Lines) else "replay"

    @property
    def smallest(self) -> int:
        """Sizes are foreseen from half of the smallest seen …"""
        return max(1, self.sizes[0] // 2) if self.sizes else 0

    @property
    def largest(self) -> int:
        """… to twice the largest, or four times where there were three sizes or more."""
        return int(self.sizes[-1] * _CARRIES[min(len(self.sizes), 3)]) if len(self.sizes) > 1 else 0

    def at(self, size: int) -> Estimate | None:
        """What a step of *size* after others of its size needs; None where the data do not carry so far."""
        if self.model is None or not self.smallest <= size <= self.largest:
            return None
        if size not in self._known:
            self._known[size] = self.model.needs(size)
        needs = self._known[size]
        least, most = needs.allocated, needs.allocated
        if self.bounds is not None and not self.sizes[0] <= size <= self.sizes[-1]:
            both = [bound.needs(size).allocated for bound in self.bounds]
            least, most = min(least, *both), max(most, *both)
        # Beyond the sizes seen an error of the slope grows with the distance; and which blocks are handed out
        # larger than asked for, since their rest was too small, depends on where things come to lie.
        away = max(1.0, size / self.sizes[-1], self.sizes[0] / size)
        error = max(self.error_bytes, _LEAST_ERROR * needs.allocated if away > 1 else 0)
        margin = round(error * away) + needs.categories.get("rounding", 0)
        floor, is_floor = self.floor_bytes, self.floor_bytes > needs.allocated
        is_sure = needs.reserved >= 0 and least == most and floor <= least
        return Estimate(
            max(least - margin, floor),
            max(needs.allocated, floor),
            max(most + margin, floor),
            needs.reserved if is_sure else None,
            self.floor_phase if is_floor else needs.phase,
            {} if is_floor else needs.categories,
        )

    def rows(self, most: int = 6) -> list[tuple[int, Estimate]]:
        """Return the sizes worth a line in a table: some that were seen, twice the largest, the largest
        known."""
        if self.model is None:
            return []
        sizes = sorted({*self.sizes[-most:], 2 * self.sizes[-1], self.largest})
        return [(size, found) for size in sizes if (found := self.at(size)) is not None]

    def named(self, size: int) -> str:
        """Return *size* in the words of somebody who knows the batches of the run."""
        if size in self.sizes:
            words = f"{size:,} (seen)" if self.unit == _SAMPLES else f"{format_bytes(size)} (seen)"
        elif self.unit == _SAMPLES:
            words = f"{size:,}"
        else:
            words = f"{size / self.sizes[-1]:.3g} × the largest ({format_bytes(size)})"
        return words

    def fitting(self, free_bytes: int) -> Largest | None:
        """The largest size of which surely no more is allocated than *free_bytes*, as far as data carry."""
        if self.model is None:
            return None
        low, high = self.smallest - 1, self.largest
        while low < high:
            middle = (low + high + 1) // 2
            estimate = self.at(middle)
            low, high = (middle, high) if estimate and estimate.high <= free_bytes else (low, middle - 1)
        return Largest(low if low >= self.smallest else 0, low == self.largest)


def batch_fit(
    recording: Recording, others: Sequence[Recording] = (), sizes: Sequence[Sequence[int]] | None = None
) -> BatchFit:
    """Over the steps of *recording* and *others*, runs of the same program.

    *sizes*: for each recording the batch size of each step, or one for all of its steps; without it the
    bytes that went into the outermost module count as size. A recording's first step is left out: the
    optimizer has no state yet.
    """
    unit = "bytes of input" if sizes is None else _SAMPLES
    runs = [recording, *others]
    told = [None] * len(runs) if sizes is None else [np.asarray(each, dtype="i8") for each in sizes]
    parts = [part for run, each in zip(runs, told, strict=True) if (part := _steps(run, each)) is not None]
    if not parts:
        return BatchFit(unit, problem="no steps, or nothing says how large their batches were")
    size = np.concatenate([part.size for part in parts])
    different = tuple(np.unique(size).tolist())
    if len(different) < 2:
        why = f"all {len(size)} steps are of one size: record some with another batch size"
        return BatchFit(unit, different, len(size), problem=why)
    process = recording.process
    alike = program(parts, Settings.from_snapshot(process.allocator, torch=process.torch))
    found = _lines(unit, parts) if alike is None else _replayed(unit, parts, alike)
    floor, phase = max(map(_outside_of_steps, runs), key=lambda each: each[0])
    return replace(found, floor_bytes=floor, floor_phase=phase)


def _outside_of_steps(recording: Recording) -> tuple[int, Phase]:
    """Return the most that was allocated outside of every step, and in which phase."""
    level, steps = timeline(recording).allocated.copy(), recording.steps
    for start, end in zip(steps.start_event.tolist(), steps.end_event.tolist(), strict=True):
        level[start + 1 : end + 1] = 0
    return int(level.max(initial=0)), place(recording, int(level.argmax()))[1] or Phase.OTHER


def _replayed(unit: str, parts: Sequence[StepSequence], programs: Programs) -> BatchFit:
    model, of = programs.likely, programs.of
    size, before, peak = (each[of] for each in _seen(parts))
    pairs = set(zip(size.tolist(), before.tolist(), strict=True))
    foreseen = {pair: model.needs(*pair).allocated for pair in pairs}
    expected = np.array([foreseen[pair] for pair in zip(size.tolist(), before.tolist(), strict=True)])
    found = _checked(unit, model, size, (peak, expected))
    if programs.low is not None and programs.high is not None:
        found = replace(found, bounds=(programs.low, programs.high))
    if programs.square_share > _STRAIGHT and not found.problem:
        share = f"{programs.square_share:.0%} of what a step allocates"
        found = replace(found, problem=f"no straight line: {share} grows with the square of the size, or may")
    return found


def _lines(unit: str, parts: Sequence[StepSequence]) -> BatchFit:
    """Where of two sizes or more a step followed one as large, these steps alone count: the steady state.
    Else the size of the step before has a slope of its own."""
    size, before, peak = _seen(parts)
    phases = [_phase_peaks(part) for part in parts]
    shared = [phase for phase in phases[0] if all(phase in each for each in phases)]
    values = np.concatenate([np.stack([each[phase] for phase in shared], axis=1) for each in phases])
    rows = np.flatnonzero(size == before)
    if len(np.unique(size[rows])) > 1:
        columns = np.stack([np.ones(len(rows)), size[rows]], axis=1)
    else:
        rows = np.arange(len(size))
        columns = np.stack([np.ones(len(size)), size, before], axis=1)
    scale = np.abs(columns).max(axis=0)
    found = np.linalg.lstsq(columns / scale, values[rows].astype(float), rcond=None)[0] / scale[:, None]
    model = Lines(np.array(shared), found[0], found[1:].sum(axis=0))
    fit = _checked(unit, model, size[rows], (peak[rows], (columns @ found).max(axis=1)))
    if len(fit.sizes) > 2 and not fit.problem:
        return fit
    curved = np.stack([np.ones(len(rows)), (size[rows] / size.max()) ** 2], axis=1)
    bent = np.linalg.lstsq(curved, values[rows].astype(float), rcond=None)[0]
    square = Lines(np.array(shared), bent[0], np.zeros(len(shared)), bent[1] / float(size.max()) ** 2)
    return replace(fit, bounds=(model, square))


def _checked(
    unit: str, model: StepProgram | Lines, size: NDArray[Any], peaks: tuple[NDArray[Any], NDArray[Any]]
) -> BatchFit:
    """With the error of what was foreseen, the second of *peaks*, against the steps seen."""
    seen, foreseen = peaks
    error = int(np.ceil(np.abs(seen - foreseen).max(initial=0)))
    highest = max(int(seen.max(initial=1)), 1)
    problem = ""
    if error > _STRAIGHT * highest:
        problem = f"no straight line: the peak of a step is {error / highest:.1%} away from what it would be"
    return BatchFit(unit, tuple(np.unique(size).tolist()), len(size), model, error, problem)


# ----------------------------------------------------------------------------------- what was there


def _steps(recording: Recording, told: NDArray[Any] | None) -> StepSequence | None:
    """Every step but the first whose size and the size before it are known; None where there are none."""
    found, n_steps = lifetimes(recording), len(recording.steps)
    if n_steps < 2:
        return None
    size = _input_bytes(recording, found) if told is None else np.broadcast_to(told, n_steps)
    keep = np.flatnonzero(size > 0)
    keep = keep[(keep > 0) & (size[keep - 1] > 0)]
    if not len(keep):
        return None
    keep = np.sort(
        np.concatenate([keep[size[keep] == each][-_MOST_STEPS:] for each in np.unique(size[keep])])
    )
    return StepSequence(recording, found, assign(recording, found).category, keep, size[keep], size[keep - 1])


def _seen(parts: Sequence[StepSequence]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Of all steps: the size, the size before, the peak of allocated bytes."""
    peaks = [step_peaks(part.recording).per_step.allocated[part.rows] for part in parts]
    size, before = ([getattr(part, name) for part in parts] for name in ("size", "before"))
    return np.concatenate(size), np.concatenate(before), np.concatenate(peaks)


def _phase_peaks(part: StepSequence) -> dict[int, NDArray[Any]]:
    """Of the phases that every one of the steps has."""
    rows = step_peaks(part.recording).per_phase
    found = {}
    for phase in np.unique(rows.phase).tolist():
        level = np.zeros(len(part.recording.steps), "i8")
        mine = rows.rows((rows.phase == phase) & (rows.step >= 0))
        level[mine.step] = mine.allocated
        if level[part.rows].all():
            found[phase] = level[part.rows]
    return found


def _input_bytes(recording: Recording, found: Allocations) -> NDArray[Any]:
    """The most that went into one forward of each step: micro-batches of one step are not summed up."""
    labels, phases = recording.labels, recording.phases
    given = labels.rows(labels.category == Category.INPUT)
    outer = phases.rows((phases.phase == Phase.FORWARD) & (phases.depth == 0) & (phases.step >= 0))
    size = np.zeros(len(recording.steps), "i8")
    for step, start, end in zip(
        outer.step.tolist(), outer.start_event.tolist(), outer.end_event.tolist(), strict=True
    ):
        here = given.rows((given.event >= start) & (given.event <= end))
        live = found.allocated_at(start) & np.isin(found.address, here.address)
        size[step] = max(size[step], int(found.size[live].sum()))
    return size


ANALYSIS = Analysis("batch_fit", "How many bytes does a step need for a batch of another size?", batch_fit)
