"""How unevenly the ranks of a group need memory, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.rank_comparison.members import Member


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The step in which one rank exceeds its group most, and the usual excess."""

    step: int
    """The number of the step, or of the first of ``n_steps`` neighboring ones."""
    n_steps: int
    rank: int
    device: int
    allocated_bytes: int
    """The peak of that rank in that step."""
    median_bytes: int
    """The median of its group in that step."""
    usual_fraction: float
    """The median over steps of the largest excess over the group's median, as a fraction of that median."""
    n_compared: int
    """The number of steps, or of groups of steps, that were compared."""


def imbalance_of(members: Sequence[Member], of: NDArray[Any]) -> Imbalance | None:
    """The imbalance within groups; None where fewer than two members have a step in common."""
    size = max((int(each.summary.steps.n_steps.max(initial=1)) for each in members), default=1)
    found: list[Imbalance] = []
    for group in np.unique(of).tolist():
        rows = np.flatnonzero(of == group).tolist()
        best = _of_group([members[row] for row in rows], size)
        if best is not None:
            found.append(best)
    return max(found, key=lambda each: each.allocated_bytes - each.median_bytes, default=None)


def _of_group(members: Sequence[Member], size: int) -> Imbalance | None:
    steps = [each.summary.steps.grouped(size) for each in members]
    numbers = np.unique(np.concatenate([rows.step for rows in steps] or [np.zeros(0, "i8")]))
    if len(members) < 2 or not len(numbers):
        return None
    peaks = np.full((len(members), len(numbers)), np.nan)
    for row, known in enumerate(steps):
        peaks[row, np.searchsorted(numbers, known.step)] = np.where(
            known.allocated < 0, np.nan, known.allocated
        )
    enough = (~np.isnan(peaks)).sum(axis=0) >= 2
    peaks, numbers = peaks[:, enough], numbers[enough]
    if not len(numbers):
        return None
    # NumPy's median that skips unknown values takes ten times as long.
    middle = np.nanmedian(peaks, axis=0) if np.isnan(peaks).any() else np.median(peaks, axis=0)
    excess = np.nanmax(peaks, axis=0) - middle
    at = int(excess.argmax())
    member = int(np.nanargmax(peaks[:, at]))
    return Imbalance(
        step=int(numbers[at]),
        n_steps=size,
        rank=members[member].rank,
        device=members[member].summary.device.index,
        allocated_bytes=int(peaks[member, at]),
        median_bytes=int(middle[at]),
        usual_fraction=float(np.median(excess / np.maximum(middle, 1))),
        n_compared=len(numbers),
    )
