"""What every strategy looks at, and what it says: allocations of other sizes, bytes on top."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.categories import Assigned, assign
from vramscope.analysis.categories.by_lifetime import (
    Lives,
    lives_of,
    padded,
)
from vramscope.analysis.lifetimes import BEFORE, Allocations, lifetimes
from vramscope.analysis.step_and_phase import phases_of
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

USUAL_ELEMENT = 4
"""Bytes: float32, where nothing is known."""


class StrategyInput(NamedTuple):
    """At one recording, once for all strategies."""

    recording: Recording
    found: Allocations
    assigned: Assigned
    lives: Lives
    category: NDArray[Any]
    born_in: NDArray[Any]
    """Phase of each allocation's birth; OTHER where it pre-dates the trace."""
    phase: NDArray[Any]
    """At each instant: that of the event that led to it."""
    level: NDArray[Any]
    """Allocated bytes at each instant, as it is."""
    n_ranks: int

    @property
    def element(self) -> NDArray[Any]:
        """Bytes of each allocation's numbers; 0 where its label does not say."""
        element: NDArray[Any] = padded(self.recording.labels.element_bytes)[self.assigned.label]
        return element

    @property
    def made_by(self) -> NDArray[Any]:
        """Of each allocation the name of the phase that it was born in: an optimizer's class."""
        phases = self.lives.phases
        names = np.array([*phases.names, ""])
        made_by: NDArray[Any] = names[np.append(phases.name, len(names) - 1)[self.lives.born_in]]
        return made_by

    def in_optimizer(self) -> NDArray[Any]:
        """What an optimizer's step allocates and frees again."""
        mine: NDArray[Any] = (self.born_in == Phase.OPTIMIZER) & (self.category == Category.TEMPORARY)
        return mine


class Trial(NamedTuple):
    """What would be different."""

    name: str
    factor: NDArray[Any]
    """Of each allocation."""
    extra: NDArray[Any] | int
    """Bytes more at each instant."""
    words: tuple[str, str, str]
    """How, cost, basis."""
    effort: int
    extra_of: Category = Category.ACTIVATION
    """What ``extra`` is for."""
    least: "SizeChange | None" = None
    """What it would be if every assumption held in its favor; None where the change itself is sure."""
    most: "SizeChange | None" = None
    """What it would be if none did."""
    doubt: float = 0.005
    """Share of the peak by which even a sure change may be off: rounding to blocks, places of blocks."""
    is_surely_less: bool = False
    """Whether the peak falls in any case, though perhaps by less."""
    to_do: str = ""
    """How to find out where the recording does not decide."""


class SizeChange(NamedTuple):
    """Sizes of allocations, and bytes on top."""

    factor: NDArray[Any]
    extra: NDArray[Any] | int = 0


def prepare(recording: Recording, n_ranks: int) -> StrategyInput:
    """Everything that several strategies need."""
    found, n_events = lifetimes(recording), len(recording.trace)
    row = phases_of(recording.phases, n_events)
    by_event = np.append(recording.phases.phase, Phase.OTHER)[row]
    born_in = np.where(
        found.alloc_event >= 0, np.append(by_event, Phase.OTHER)[found.alloc_event], Phase.OTHER
    )
    phase = np.concatenate([[Phase.OTHER], by_event])
    assigned, lives = assign(recording, found), lives_of(recording, found)
    level = summed(found, found.block_size, n_events).astype("i8")
    return StrategyInput(recording, found, assigned, lives, assigned.category, born_in, phase, level, n_ranks)


def summed(found: Allocations, size: NDArray[Any], n_events: int) -> NDArray[Any]:
    """Allocated bytes at each instant, if the allocations had these sizes."""
    change = np.zeros(n_events + 1)
    is_born, is_freed = found.free_event != BEFORE, found.free_event >= 0
    np.add.at(change, found.alloc_event[is_born] + 1, size[is_born])
    np.add.at(change, found.free_event[is_freed] + 1, -size[is_freed])
    level: NDArray[Any] = np.cumsum(change)
    return level


def level_with(run: StrategyInput, factor: NDArray[Any], extra: NDArray[Any] | int = 0) -> NDArray[Any]:
    """Allocated bytes at each instant, if each allocation had *factor* times its size."""
    level: NDArray[Any] = summed(run.found, factor * run.found.block_size, len(run.phase) - 1) + extra
    return level


def scaled(run: StrategyInput, *scales: tuple[NDArray[Any], NDArray[Any] | float]) -> NDArray[Any]:
    """A factor for each allocation: 1 but for the rows given; a scale is one, or one for each allocation."""
    factor = np.ones(len(run.found))
    for rows, scale in scales:
        factor[rows] *= np.broadcast_to(scale, factor.shape)[rows]
    return factor
