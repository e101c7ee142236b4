"""How much memory did each step and each of its phases need?"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis._place import phases_of, steps_of
from vramscope.analysis.timeline import Totals, timeline
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Table

_QUANTITIES = ("requested", "allocated", "active", "reserved")


@dataclass(frozen=True, slots=True)
class IntervalPeaks(Table):
    """The most that was in use during each interval, the level on entry included: what torch's
    ``max_memory_allocated`` says after a reset at its start."""

    DTYPES: ClassVar = {
        "step": "i8",
        "phase": "u1",
        "start_event": "i8",
        "end_event": "i8",
        "requested": "i8",
        "allocated": "i8",
        "active": "i8",
        "reserved": "i8",
    }

    step: NDArray[Any]
    """Row of ``Recording.steps``; −1 outside of every step."""
    phase: NDArray[Any]
    """A ``Phase``; OTHER for a whole step, and for what is in no phase."""
    start_event: NDArray[Any]
    end_event: NDArray[Any]
    """Exclusive; of a phase that came several times in a step: the end of the last."""
    requested: NDArray[Any]
    allocated: NDArray[Any]
    active: NDArray[Any]
    reserved: NDArray[Any]


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """Per step, and per phase of each step."""

    per_step: IntervalPeaks = field(default_factory=IntervalPeaks.of)
    """Row i is step i."""
    per_phase: IntervalPeaks = field(default_factory=IntervalPeaks.of)
    """One row per (step, phase) that occurred, in order of their first events; inside of another phase
    (a recompute in backward) both count."""


def step_peaks(recording: Recording) -> StepPeaks:
    """Peaks of all steps and phases; 0.2 s per million events."""
    totals = timeline(recording)
    known = recording.steps
    per_step = _peaks(totals, known.start_event, known.end_event)
    rows = {
        "step": np.arange(len(known)),
        "phase": np.full(len(known), Phase.OTHER),
        "start_event": known.start_event,
        "end_event": known.end_event,
    }
    stretches = _stretches(recording)
    found = _peaks(totals, stretches[2], stretches[3])
    return StepPeaks(IntervalPeaks.of(**rows, **per_step), _joined(stretches, found))


def _peaks(totals: Totals, start: NDArray[Any], end: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The maximum of each quantity over the instants *start* to *end*, both included."""
    # In a run that still grows the marks may be ahead of the events.
    first = np.minimum(start, len(totals) - 1)
    last = np.clip(end, first, len(totals) - 1)
    edges = np.stack([first, last + 1], axis=1).ravel()
    found = {}
    for quantity in _QUANTITIES:
        # One more value, so that an interval may end with the last instant.
        values = np.append(getattr(totals, quantity), 0)
        found[quantity] = np.maximum.reduceat(values, edges)[::2] if len(edges) else values[:0]
    return found


def _stretches(recording: Recording) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Step, phase, start and end of every phase, and of every run of events of a step outside of phases."""
    phases, n_events = recording.phases, len(recording.trace)
    step = steps_of(recording.steps, np.arange(n_events))
    idle = (phases_of(phases, n_events) < 0) & (step >= 0)
    key = np.where(idle, step, -1)
    start = np.flatnonzero(np.diff(key, prepend=-2) != 0)
    end = np.append(start[1:], n_events)
    start, end = start[key[start] >= 0], end[: len(start)][key[start] >= 0]
    return (
        np.concatenate([phases.step, key[start]]),
        np.concatenate([phases.phase.astype("i8"), np.full(len(start), Phase.OTHER)]),
        np.concatenate([phases.start_event, start]),
        np.concatenate([phases.end_event, end]),
    )


def _joined(
    stretches: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]], peaks: dict[str, NDArray[Any]]
) -> IntervalPeaks:
    """One row per (step, phase)."""
    step, phase, start, end = stretches
    if not len(step):
        return IntervalPeaks.of()
    order = np.lexsort((start, phase, step))
    pair = np.stack([step[order], phase[order]])
    first = np.flatnonzero(np.r_[True, (pair[:, 1:] != pair[:, :-1]).any(axis=0)])
    columns = {quantity: np.maximum.reduceat(values[order], first) for quantity, values in peaks.items()}
    found = IntervalPeaks.of(
        step=pair[0, first],
        phase=pair[1, first],
        start_event=start[order][first],
        end_event=np.maximum.reduceat(end[order], first),
        **columns,
    )
    return found.rows(np.lexsort((found.start_event, found.step)))


ANALYSIS = Analysis("step_peaks", "How much memory did each step and each of its phases need?", step_peaks)
