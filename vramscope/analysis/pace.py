"""How far a run is, and how fast its last steps were."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Steps
from vramscope.model.rank_summary import StepRows

_LATEST = 20
"""Steps whose mean duration is the pace: enough to be steady, few enough to follow a change."""


class StepPace(NamedTuple):
    """The last step of a run, and its pace."""

    step: int
    """The number of the last step that began."""
    steps_per_s: float | None
    """Steps per second over the last 20; None where fewer than two have a time."""


def pace(steps: Steps) -> StepPace | None:
    """Return how far a run is; None where it has no steps.

    A first step compiles and loads libraries, so it counts only beside one other.
    """
    if not len(steps):
        return None
    began_ns = steps.start_ns[len(steps) > 2 :][-_LATEST:]
    return StepPace(int(steps.index[-1]), _per_s(len(began_ns) - 1, began_ns))


def pace_of_rows(rows: StepRows) -> StepPace | None:
    """Return the same from a summary, whose rows are groups of steps in a long run."""
    if not len(rows):
        return None
    latest = rows.rows(slice(max(len(rows) - _LATEST, len(rows) > 2), None))
    last = int(latest.step[-1] + latest.n_steps[-1] - 1)
    return StepPace(last, _per_s(int(latest.step[-1] - latest.step[0]), latest.start_ns))


def _per_s(n_steps: int, began_ns: NDArray[np.int64]) -> float | None:
    """Return the pace of *n_steps*, the first of which began at the first time; None without times."""
    span_ns = int(began_ns[-1] - began_ns[0]) if int(began_ns[0]) > 0 else 0
    return n_steps * 1e9 / span_ns if span_ns > 0 else None


def left_s(far: StepPace, total_steps: int) -> float | None:
    """Return the seconds until *total_steps* have been made at the pace of the last ones.

    None where the total or the pace is unknown, and where the run has made more steps than it planned. The
    step that has begun counts as one to make.
    """
    to_make = total_steps - far.step
    return to_make / far.steps_per_s if far.steps_per_s and to_make > 0 else None
