"""Predicts the bytes that a step needs for a batch of another size.

Steps that do the same things in the same order are replayed with the sizes that another batch would have
(see ``step_program``), and checked against the recorded steps. If most steps differ in what they do there is
no prediction. Two sizes alone do not decide whether bytes grow linearly or quadratically (a longer sequence):
the interval covers both. Memory outside of training steps, such as evaluation, is assumed to stay the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from vramscope.allocator.settings import SMALL_LIMIT, Settings
from vramscope.analysis import asking
from vramscope.analysis.batch_fit.step_program import Needs, Programs, StepProgram, StepSequence, program
from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.step_and_phase import step_and_phase_at
from vramscope.analysis.step_peaks import step_peaks
from vramscope.analysis.timeline import timeline
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.units import format_bytes, format_count, format_share

_SAMPLES = "samples"
_BY = " × "
_CARRIES = {2: 2.0, 3: 4.0}
"""Multiple of the largest size up to which bytes are predicted, for 2 and for 3 or more different sizes."""
_STRAIGHT = 0.01
"""Steps whose peak differs from the prediction by this share are not on a line."""
_LEAST_ERROR = 0.005
"""Share of the bytes: the least error of a prediction beyond the recorded sizes."""
_MOST_STEPS = 16
"""Steps of each size that are used; more add nothing."""


class Estimate(NamedTuple):
    """The predicted peak of a step, in bytes."""

    low_bytes: int
    """Lower end of the interval of allocated bytes."""
    likely_bytes: int
    """The likely peak of allocated bytes."""
    high_bytes: int
    """Upper end of the interval of allocated bytes."""
    reserved_bytes: int | None
    """The peak of reserved bytes; None without a sure replay."""
    phase: Phase
    """Phase of the peak of allocated bytes."""
    categories: dict[str, int]
    """Bytes of ``likely_bytes`` by category, with ``rounding``; empty without a replay."""

    def fits(self, free_bytes: int) -> bool | None:
        """Return whether the step fits in *free_bytes* of the allocator; None if the interval covers both."""
        if self.low_bytes > free_bytes:
            return False
        is_surely = self.high_bytes <= free_bytes and (
            self.reserved_bytes is None or self.reserved_bytes <= free_bytes
        )
        return True if is_surely else None


class Largest(NamedTuple):
    """The largest batch size that fits."""

    size: int
    """The size; 0 if not even the smallest size fits."""
    is_limited_by_data: bool
    """Whether larger sizes may fit too, but lie beyond what the recorded steps can predict."""


@dataclass(frozen=True, slots=True)
class BatchFit:
    """A prediction of a step's peak for other batch sizes, or the reason why there is none."""

    unit: str
    """Unit of sizes: ``samples`` if sizes were given; ``bytes of input`` if the recorder measured them."""
    sizes: tuple[int, ...] = ()
    """The different recorded sizes, ascending."""
    n_steps: int = 0
    """Number of steps that the prediction rests on."""
    model: StepProgram | None = None
    """The fitted model; None if there is no prediction."""
    error_bytes: int = 0
    """The largest difference between the peak of a recorded step and its prediction."""
    problem: str = ""
    """Why there is no prediction, or why to doubt it; '' if there is nothing to doubt."""
    bounds: tuple[StepProgram, StepProgram] | None = None
    """Models of the least and greatest growth that the recorded sizes allow; None if they allow only one."""
    floor_bytes: int = 0
    """The most bytes allocated outside of training steps, which the batch size does not change."""
    floor_phase: Phase = Phase.OTHER
    """Phase in which these were allocated."""
    shapes: tuple[str, ...] = ()
    """The shape of the input of each of ``sizes``, such as ``8 × 1024``; '' where it is not known."""
    _known: dict[int, Needs] = field(default_factory=dict, repr=False, compare=False)

    @property
    def smallest(self) -> int:
        """The smallest size that is predicted: half of the smallest recorded one."""
        return max(1, self.sizes[0] // 2) if self.sizes else 0

    @property
    def largest(self) -> int:
        """The largest size that is predicted: twice the largest recorded, or four times from 3 sizes on."""
        return int(self.sizes[-1] * _CARRIES[min(len(self.sizes), 3)]) if len(self.sizes) > 1 else 0

    def at(self, size: int) -> Estimate | None:
        """Return the need of a step of *size* after steps of the same size.

        None if *size* lies outside of ``smallest`` to ``largest``, or there is no prediction.
        """
        if self.model is None or not self.smallest <= size <= self.largest:
            return None
        if size not in self._known:
            self._known[size] = self.model.needs(size)
        needs = self._known[size]
        least, most = needs.allocated_bytes, needs.allocated_bytes
        if self.bounds is not None and not self.sizes[0] <= size <= self.sizes[-1]:
            both = [bound.needs(size).allocated_bytes for bound in self.bounds]
            least, most = min(least, *both), max(most, *both)
        # Beyond the recorded sizes an error of the slope grows with the distance. Which blocks are larger
        # than requested, since their rest is too small to split, depends on their placement in segments: the
        # range has room for one more rest.
        away = max(1.0, size / self.sizes[-1], self.sizes[0] / size)
        error = max(self.error_bytes, _LEAST_ERROR * needs.allocated_bytes if away > 1 else 0)
        rest = min(SMALL_LIMIT, -(-needs.allocated_bytes // 100)) if away > 1 else 0
        margin = math.ceil(error * away) + needs.categories.get("rounding", 0) + rest
        floor, is_floor = self.floor_bytes, self.floor_bytes > needs.allocated_bytes
        is_sure = needs.reserved_bytes >= 0 and least == most and floor <= least
        return Estimate(
            max(least - margin, floor),
            max(needs.allocated_bytes, floor),
            max(most + margin, floor),
            needs.reserved_bytes if is_sure else None,
            self.floor_phase if is_floor else needs.phase,
            {} if is_floor else needs.categories,
        )

    def rows(self, most: int = 6) -> list[tuple[int, Estimate]]:
        """Return rows for a table: some recorded sizes, twice the largest, and the largest predicted."""
        if self.model is None:
            return []
        sizes = sorted({*self.sizes[-most:], 2 * self.sizes[-1], self.largest})
        return [(size, found) for size in sizes if (found := self.at(size)) is not None]

    def named(self, size: int) -> str:
        """Return *size* as a phrase in the units of the run's batches, as a shape where it is known."""
        if self.unit == _SAMPLES:
            return f"{size:,} (seen)" if size in self.sizes else f"{size:,}"
        if size in self.sizes:
            return f"{self._seen(self.sizes.index(size))} (seen)"
        # Rounded down: what is said to fit must fit.
        sides = [shape.split(_BY) for shape in self.shapes]
        varies = [at for at, each in enumerate(zip(*sides, strict=False)) if len({*each}) > 1]
        if len(varies) == 1 and len({*map(len, sides)}) == 1:
            number = int(sides[-1][varies[0]]) * size // self.sizes[-1]
            return _BY.join([*sides[-1][: varies[0]], str(number), *sides[-1][varies[0] + 1 :]])
        times = math.floor(100 * size / self.sizes[-1]) / 100
        return f"{times:g} times {self._seen(-1)}"

    def _seen(self, row: int) -> str:
        """Return a recorded size as the shape of its input, else in bytes."""
        shape = self.shapes[row] if self.shapes else ""
        return shape or f"{format_bytes(self.sizes[row])} of input"

    def fitting(self, free_bytes: int) -> Largest | None:
        """Return the largest predicted size that surely allocates at most *free_bytes*."""
        if self.model is None:
            return None
        low, high = self.smallest - 1, self.largest
        while low < high:
            middle = (low + high + 1) // 2
            estimate = self.at(middle)
            low, high = (
                (middle, high) if estimate and estimate.high_bytes <= free_bytes else (low, middle - 1)
            )
        return Largest(low if low >= self.smallest else 0, low == self.largest)


def batch_fit(
    recording: Recording, others: Sequence[Recording] = (), sizes: Sequence[Sequence[int]] | None = None
) -> BatchFit:
    """Predict the bytes that a step needs for other batch sizes.

    The first step of a recording does not count: the optimizer has no state yet.

    Parameters
    ----------
    others
        Other runs of the same program, with other batch sizes.
    sizes
        For each recording, the batch size of each of its steps, or one size for all of them. If None, the
        bytes that go into the outermost module count as size.
    """
    unit = "bytes of input" if sizes is None else _SAMPLES
    runs = [recording, *others]
    given_sizes = [None] * len(runs) if sizes is None else [np.asarray(each, dtype="i8") for each in sizes]
    parts = [
        part for run, each in zip(runs, given_sizes, strict=True) if (part := _steps(run, each)) is not None
    ]
    if not parts:
        n_steps = max(len(run.steps) for run in runs)
        few = f"the recording has {format_count(n_steps, 'step')}, and it takes two"
        unsaid = "nothing says how large the batches of two steps in a row were"
        return BatchFit(unit, problem=unsaid if n_steps > 1 else few)
    size = np.concatenate([part.size for part in parts])
    different = tuple(np.unique(size).tolist())
    if len(different) < 2:
        compared = "the step compared is" if len(size) == 1 else f"the {len(size)} steps compared are"
        why = f"{compared} of one size: record some with another batch size"
        return BatchFit(unit, different, len(size), problem=why)
    process = recording.process
    alike = program(parts, Settings.from_snapshot(process.allocator, torch=process.torch))
    if alike is None:
        why = (
            f"the {len(size)} steps compared differ in what they do: no replay says what another batch needs"
        )
        return BatchFit(unit, different, len(size), problem=why)
    found = _replayed(unit, parts, alike)
    floor, phase = max(map(_outside_of_steps, runs), key=lambda each: each[0])
    return replace(found, floor_bytes=floor, floor_phase=phase, shapes=_shapes(parts, found.sizes))


def _shapes(parts: Sequence[StepSequence], sizes: tuple[int, ...]) -> tuple[str, ...]:
    """Return the shape of the inputs of each size; '' where it is not known, or there are several."""
    seen = {pair for part in parts for pair in zip(part.size.tolist(), part.shapes, strict=False)}
    known = [[shape for size, shape in seen if size == each] for each in sizes]
    return tuple(shapes[0] if len(shapes) == 1 else "" for shapes in known)


def _outside_of_steps(recording: Recording) -> tuple[int, Phase]:
    """Return the most that was allocated outside of every step, and in which phase."""
    level, steps = timeline(recording).allocated_bytes.copy(), recording.steps
    for start, end in zip(steps.start_event.tolist(), steps.end_event.tolist(), strict=True):
        level[start + 1 : end + 1] = 0
    return int(level.max(initial=0)), step_and_phase_at(recording, int(level.argmax()))[1] or Phase.OTHER


def _replayed(unit: str, parts: Sequence[StepSequence], programs: Programs) -> BatchFit:
    """Return a prediction with its error: recorded against predicted bytes."""
    model, of = programs.likely, programs.of
    size, before, peak = (each[of] for each in _seen(parts))
    pairs = set(zip(size.tolist(), before.tolist(), strict=True))
    foreseen = {pair: model.needs(*pair).allocated_bytes for pair in pairs}
    expected = np.array([foreseen[pair] for pair in zip(size.tolist(), before.tolist(), strict=True)])
    error, highest = int(np.abs(peak - expected).max(initial=0)), max(int(peak.max(initial=1)), 1)
    problem = ""
    if error > _STRAIGHT * highest:
        away = format_share(error, highest)
        problem = f"no straight line: the peak of a step is {away} away from what it would be"
    elif programs.square_share > _STRAIGHT:
        share = f"{format_share(programs.square_share, 1, 0)} of what a step allocates"
        problem = f"no straight line: {share} grows with the square of the size, or may"
    bounds = None
    if programs.low is not None and programs.high is not None:
        bounds = programs.low, programs.high
    return BatchFit(unit, tuple(np.unique(size).tolist()), len(size), model, error, problem, bounds)


def _steps(recording: Recording, given_sizes: Array | None) -> StepSequence | None:
    """Return every step but the first whose own size and previous size are known; None if there are none."""
    found, n_steps = lifetimes(recording), len(recording.steps)
    if n_steps < 2:
        return None
    shapes: list[str] = []
    if given_sizes is None:
        size, shapes = _inputs(recording, found)
    else:
        size = np.broadcast_to(given_sizes, n_steps)
    keep = np.flatnonzero(size > 0)
    keep = keep[(keep > 0) & (size[keep - 1] > 0)]
    if not len(keep):
        return None
    keep = np.sort(
        np.concatenate([keep[size[keep] == each][-_MOST_STEPS:] for each in np.unique(size[keep])])
    )
    category = assign(recording, found).category
    of_steps = tuple(shapes[step] for step in keep.tolist()) if shapes else ()
    return StepSequence(recording, found, category, keep, size[keep], size[keep - 1], of_steps)


def _seen(parts: Sequence[StepSequence]) -> tuple[Array, Array, Array]:
    """Return size, previous size and peak of allocated bytes of every step."""
    peaks = [step_peaks(part.recording).per_step.allocated_bytes[part.rows] for part in parts]
    size, before = ([getattr(part, name) for part in parts] for name in ("size", "before"))
    return np.concatenate(size), np.concatenate(before), np.concatenate(peaks)


def _inputs(recording: Recording, found: Allocations) -> tuple[Array, list[str]]:
    """Return the most bytes that go into one forward of each step, and the shape of the largest input.

    Micro-batches are not summed up.
    """
    labels, phases = recording.labels, recording.phases
    given = labels.rows(labels.category == Category.INPUT)
    outer = phases.rows((phases.phase == Phase.FORWARD) & (phases.depth == 0) & (phases.step >= 0))
    size = np.zeros(len(recording.steps), "i8")
    shapes = [""] * len(size)
    for step, start, end in zip(
        outer.step.tolist(), outer.start_event.tolist(), outer.end_event.tolist(), strict=True
    ):
        here = given.rows((given.event >= start) & (given.event <= end))
        live = found.allocated_at(start) & np.isin(found.address, here.address)
        n_bytes = int(found.size[live].sum())
        if n_bytes > size[step]:
            largest = found.address[live][found.size[live].argmax()]
            size[step], shapes[step] = n_bytes, labels.names[here.name[here.address == largest][-1]]
    return size, shapes


ANALYSIS = asking("How many bytes does a step need for a batch of another size?", batch_fit)
