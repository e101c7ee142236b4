"""The lane below a timeline: phases as bands, and the borders and labels of steps."""

from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Phase

from .series import Spans

MAX_BANDS, MAX_LABELS, MAX_BORDERS = 400, 12, 60
HALF_NAME = 0.025
"""Half of the width of the label ``step 1234``, as a share of the picture's width."""


@dataclass(frozen=True, slots=True, eq=False)
class PhaseBands:
    """Adjacent intervals of the axis: *phase[i]* holds from *edges[i]* to *edges[i + 1]*."""

    edges: NDArray[Any]
    phase: NDArray[Any]

    def of(self, phase: Phase) -> NDArray[Any]:
        """Return start, end, start, end, … of the intervals of one phase."""
        mine = np.flatnonzero(self.phase == phase)
        return np.stack([self.edges[mine], self.edges[mine + 1]], axis=1).ravel()


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


def innermost(phases: Spans, at: NDArray[Any]) -> NDArray[Any]:
    """Return the innermost phase at each position; OTHER where none. One search per depth of nesting."""
    found = np.full(len(at), int(Phase.OTHER))
    for depth in np.unique(phases.depth):
        mine = np.flatnonzero(phases.depth == depth)
        row = np.searchsorted(phases.start[mine], at, "right") - 1
        covered = (row >= 0) & (at < phases.end[mine[row]])
        found[covered] = phases.label[mine[row[covered]]]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class StepLabels:
    """Borders of steps, and positions and numbers of their labels."""

    borders: NDArray[Any]
    centers: NDArray[Any]
    numbers: list[int]


def step_labels(steps: Spans, start: float, end: float) -> StepLabels:
    """Return up to MAX_LABELS labels of even numbers; borders only up to MAX_BORDERS."""
    near = np.flatnonzero((steps.end > start) & (steps.start < end))
    borders = np.union1d(steps.start[near], steps.end[near])
    borders = borders[(borders > start) & (borders < end)]
    centers = (np.maximum(steps.start[near], start) + np.minimum(steps.end[near], end)) / 2
    named = [i for i in _spread(steps.label[near], centers, end - start) if _is_clear(centers[i], start, end)]
    few = borders if len(borders) <= MAX_BORDERS else borders[:0]
    return StepLabels(few, centers[named], [int(n) for n in steps.label[near[named]]])


def _is_clear(center: float, start: float, end: float) -> bool:
    """Return whether the edge of the picture does not cut a label off there."""
    margin = HALF_NAME * (end - start)
    return start + margin <= center <= end - margin


def _spread(numbers: NDArray[Any], centers: NDArray[Any], width: float) -> list[int]:
    """Return the indices of steps to name: multiples of 1, 2, 5, 10, … whose names do not touch.

    The typical distance decides which: after a pause or beside short steps a name is left out.
    """
    room = width / (MAX_LABELS + 1)
    for stride in (factor * 10**power for power in count() for factor in (1, 2, 5)):
        rows = np.flatnonzero(numbers % stride == 0)
        if len(rows) < 2 or np.median(np.diff(centers[rows])) >= room:
            break
    kept: list[int] = []
    for index in rows.tolist():
        if not kept or centers[index] - centers[kept[-1]] >= room:
            kept.append(index)
    return kept
