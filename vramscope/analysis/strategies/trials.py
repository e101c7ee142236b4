"""The input of every strategy, and the trial that it returns: other sizes of allocations, extra bytes."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis.categories import Assigned, assign, undivided
from vramscope.analysis.categories.by_lifetime import Lives, lives_of, padded
from vramscope.analysis.lifetimes import Allocations, lifetimes, summed
from vramscope.analysis.strategies.gradients import of_parameters
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.package_data import rows
from vramscope.steps.innermost import phases_of

_USUAL_ELEMENT = 4
TRAINS = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.RECOMPUTE)
"""Phases of a batch that trains."""


class StrategyInput(NamedTuple):
    """One recording, prepared once for all strategies."""

    recording: Recording
    found: Allocations
    assigned: Assigned
    lives: Lives
    category: Array
    born_in: Array
    """Phase of each allocation's birth; OTHER where it pre-dates the trace."""
    phase: Array
    """Phase at each instant: that of the event before it."""
    level_bytes: Array
    """Allocated bytes at each instant, as recorded."""
    n_ranks: int
    """Number of GPUs that sharding distributes over."""

    @property
    def element_bytes(self) -> Array:
        """Bytes per element of each allocation; those of float32 where its label does not say."""
        said = padded(self.recording.labels.element_bytes)[self.assigned.label]
        return np.where(said > 0, said, _USUAL_ELEMENT)

    @property
    def made_by(self) -> Array:
        """Name of the phase in which each allocation was born, such as an optimizer's class."""
        phases = self.lives.phases
        names = np.array([*phases.names, ""])
        return names[np.append(phases.name, len(names) - 1)[self.lives.born_in]]

    def in_optimizer(self) -> Array:
        """Return which allocations are temporaries of an optimizer's step."""
        return (self.born_in == Phase.OPTIMIZER) & (self.category == Category.TEMPORARY)


_IF_IT_TRAINS, _ELSE = " (if it trains)", "; if no backward is to come, torch.no_grad() instead"


class StrategyTrial(NamedTuple):
    """What one strategy would change about the allocations of a run."""

    kind: str
    """Its row in ``trials.tsv``."""
    factor: Array
    """Factor on the size of each allocation."""
    extra_bytes: Array | int = 0
    """Additional bytes at each instant."""
    figures: Mapping[str, Any] = MappingProxyType({})
    """What the words name."""
    extra_of: Category = Category.ACTIVATION
    """Category of ``extra_bytes``."""
    least: "SizeChange | None" = None
    """The change if every assumption held in the strategy's favor; None if the change itself is sure."""
    most: "SizeChange | None" = None
    """The change if no assumption held in its favor."""
    saved_bytes: int | None = None
    """What the peak falls by where that is known better than by these sizes."""
    is_surely_less: bool = False
    """Whether the peak falls in any case, though perhaps by less."""
    needs_backward: bool = False
    """Whether it helps only if a backward comes that the recording does not reach."""

    @property
    def effort(self) -> int:
        """Effort as in ``Strategy.effort``."""
        return int(_words()[self.kind][0])

    @property
    def words(self) -> tuple[str, ...]:
        """Texts of ``Strategy.name``, ``how``, ``cost`` and ``basis``."""
        name, how, *rest = (text.format(**self.figures) for text in _words()[self.kind][1:])
        return (name + _IF_IT_TRAINS, how + _ELSE, *rest) if self.needs_backward else (name, how, *rest)


@cache
def _words() -> Mapping[str, list[str]]:
    return {kind: words for kind, *words in rows(__file__, "trials.tsv")}


class SizeChange(NamedTuple):
    """A factor on the size of each allocation, and additional bytes at each instant."""

    factor: Array
    extra_bytes: Array | int = 0


def prepare(recording: Recording, n_ranks: int) -> StrategyInput:
    """Return everything that several strategies need."""
    found, n_events = lifetimes(recording), len(recording.trace)
    by_event = np.append(recording.phases.phase, Phase.OTHER)[phases_of(recording.phases, n_events)]
    phase = np.concatenate([[Phase.OTHER], by_event])
    born_in = phase[np.maximum(found.alloc_event, -1) + 1]
    assigned, lives = undivided(assign(recording, found)), lives_of(recording, found)
    of_batch = (assigned.category == Category.GRADIENT) & ~of_parameters(assigned, lives)
    category = np.where(of_batch, Category.ACTIVATION, assigned.category)
    level = summed(found, found.block_size, n_events).astype("i8")
    return StrategyInput(recording, found, assigned, lives, category, born_in, phase, level, n_ranks)


def starts_training(run: StrategyInput) -> int:
    """Return the instant at which the first forward with gradients begins, else that of the end."""
    starts = np.flatnonzero(np.isin(run.phase, TRAINS))
    return int(starts[0]) - 1 if len(starts) else len(run.phase)


def level_with(run: StrategyInput, factor: Array, extra: Array | int = 0) -> Array:
    """Return the allocated bytes at each instant, if each allocation had *factor* times its size."""
    return level_of(run, factor * run.found.block_size, extra)


def level_of(run: StrategyInput, size: Array, extra: Array | int = 0) -> Array:
    """Return the allocated bytes at each instant, if the allocations had these sizes, and *extra* ones."""
    return summed(run.found, size, len(run.phase) - 1) + extra


def scaled(run: StrategyInput, *scales: tuple[Array, Array | float]) -> Array:
    """Return a factor for each allocation: 1, except in the given rows.

    A scale is one number, or one number for each allocation.
    """
    factor = np.ones(len(run.found))
    for chosen, scale in scales:
        factor[chosen] *= np.broadcast_to(scale, factor.shape)[chosen]
    return factor
