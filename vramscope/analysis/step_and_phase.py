"""Maps instants and events to the step and phase that they belong to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.units import format_name


def step_and_phase_at(recording: Recording, instant: int) -> tuple[int | None, Phase | None]:
    """The step number and the innermost phase of the event before *instant*; None outside of any."""
    step = number_of_step(recording.steps, max(instant - 1, 0))
    innermost = _innermost(recording.phases, instant)
    return step, None if innermost is None else Phase(int(recording.phases.phase[innermost]))


def phase_words(recording: Recording, instant: int) -> str:
    """``backward``, ``zero grad``, or an annotation by its own name; '' outside of every phase."""
    phases = recording.phases
    innermost = _innermost(phases, instant)
    if innermost is None:
        return ""
    phase, name = Phase(int(phases.phase[innermost])), phases.names[phases.name[innermost]]
    if phase is Phase.OTHER:
        return ""
    return name if phase is Phase.USER and name else format_name(phase)


def _innermost(phases: Phases, instant: int) -> int | None:
    event = max(instant - 1, 0)
    rows = np.flatnonzero((phases.start_event <= event) & (event < phases.end_event))
    return int(rows[np.argmax(_rank(phases)[rows])]) if len(rows) else None


def number_of_step(steps: Steps, event: int) -> int | None:
    """The user-visible number of the step that contains *event*; None outside of every step."""
    row = int(steps_of(steps, np.array([event]))[0])
    return None if row < 0 else int(steps.index[row])


def steps_of(steps: Steps, events: NDArray[Any]) -> NDArray[Any]:
    """Row of ``Steps`` in which each event lies; −1 outside."""
    if not len(steps):
        return np.full(len(events), -1)
    row = np.searchsorted(steps.start_event, events, side="right") - 1
    return np.where((row >= 0) & (events < steps.end_event[row]), row, -1)


def phases_of(phases: Phases, n_events: int) -> NDArray[Any]:
    """Row of ``Phases`` that is innermost at each event, −1 outside. A loop over phases, not over events."""
    found = np.full(n_events, -1, dtype="i4")
    # Outer phases first, equal ones in order: inner and later ones overwrite.
    for row in np.argsort(_rank(phases), kind="stable").tolist():
        found[phases.start_event[row] : phases.end_event[row]] = row
    return found


def _rank(phases: Phases) -> NDArray[Any]:
    """The depth, or −1 for ``record_function`` regions, which torch records without a thread: they only name
    lines, and DDP's whole forward is one.
    """
    is_region = (phases.phase == Phase.USER) & (phases.thread == 0)
    rank: NDArray[Any] = np.where(is_region, -1, phases.depth)
    return rank
