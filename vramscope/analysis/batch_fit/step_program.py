"""A training step as a program: what it allocates and frees, in order, for a batch of any size.

Steps that do the same things in the same order differ only in the sizes of what they allocate. Each request
is constant, or in proportion to the size, or to its square (attention written out, when sequences get
longer). What such a step needs for another size is then not fitted but replayed: its requests go through
the model of the caching allocator, which rounds, splits and reserves as torch does. Two sizes always lie on
a line: a request that is in proportion to neither has a lower and an upper program.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from vramscope.allocator.settings import Settings
from vramscope.allocator.simulation import CachingAllocator
from vramscope.analysis.lifetimes import Allocations
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array, EqualByValue, sums_of
from vramscope.model.trace import Action
from vramscope.steps.innermost import phases_of

_MALLOC = -1
_FREE_OLDER = -2
"""A free of a block that is older than the step before."""


class StepSequence(NamedTuple):
    """The steps of one recording that a prediction uses."""

    recording: Recording
    found: Allocations
    category: Array
    """Category of each allocation."""
    rows: Array
    """Rows of ``Recording.steps``."""
    size: Array
    """Batch size of each step."""
    before: Array
    """Batch size of the step before each."""
    shapes: tuple[str, ...] = ()
    """Shape of the input of each step, such as ``8 × 1024``; empty where sizes were given."""


class Needs(NamedTuple):
    """The needs of a step at its peak, in bytes."""

    allocated_bytes: int
    """The most that is allocated in the step."""
    reserved_bytes: int
    """The most that is reserved in the step, perhaps at another moment; −1 if not known."""
    phase: Phase
    """Phase of the peak of allocated bytes."""
    categories: dict[str, int]
    """Allocated bytes by category."""


class _Ops(NamedTuple):
    """The requests and frees of one step."""

    does: Array
    """For each event: −1 a request; 2 k the free of the step's k-th request, 2 k + 1 of the k-th request of
    the step before; −2 a free of something older."""
    made: Array
    """Rows of ``Allocations`` that the step allocates."""
    events: Array
    """Event of each op."""


@dataclass(frozen=True, slots=True)
class StepProgram(EqualByValue):
    """The requests and frees that every step makes, with sizes that depend on the batch size."""

    settings: Settings
    standing: Array
    """Size, stream, pool and category of the blocks that live throughout, shape (n, 4)."""
    does: Array
    """Requests and frees, coded as in ``_Ops.does``."""
    phase: Array
    """Phase of each of these events."""
    growth: "SizeGrowth"
    """Bytes of each request of a step, as a function of the batch size."""
    place: Array
    """Stream, pool and category of each request, shape (n, 3)."""

    def needs(self, size: int, before: int | None = None) -> Needs:
        """Replay a step of *size* after two steps of size *before*, or of *size* if not given."""
        before = before or size
        allocator = CachingAllocator(self.settings)
        for n_bytes, stream, pool, _ in self.standing.tolist():
            allocator.malloc(n_bytes, stream, pool)
        left: list[int] = [0] * len(self.place)
        for _ in range(2):
            left = self._played(allocator, before, left)[0]
        _, allocated, reserved = self._played(allocator, size, left)
        at = int(np.argmax(allocated))
        phase = Phase(int(self.phase[at - 1])) if at else Phase.OTHER
        return Needs(allocated[at], reserved, phase, self._categories(at, size, before, allocated[at]))

    def _played(
        self, allocator: CachingAllocator, size: int, left: list[int]
    ) -> tuple[list[int], list[int], int]:
        """Replay one step.

        *left* are the addresses of the blocks of the step before, 0 for freed ones. Returns the addresses of
        this step's blocks, the allocated bytes before it and after each event, and the most reserved bytes.
        """
        sizes, places, left = self.growth.at(size).tolist(), self.place.tolist(), list(left)
        made: list[int] = []
        allocated, reserved = [allocator.allocated_bytes], allocator.reserved_bytes
        for op in self.does.tolist():
            if op == _MALLOC:
                stream, pool, _ = places[len(made)]
                made.append(allocator.malloc(sizes[len(made)], stream, pool))
            elif op >= 0:
                number, is_left = divmod(op, 2)
                own = left if is_left else made
                allocator.free(own[number])
                own[number] = 0
            allocated.append(allocator.allocated_bytes)
            reserved = max(reserved, allocator.reserved_bytes)
        return made, allocated, reserved

    def _categories(self, at: int, size: int, before: int, allocated: int) -> dict[str, int]:
        """Return the bytes by category that are live after the first *at* events of a step."""
        done = self.does[:at]
        n_made = int((done == _MALLOC).sum())
        gone = done[done >= 0]
        live = np.setdiff1d(np.arange(n_made), gone[gone % 2 == 0] // 2)
        outlives = np.setdiff1d(
            np.arange(len(self.place)), self.does[(self.does >= 0) & (self.does % 2 == 0)] // 2
        )
        left = np.setdiff1d(outlives, gone[gone % 2 == 1] // 2)
        category = np.concatenate([self.standing[:, 3], self.place[live, 2], self.place[left, 2]])
        sizes = self.standing[:, 0], self.growth.at(size)[live], self.growth.at(before)[left]
        sums = sums_of(category, np.concatenate(sizes), len(Category))
        order = np.argsort(-sums, kind="stable").tolist()
        found = {Category(i).name.lower(): int(sums[i]) for i in order if sums[i]}
        return found | {"rounding": allocated - int(sums.sum())}


class Programs(NamedTuple):
    """One step for other sizes: the likely one, and its bounds if two sizes leave the growth open."""

    likely: StepProgram
    low: StepProgram | None
    high: StepProgram | None
    of: Array
    """Indices of the steps that make these requests."""
    square_share: float
    """Share of the largest step's bytes that grow, or may grow, quadratically with the size."""


def program(parts: Sequence[StepSequence], settings: Settings) -> Programs | None:
    """Return the program that most of the steps follow; None if these have only one size."""
    ops = [[_ops(part, row) for row in range(len(part.rows))] for part in parts]
    keys = [_key(each.does) for own in ops for each in own]
    common = Counter(keys).most_common(1)[0][0]
    of = np.flatnonzero([key == common for key in keys])
    size = np.concatenate([part.size for part in parts])[of]
    if len(np.unique(size)) < 2 or 2 * len(of) < len(keys):
        return None
    flat = [(part, row, each) for part, own in zip(parts, ops, strict=True) for row, each in enumerate(own)]
    alike = [flat[i] for i in of.tolist()]
    requested = np.stack([part.found.size[each.made] for part, _, each in alike])
    likely, low, high = grown(size, requested)
    often = Counter(each.does.tobytes() for *_, each in alike)
    part, row, last = max(reversed(alike), key=lambda each: often[each[2].does.tobytes()])
    found = part.found
    place = np.stack([found.stream[last.made], found.pool[last.made], part.category[last.made]], axis=1)
    standing = _standing(part, row)
    found_program = StepProgram(
        settings, standing, last.does, _phases(part, last), likely, place.astype("i8")
    )
    is_open = not np.array_equal(low.at(2 * int(size.max())), high.at(2 * int(size.max())))
    bounds = [replace(found_program, growth=each) if is_open else None for each in (low, high)]
    largest = likely.at(int(size.max()))
    curved = largest[(likely.bytes_per_square > 0) | (high.bytes_per_square > 0)].sum()
    share = float(curved / max(int(largest.sum()), 1))
    return Programs(found_program, bounds[0], bounds[1], of, share)


class SizeGrowth(NamedTuple):
    """Bytes of values as a function of the batch size: a constant, a linear and a quadratic part."""

    fixed_bytes: Array
    bytes_per_unit: Array
    bytes_per_square: Array

    def at(self, size: int) -> Array:
        """Return whole bytes of each value, at least 1."""
        return np.maximum(np.rint(self.foreseen(float(size))), 1).astype("i8")

    def foreseen(self, size: float) -> Array:
        """Return the bytes of each value as they follow from *size*."""
        return self.fixed_bytes + self.bytes_per_unit * size + self.bytes_per_square * (size * size)


_NEAR = 0.002
"""Relative difference below which two ratios are equal: rounding to elements moves a ratio by less."""


def grown(size: Array, values: Array) -> tuple[SizeGrowth, SizeGrowth, SizeGrowth]:
    """Return how each column of *values* grows with *size*: the likely, the least and the most growth."""
    none = np.zeros(values.shape[1])
    line = SizeGrowth(*_straight(size, values), none)
    sizes = np.unique(size).astype(float)
    level = np.stack([values[size == each].mean(axis=0) for each in sizes.tolist()]).astype(float)
    highest = np.maximum(np.abs(level).max(axis=0), 1.0)
    square = SizeGrowth(none, none, (level / sizes[:, None] ** 2).mean(axis=0))
    is_line = _is_near(line, sizes, level, highest)
    if len(sizes) == 2:
        # Any two points lie on a line: only a constant and a proportional growth are sure.
        is_line &= (np.abs(line.fixed_bytes) <= _NEAR * highest) | (
            np.abs(level[1] - level[0]) <= _NEAR * highest
        )
    is_square = ~is_line & _is_near(square, sizes, level, highest)
    is_open = ~is_line & ~is_square
    columns = np.stack([np.ones(len(sizes)), (sizes / sizes[-1]) ** 2], axis=1)
    bent = np.linalg.lstsq(columns, level, rcond=None)[0]
    curve = SizeGrowth(bent[0], none, bent[1] / sizes[-1] ** 2)
    steep = is_open & (line.fixed_bytes < -_NEAR * highest)  # grows faster than a line through zero
    likely = _mixed(line, (is_square, square), (steep, curve))
    low = _mixed(line, (is_square, square))
    high = _mixed(line, (is_square, square), (is_open & (line.bytes_per_unit > 0), curve))
    return likely, low, high


def _is_near(growth: SizeGrowth, sizes: Array, level: Array, highest: Array) -> Array:
    foreseen = np.stack([growth.foreseen(size) for size in sizes.tolist()])
    return np.abs(foreseen - level).max(axis=0) <= np.maximum(_NEAR * highest, 512)


def _mixed(base: SizeGrowth, *others: tuple[Array, SizeGrowth]) -> SizeGrowth:
    parts = [part.copy() for part in base]
    for rows, other in others:
        for part, values in zip(parts, other, strict=True):
            part[rows] = values[rows]
    return SizeGrowth(*parts)


def _straight(size: Array, values: Array) -> tuple[Array, Array]:
    """Return constant and slope of each column of *values*, by least squares."""
    columns = np.stack([np.ones(len(size)), size / size.max()], axis=1)
    fixed, slope = np.linalg.lstsq(columns, values.astype(float), rcond=None)[0]
    return fixed, slope / size.max()


def _ops(part: StepSequence, row: int) -> _Ops:
    start, end = _span(part, row)
    older = part.recording.steps.start_event[max(part.rows[row] - 1, 0)]
    action = part.recording.trace.action[start:end]
    events = start + np.flatnonzero((action == Action.ALLOC) | (action == Action.FREE_REQUESTED))
    does = np.full(end - start, _FREE_OLDER)
    born, died = part.found.alloc_event, part.found.free_event
    made, of_before = (
        _without_repeats(part.found, _between(born, *span)) for span in ((start, end), (older, start))
    )
    repeats = np.setdiff1d(_between(born, start, end), made)
    events = np.setdiff1d(events, np.concatenate([born[repeats], died[repeats]]))
    does[born[made] - start] = _MALLOC
    for rows, is_left in ((made, 0), (of_before, 1)):
        within = (died[rows] >= start) & (died[rows] < end)
        does[died[rows][within] - start] = 2 * np.flatnonzero(within) + is_left
    return _Ops(does[events - start], made, events)


def _key(does: Array) -> bytes:
    """Return what a step does, whatever the step before made beside.

    The blocks of the step before are numbered among those that this one frees: with torch 2.11 the first
    step makes cuBLAS's workspace, and the second one frees block 22 where later ones free block 21.
    """
    key, is_left = does.copy(), (does >= 0) & (does % 2 == 1)
    key[is_left] = 2 * np.unique(does[is_left], return_inverse=True)[1] + 1
    return key.tobytes()


def _between(born: Array, start: int, end: int) -> Array:
    """Return the rows born in [start, end): allocations are in order of their births."""
    return np.arange(np.searchsorted(born, start), np.searchsorted(born, end))


def _without_repeats(found: Allocations, rows: Array) -> Array:
    """Leave out a block that is freed at once and is made as the one before it was, which was freed at once.

    A loop over the samples of a batch does so, with the workspace of each product; levels and places are
    those of its first turn.
    """
    born, died = found.alloc_event[rows], found.free_event[rows]
    is_brief = died == born + 1
    is_same = np.zeros(len(rows), "?")
    is_same[1:] = is_brief[1:] & is_brief[:-1] & (born[1:] <= died[:-1] + 2)  # its FREE_COMPLETED between
    for column in (found.size, found.stream, found.pool):
        is_same[1:] &= column[rows][1:] == column[rows][:-1]
    return rows[~is_same]


def _span(part: StepSequence, row: int) -> tuple[int, int]:
    steps, step = part.recording.steps, part.rows[row]
    return int(steps.start_event[step]), int(min(steps.end_event[step], len(part.recording.trace)))


def _standing(part: StepSequence, row: int) -> Array:
    """Return the blocks that are live when the step begins, without those of the step before."""
    start, found = _span(part, row)[0], part.found
    older = part.recording.steps.start_event[max(part.rows[row] - 1, 0)]
    live = np.flatnonzero(found.allocated_at(start) & (found.alloc_event < older))
    columns = (found.size[live], found.stream[live], found.pool[live], part.category[live])
    return np.stack(columns, axis=1).astype("i8")


def _phases(part: StepSequence, ops: _Ops) -> Array:
    phases = part.recording.phases
    return np.append(phases.phase, Phase.OTHER)[phases_of(phases, len(part.recording.trace))[ops.events]]
