"""Ends of epochs, found from marks and phases: a recording does not store epochs."""

import numpy as np

from vramscope.model.marks import MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array

_FEWEST_STEPS = 3
"""Steps per epoch on average, at least: an evaluation within every step (a teacher, a sampler) ends none."""


def ends_of_epochs(recording: Recording) -> Array:
    """Return the instants at which epochs end, as marks named "epoch …" say.

    Else each ends with the evaluation that follows its training. Empty if no epochs are known.
    """
    marks = recording.marks.rows(recording.marks.kind == MarkKind.MARK)
    is_epoch = [marks.names[name].lower().startswith("epoch") for name in marks.name.tolist()]
    marked = np.unique(marks.event[np.array(is_epoch, "?")])
    if len(marked):
        return marked
    inferred = _after_evaluations(recording)
    return inferred if _FEWEST_STEPS * len(inferred) <= len(recording.steps) else np.zeros(0, "i8")


def _after_evaluations(recording: Recording) -> Array:
    """Return the end of the last evaluation before training continues, or before the recording ends."""
    phases = recording.phases
    ends: list[int] = []
    has_trained, evaluated_until = False, -1
    for phase, end in zip(phases.phase.tolist(), phases.end_event.tolist(), strict=True):
        if phase == Phase.BACKWARD:
            if evaluated_until >= 0:
                ends.append(evaluated_until)
            has_trained, evaluated_until = True, -1
        elif phase == Phase.EVAL and has_trained:
            evaluated_until = max(end, evaluated_until)
    if evaluated_until >= 0:
        ends.append(evaluated_until)
    return np.array(ends, "i8")
