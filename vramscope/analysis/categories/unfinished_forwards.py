"""Finds the intervals of forwards that never reached their backward.

A program that runs out of memory in its first forward is the most common failure. What that forward held
was meant for the missing backward, so it counts as activations.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import MarkKind, Phase, Phases
from vramscope.model.recording import Recording

_FORWARD = (Phase.FORWARD, Phase.LOSS)
_WORK = (*_FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.RECOMPUTE, Phase.EVAL, Phase.DATA)


@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """One row per interval of forwards that ended early, ordered by its end."""

    start: NDArray[Any]
    """The event after the last completed backward or optimizer step."""
    last_forward: NDArray[Any]
    """The event at which the last forward of the interval begins."""
    end: NDArray[Any]
    """The instant of the failure, or the number of events where the forward still runs."""


def unfinished_forwards(recording: Recording, phases: Phases, is_closed: NDArray[Any]) -> Unfinished:
    """Find the forwards that ran out of memory, and the forward that runs when the trace ends.

    Marks say when memory ran out; the simulated device marks that too, but its program goes on. *phases* are
    without those that the user named, and *is_closed* says which of them ended.
    """
    marks = recording.marks
    failed = marks.event[marks.kind == MarkKind.OOM] if recording.source != "simulated" else []
    is_open = ~is_closed.astype(bool) & np.isin(phases.phase, _FORWARD)
    ends = {*np.asarray(failed).tolist(), *([len(recording.trace)] if is_open.any() else [])}
    work = phases.rows(np.isin(phases.phase, _WORK))
    found = [stretch for end in sorted(ends) if (stretch := _stretch(work, end)) is not None]
    columns = np.array(found, dtype="i8").reshape(-1, 3)
    return Unfinished(*columns.T)


def _stretch(work: Phases, end: int) -> tuple[int, int, int] | None:
    """Start, last forward and end; None where the last phase before *end* is no forward."""
    begun = np.flatnonzero(work.start_event <= end)
    if not len(begun) or work.phase[begun[-1]] not in _FORWARD:
        return None
    is_complete = np.isin(work.phase, (Phase.BACKWARD, Phase.OPTIMIZER)) & (work.end_event < end)
    start = work.end_event[is_complete].max(initial=0)
    return int(start), int(work.start_event[begun[-1]]), end


def held_by_unfinished(
    unfinished: Unfinished, born: NDArray[Any], dies: NDArray[Any], phase: NDArray[Any], inside: NDArray[Any]
) -> NDArray[Any]:
    """Whether each allocation was made by such a forward, or by the loss after it, and alive at its end.

    *phase* and *inside* are the ``Phase`` of birth, and whether there is one.
    """
    if not len(unfinished.end):
        return np.zeros(len(born), dtype="?")
    row = np.minimum(np.searchsorted(unfinished.end, born, side="right"), len(unfinished.end) - 1)
    is_alive = (unfinished.start[row] <= born) & (born < unfinished.end[row]) & (unfinished.end[row] <= dies)
    is_forward = inside & np.isin(phase, _FORWARD)
    is_loss = ~inside & (born >= unfinished.last_forward[row])
    return is_alive & (is_forward | is_loss)
