"""Finds the evaluations between steps: their forwards, and the code around these.

What an evaluation does between its forwards has no phase: metrics, results that are joined. It lies outside
of every step, from the first forward without gradients to the next step or to other work.
"""

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Phase, Phases, Steps

_OF_EVALUATIONS = (Phase.EVAL, Phase.DATA, Phase.USER, Phase.OTHER)


def evaluations(steps: Steps, phases: Phases, n_events: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first event of each evaluation outside of steps, and the event after its last."""
    begins = np.unique(phases.start_event[(phases.phase == Phase.EVAL) & (phases.step < 0)])
    others = phases.start_event[~np.isin(phases.phase, _OF_EVALUATIONS)]
    ends = np.unique(np.concatenate([others, steps.start_event, [n_events]]))
    end = ends[np.minimum(np.searchsorted(ends, begins, side="right"), len(ends) - 1)]
    last, first = np.unique(end, return_index=True)
    return begins[first], last


def is_in_evaluation(steps: Steps, phases: Phases, event: int) -> bool:
    """Whether an event belongs to an evaluation outside of steps."""
    first, end = evaluations(steps, phases, event + 1)
    return bool(((first <= event) & (event < end)).any())
