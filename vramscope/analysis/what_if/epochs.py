"""Ends of epochs, found from marks and phases: a recording does not store epochs."""

from dataclasses import dataclass

import numpy as np

from vramscope.model.marks import MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array

_FEWEST_STEPS = 3
"""Steps per epoch on average, at least: an evaluation within every step (a teacher, a sampler) ends none."""


@dataclass(frozen=True, slots=True, eq=False)
class Epochs:
    """The instants at which epochs end, and how they are known."""

    ends: Array
    basis: str = ""
    """How the ends are known, as a phrase; '' if no epochs are known."""


def epochs(recording: Recording) -> Epochs:
    """Return the ends of epochs: from marks named "epoch …", else from evaluations that follow training."""
    marks = recording.marks.rows(recording.marks.kind == MarkKind.MARK)
    is_epoch = [marks.names[name].lower().startswith("epoch") for name in marks.name.tolist()]
    marked = np.unique(marks.event[np.array(is_epoch, "?")])
    if len(marked):
        return Epochs(marked, 'as marked by the program (`recorder.mark("epoch …")`)')
    inferred = _after_evaluations(recording)
    if len(inferred) and _FEWEST_STEPS * len(inferred) <= len(recording.steps):
        return Epochs(inferred, "inferred: an epoch ends with the evaluation that follows its training")
    return Epochs(np.zeros(0, "i8"))


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
