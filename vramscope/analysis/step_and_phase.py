"""Maps instants and events to the step and phase that they belong to.

What an evaluation does between its forwards has no phase: metrics, results that are joined. It lies outside
of every step, from the first forward without gradients to the next step or to other work.
"""

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.shared_results import memoized
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.table import Array, rows_within
from vramscope.steps.innermost import innermost_phase
from vramscope.units import format_name


def step_and_phase_at(recording: Recording, instant: int) -> tuple[int | None, Phase | None]:
    """The step number and the innermost phase of the event before *instant*; None outside of any."""
    step = number_of_step(recording.steps, max(instant - 1, 0))
    return step, _phase_at(recording, max(instant - 1, 0))


def _phase_at(recording: Recording, event: int) -> Phase | None:
    """Return the innermost phase of an event; the code of an evaluation between its forwards is of it."""
    innermost = innermost_phase(recording.phases, event)
    if innermost is not None:
        return Phase(int(recording.phases.phase[innermost]))
    is_between = are_in_evaluations(recording.steps, recording.phases, np.array([event]))
    return Phase.EVAL if is_between.any() else None


def phase_words(recording: Recording, instant: int) -> str:
    """``backward``, ``zero grad``, or an annotation by its own name; '' outside of every phase."""
    phases = recording.phases
    innermost = innermost_phase(phases, max(instant - 1, 0))
    if innermost is None:
        first, end = _evaluations_of(recording)
        at = int(np.searchsorted(first, instant, side="left")) - 1
        if at < 0 or instant > end[at]:
            return ""
        # After the last forward it may be another thing: a copy of the weights, as the best so far.
        forwards = phases.start_event[phases.phase == Phase.EVAL]
        goes_on = ((forwards >= instant) & (forwards < end[at])).any()
        return format_name(Phase.EVAL) if goes_on else f"the time after {format_name(Phase.EVAL)}"
    phase, name = Phase(int(phases.phase[innermost])), phases.names[phases.name[innermost]]
    if phase is Phase.OTHER:
        return ""
    return name if phase is Phase.USER and name else format_name(phase)


@memoized
def _evaluations_of(recording: Recording) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return evaluations(recording.steps, recording.phases, len(recording.trace))


def number_of_step(steps: Steps, event: int) -> int | None:
    """The user-visible number of the step that contains *event*; None outside of every step."""
    row = int(steps_of(steps, np.array([event]))[0])
    return None if row < 0 else int(steps.index[row])


def steps_of(steps: Steps, events: Array) -> Array:
    """Row of ``Steps`` in which each event lies; −1 outside."""
    return rows_within(steps.start_event, steps.end_event, events)


_OF_EVALUATIONS = (Phase.EVAL, Phase.DATA, Phase.USER, Phase.OTHER)


def evaluations(steps: Steps, phases: Phases, n_events: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first event of each evaluation outside of steps, and the event after its last."""
    begins = np.unique(phases.start_event[(phases.phase == Phase.EVAL) & (phases.step < 0)])
    others = phases.start_event[~np.isin(phases.phase, _OF_EVALUATIONS)]
    ends = np.unique(np.concatenate([others, steps.start_event, [n_events]]))
    end = ends[np.minimum(np.searchsorted(ends, begins, side="right"), len(ends) - 1)]
    last, first = np.unique(end, return_index=True)
    return begins[first], last


def are_in_evaluations(steps: Steps, phases: Phases, events: Array) -> Array:
    """Whether each event belongs to an evaluation outside of steps."""
    first, end = evaluations(steps, phases, int(events.max(initial=0)) + 1)
    return rows_within(first, end, events) >= 0
