"""How many bytes does a step need for a batch of another size?

Steps that do the same things in the same order are replayed with the sizes that another batch would have, see
``_step_program``: exact but for what is not a straight line, and checked against the steps seen. Where steps
differ in what they do, one straight line goes through the peaks of each phase.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import Settings
from vramscope.analysis import Analysis
from vramscope.analysis._step_program import Needs, StepProgram, Steps, program
from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.step_peaks import step_peaks
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

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

    def needs(self, size: int) -> Needs:
        """The highest of them."""
        level = self.fixed + self.per_unit * size
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
        # Beyond the sizes seen an error of the slope grows with the distance; and which blocks are handed out
        # larger than asked for, since their rest was too small, depends on where things come to lie.
        away = max(1.0, size / self.sizes[-1], self.sizes[0] / size)
        error = max(self.error_bytes, _LEAST_ERROR * needs.allocated if away > 1 else 0)
        margin = round(error * away) + needs.categories.get("rounding", 0)
        return Estimate(
            needs.allocated - margin,
            needs.allocated,
            needs.allocated + margin,
            needs.reserved if needs.reserved >= 0 else None,
            needs.phase,
            needs.categories,
        )

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
    unit = "bytes of input" if sizes is None else "samples"
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
    return _lines(unit, parts) if alike is None else _replayed(unit, parts, *alike)


def _replayed(unit: str, parts: Sequence[Steps], model: StepProgram, of: NDArray[Any]) -> BatchFit:
    size, before, peak = (each[of] for each in _seen(parts))
    pairs = set(zip(size.tolist(), before.tolist(), strict=True))
    foreseen = {pair: model.needs(*pair).allocated for pair in pairs}
    expected = np.array([foreseen[pair] for pair in zip(size.tolist(), before.tolist(), strict=True)])
    return _checked(unit, model, size, (peak, expected))


def _lines(unit: str, parts: Sequence[Steps]) -> BatchFit:
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
    return _checked(unit, model, size[rows], (peak[rows], (columns @ found).max(axis=1)))


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


def _steps(recording: Recording, told: NDArray[Any] | None) -> Steps | None:
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
    return Steps(recording, found, assign(recording, found).category, keep, size[keep], size[keep - 1])


def _seen(parts: Sequence[Steps]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Of all steps: the size, the size before, the peak of allocated bytes."""
    peaks = [step_peaks(part.recording).per_step.allocated[part.rows] for part in parts]
    size, before = ([getattr(part, name) for part in parts] for name in ("size", "before"))
    return np.concatenate(size), np.concatenate(before), np.concatenate(peaks)


def _phase_peaks(part: Steps) -> dict[int, NDArray[Any]]:
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
