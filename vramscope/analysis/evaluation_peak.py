"""Compares the peak of allocated bytes in evaluation with the peak in training."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.folding import bytes_by_line, fold
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.steps.evaluations import evaluations

_LEAST_MORE = 1.05
"""Ratio of evaluation to training: a smaller one makes no card too small."""
_LEAST_BYTES = 16 << 20
_LEAST_KEPT = 0.3
"""Share of what an evaluation adds: so much must stay from its earlier forwards to be the reason."""
_LEAST_FORWARDS = 3


@dataclass(frozen=True, slots=True)
class EvaluationPeak:
    """The most that was allocated in evaluation and in training."""

    evaluation_bytes: int = 0
    """Peak of evaluations outside of steps, from their first forward on; 0 if there were none."""
    training_bytes: int = 0
    """Peak during steps; 0 if there were none."""
    instant: int = 0
    """Instant of the evaluation's peak."""
    frame: Frame | None = None
    """The line that held most of what evaluation itself had allocated at that instant."""
    frame_bytes: int = 0
    """Bytes that this line held."""
    n_forwards: int = 0
    """Forwards of this evaluation up to its peak."""
    kept_bytes: int = 0
    """Bytes that were allocated more before the last of these than before the second; 0 for fewer than three:
    what the evaluation keeps of each batch."""


def evaluation_peak(recording: Recording) -> EvaluationPeak:
    """Return the peaks of evaluation and training, from the recorded phases."""
    steps, phases = recording.steps, recording.phases
    first, end = evaluations(steps, phases, len(recording.trace))
    trains = (phases.phase == Phase.BACKWARD) & (phases.step >= 0)
    if not (first < end).any() or not trains.any():
        return EvaluationPeak()
    allocated = timeline(recording).allocated_bytes
    evaluation = _within(len(allocated), first, end)
    at = int(np.where(evaluation, allocated, -1).argmax())
    training = _within(len(allocated), steps.start_event, steps.end_event)
    most = int(np.where(training, allocated, 0).max(initial=0))
    begin = int(first[first <= at].max())
    forwards = np.unique(phases.start_event[(phases.phase == Phase.EVAL) & (phases.depth == 0)])
    forwards = forwards[(forwards >= begin) & (forwards < at)]
    kept = 0
    if len(forwards) >= _LEAST_FORWARDS:
        kept = max(int(allocated[forwards[-1]] - allocated[forwards[1]]), 0)
    return EvaluationPeak(int(allocated[at]), most, at, *_line(recording, begin, at), len(forwards), kept)


def _within(n: int, start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Return which instants lie after the first event of any interval, up to its end."""
    change = np.zeros(n + 1, "i8")
    np.add.at(change, np.minimum(start + 1, n), 1)
    np.add.at(change, np.minimum(end + 1, n), -1)
    return np.cumsum(change)[:-1] > 0


def _line(recording: Recording, begin: int, at: int) -> tuple[Frame | None, int]:
    found = lifetimes(recording)
    live = found.rows(found.allocated_at(at) & (found.alloc_event >= begin))
    folded = fold(recording.stacks)
    lines = bytes_by_line(folded, live.stack_id, live.block_size, np.ones(len(live), "i8"))
    known = np.flatnonzero(lines.folded_id > 0)
    if not len(known):
        return None, 0
    return folded.stacks.frame(int(lines.folded_id[known[0]])), int(lines.n_bytes[known[0]])


def findings(found: EvaluationPeak) -> list[Finding]:
    """Return a finding if evaluation decides which card is needed."""
    most = max(found.training_bytes * _LEAST_MORE, found.training_bytes + _LEAST_BYTES)
    if not found.training_bytes or found.evaluation_bytes <= most:
        return []
    keeps = found.kept_bytes >= max(
        _LEAST_KEPT * (found.evaluation_bytes - found.training_bytes), _LEAST_BYTES
    )
    evidence = {
        "evaluation_peak_bytes": found.evaluation_bytes,
        "training_peak_bytes": found.training_bytes,
        "instant": found.instant,
        "line_bytes": found.frame_bytes,
        "kept_bytes": found.kept_bytes,
    }
    kind = FindingKind.EVALUATION_KEEPS if keeps else FindingKind.EVALUATION_PEAK
    n_bytes = found.evaluation_bytes - found.training_bytes
    return [worded(kind, n_bytes, found.frame, evidence, forwards=found.n_forwards)]


ANALYSIS = Analysis(
    "evaluation_peak", "Does evaluation need more memory than training?", evaluation_peak, findings
)
