"""The lane below a timeline: phases as bands."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Phase

from .series import Spans

MAX_BANDS = 400


@dataclass(frozen=True, slots=True, eq=False)
class PhaseBands:
    """Adjacent intervals of the axis: *phase[i]* holds from *edges[i]* to *edges[i + 1]*."""

    edges: NDArray[Any]
    phase: NDArray[Any]


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
