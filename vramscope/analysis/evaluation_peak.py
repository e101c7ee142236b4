"""Compares the peak of allocated bytes in evaluation with the peak in training."""

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.folding import heaviest_line
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.step_and_phase import are_in_evaluations, evaluations, steps_of
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording

_LEAST_MORE = 0.05
"""Share of training's peak that evaluation must need more: less makes no card too small."""
_LEAST_BYTES = 16 << 20
_LEAST_KEPT = 0.3
"""Share of what an evaluation adds: so much must stay from its earlier forwards to be the reason."""
_LEAST_FORWARDS = 3


def evaluation_peak(recording: Recording) -> list[Finding]:
    """Find whether evaluation decides which card is needed, from the recorded phases."""
    steps, phases = recording.steps, recording.phases
    first, end = evaluations(steps, phases, len(recording.trace))
    trains = (phases.phase == Phase.BACKWARD) & (phases.step >= 0)
    if not (first < end).any() or not trains.any():
        return []
    allocated = timeline(recording).allocated_bytes
    # Each event makes the instant after it.
    events = np.arange(len(recording.trace))
    evaluation = np.append(False, are_in_evaluations(steps, phases, events))
    at = int(np.where(evaluation, allocated, -1).argmax())
    training = np.append(False, steps_of(steps, events) >= 0)
    most = int(np.where(training, allocated, 0).max(initial=0))
    begin = int(first[first <= at].max())
    found = lifetimes(recording)
    live = found.rows(found.allocated_at(at) & (found.alloc_event >= begin))
    # What was there before it, as a model that training does without, is there for any batch.
    more = min(int(allocated[at]) - most, int(live.block_size.sum()))
    if not most or more <= max(_LEAST_MORE * most, _LEAST_BYTES):
        return []
    forwards = np.unique(phases.start_event[(phases.phase == Phase.EVAL) & (phases.depth == 0)])
    forwards = forwards[(forwards >= begin) & (forwards < at)]
    rise = allocated[forwards[-1]] - allocated[forwards[1]] if len(forwards) >= _LEAST_FORWARDS else 0
    kept = max(int(rise), 0)
    frame = heaviest_line(recording.stacks, live.stack_id, live.block_size)
    evidence = {
        "evaluation_peak_bytes": int(allocated[at]),
        "training_peak_bytes": most,
        "instant": at,
        "kept_bytes": kept,
    }
    keeps = kept >= max(_LEAST_KEPT * more, _LEAST_BYTES)
    kind = FindingKind.EVALUATION_KEEPS if keeps else FindingKind.EVALUATION_PEAK
    return [worded(kind, more, frame, evidence, forwards=len(forwards))]


ANALYSIS = asking("Does evaluation need more memory than training?", evaluation_peak, list)
