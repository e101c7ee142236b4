"""At which instants is one turn of the program like the next?

The ends of its steps, where it is known where they are. In a file without marks: an allocation that comes
again and again at regular distances stands for the loop.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.recording import Recording
from vramscope.model.trace import Action

_LEAST_TURNS = 6
_MOST_TURNS = 100_000
# How much the distances of turns may differ, as their standard deviation over their mean.
_MOST_IRREGULAR = 0.35


def turns(recording: Recording) -> tuple[NDArray[Any], bool]:
    """Instants, in order, and whether they are of known steps; empty where there is no loop to be seen."""
    steps, n_events = recording.steps, len(recording.trace)
    if len(steps) >= _LEAST_TURNS:
        ends = steps.end_event
        # The last step is often cut short: by the end of the program, or because it still runs.
        is_open = len(ends) > 1 and ends[-1] >= n_events and _is_short(ends)
        return np.minimum(ends[:-1] if is_open else ends, n_events), True
    return _inferred(recording), False


def _is_short(ends: NDArray[Any]) -> bool:
    lengths = np.diff(ends)
    return bool(lengths[-1] < 0.8 * np.median(lengths))


def _inferred(recording: Recording) -> NDArray[Any]:
    """The births of the stack that recurs most regularly, among those that account for most bytes."""
    allocs = np.flatnonzero(recording.trace.action == Action.ALLOC)
    stack_id = recording.trace.stack_id[allocs]
    known, group, count = np.unique(stack_id, return_inverse=True, return_counts=True)
    n_bytes = np.bincount(group.reshape(-1), weights=recording.trace.block_size[allocs])
    usual = (count >= _LEAST_TURNS) & (count <= _MOST_TURNS) & (known != 0)
    if not usual.any():
        return np.zeros(0, "i8")
    # How often a turn comes: the count that the most bytes have in common.
    counts, of = np.unique(count[usual], return_inverse=True)
    weight = np.bincount(of.reshape(-1), weights=n_bytes[usual])
    wanted = counts[int(weight.argmax())]
    candidates = known[usual & (count == wanted)]
    events = [allocs[stack_id == each] for each in candidates[:200].tolist()]
    best = min(events, key=_irregularity)
    return best if _irregularity(best) <= _MOST_IRREGULAR else np.zeros(0, "i8")


def _irregularity(events: NDArray[Any]) -> float:
    # The first turn is longer: lazy state is made in it.
    distance = np.diff(events)[1:]
    return float(distance.std() / max(distance.mean(), 1))
