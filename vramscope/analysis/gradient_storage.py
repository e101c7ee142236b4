"""Which gradients take memory that they need not take: from one step to the next, or twice?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.categories import Assigned, assign, undivided
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.lifetimes import ALIVE, Allocations, lifetimes
from vramscope.analysis.step_and_phase import phases_of, steps_of
from vramscope.analysis.strategies.gradients import is_bucket, late_gradients
from vramscope.analysis.strategies.trials import summed
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase, Phases
from vramscope.model.recording import Recording

_LEAST_SHARE = 0.5
"""Of the steps that train: so many must keep their gradients."""
_LEAST_STEPS = 3
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GradientStorage:
    """Gradients that stay from step to step, and gradients that lie beside DDP's buckets."""

    kept_bytes: int = 0
    """Gradients that are there when forward begins, in the last step that creates none; 0 where fewer than
    half of the steps are such steps."""
    n_steps: int = 0
    """Steps that keep their gradients from the step before."""
    late_bytes: int = 0
    """What the peak would be lower by if gradients that are cleared after forward were cleared before it."""
    forgotten_bytes: int = 0
    """Gradients that the first steps make and nobody clears, while others are cleared in each step."""
    forgotten: str = ""
    """The name of the largest of these."""
    copied_bytes: int = 0
    """The most bytes that gradients and DDP's buckets both had at one moment; 0 where gradients are views."""
    bucket_bytes: int = 0
    """DDP's buckets at that moment."""


def gradient_storage(recording: Recording) -> GradientStorage:
    """Gradients that capture knew by identity and that backward allocated; others are not counted.

    Memory of private pools is not counted: a captured CUDA graph needs its gradients where they are.
    """
    named = np.isin(recording.labels.category, (Category.GRADIENT, Category.SHARDED_GRADIENT))
    if not named.any() or not len(recording.phases):
        return GradientStorage()
    found = lifetimes(recording)
    assigned = undivided(assign(recording, found))
    is_gradient = _is_certain(recording, found, assigned)
    if not is_gradient.any():
        return GradientStorage()
    bucket = is_bucket(recording.stacks, found)
    kept, n_steps = _kept(recording, found, is_gradient, assigned)
    lives = lives_of(recording, found)
    extra = late_gradients(found, lives, assigned.category == Category.GRADIENT, len(recording.trace) + 1)
    level = timeline(recording).allocated_bytes
    late = int(level.max(initial=0) - (level + extra).max(initial=0))
    copied, of_buckets = _copied(recording, found, is_gradient & ~bucket, bucket)
    forgotten = _forgotten(recording, found, is_gradient) if not kept else np.zeros(0, "i8")
    largest = forgotten[found.block_size[forgotten].argmax()] if len(forgotten) else -1
    labels = recording.labels
    return GradientStorage(
        kept,
        n_steps,
        late,
        int(found.block_size[forgotten].sum()),
        labels.names[int(labels.name[assigned.label[largest]])] if largest >= 0 else "",
        copied,
        of_buckets,
    )


def _is_certain(recording: Recording, found: Allocations, assigned: Assigned) -> NDArray[Any]:
    if not len(recording.phases) or not len(recording.trace):
        return np.zeros(len(found), bool)
    is_known = (assigned.category == Category.GRADIENT) & (assigned.label >= 0)
    phase_at = phases_of(recording.phases, len(recording.trace) + 1)
    born_in = phase_at[np.maximum(found.alloc_event, 0)]
    in_backward = (born_in >= 0) & (recording.phases.phase[born_in] == Phase.BACKWARD)
    is_shared = recording.trace.pool[np.maximum(found.alloc_event, 0)] == 0
    return is_known & (found.alloc_event >= 0) & in_backward & is_shared


def _kept(
    recording: Recording, found: Allocations, is_gradient: NDArray[Any], assigned: Assigned
) -> tuple[int, int]:
    """Bytes in the last step that creates no gradient and has some from forward to the optimizer's end."""
    n_steps = len(recording.steps)
    any_gradient = assigned.category == Category.GRADIENT
    creates = np.zeros(n_steps + 1, "?")
    creates[steps_of(recording.steps, found.alloc_event[any_gradient])] = True
    start, end = _training_steps(recording.phases, n_steps)
    n_training = int((start < end).sum())
    # Few programs keep them, and these have few: a look at each step costs next to nothing.
    own, kept = found.rows(is_gradient), []
    for row in np.flatnonzero((start < end) & ~creates[:-1]).tolist():
        lasts = own.allocated_at(int(start[row])) & own.allocated_at(int(end[row]))
        kept.append(int(own.block_size[lasts].sum()))
    kept = [n_bytes for n_bytes in kept if n_bytes]
    if len(kept) < max(_LEAST_STEPS, _LEAST_SHARE * n_training):
        return 0, 0
    return kept[-1], len(kept)


def _forgotten(recording: Recording, found: Allocations, is_gradient: NDArray[Any]) -> NDArray[Any]:
    """Return gradients of the first third of the steps that outlast all, if others are freed in each."""
    n_steps = len(recording.steps)
    step = steps_of(recording.steps, np.maximum(found.alloc_event, 0))
    end = int(recording.steps.end_event[-1]) if n_steps else 0
    lasts = (found.free_event == ALIVE) | (found.free_event >= end)
    stays = is_gradient & lasts & (step >= 0) & (step < n_steps / 3)
    cleared_in = step[is_gradient & ~lasts & (step >= 0)]
    if n_steps < _LEAST_STEPS or len(np.unique(cleared_in)) < n_steps - 1:
        return np.zeros(0, "i8")
    return np.flatnonzero(stays)


def _training_steps(phases: Phases, n_steps: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Events at which each step's first forward begins and its last optimizer ends; the end is 0 for a step
    without forward, backward and optimizer."""
    start, end = np.full(n_steps, np.iinfo("i8").max), np.zeros(n_steps, "i8")
    is_trained = np.zeros(n_steps, "?")
    forward, backward, optimizer = (
        (phases.phase == each) & (phases.step >= 0)
        for each in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    )
    np.minimum.at(start, phases.step[forward], phases.start_event[forward])
    np.maximum.at(end, phases.step[optimizer], phases.end_event[optimizer])
    is_trained[phases.step[backward]] = True
    return start, np.where(is_trained, end, 0)


def _copied(
    recording: Recording, found: Allocations, is_gradient: NDArray[Any], bucket: NDArray[Any]
) -> tuple[int, int]:
    """At the end of the backward where gradients and buckets together have most, the smaller of both."""
    if not bucket.any():
        return 0, 0
    ends = recording.phases.end_event[recording.phases.phase == Phase.BACKWARD]
    n_events = len(recording.trace)
    gradients, buckets = (
        summed(found, found.block_size * kind, n_events)[ends] for kind in (is_gradient, bucket)
    )
    both = np.minimum(gradients, buckets)
    if not len(both):
        return 0, 0
    at = int(both.argmax())
    return int(both[at]), int(buckets[at])


def findings(found: GradientStorage) -> list[Finding]:
    """The gradients that stay from step to step, and those that are stored twice."""
    results = []
    if found.kept_bytes >= _LEAST_BYTES:
        evidence: dict[str, Any] = {"steps": found.n_steps}
        results.append(worded(FindingKind.GRADIENTS_KEPT, found.kept_bytes, None, evidence))
    if found.late_bytes >= _LEAST_BYTES:
        results.append(worded(FindingKind.GRADIENTS_LATE, found.late_bytes))
    if found.forgotten_bytes >= _LEAST_BYTES:
        largest = f" (the largest: {found.forgotten})" if found.forgotten else ""
        kind, evidence = FindingKind.GRADIENTS_NEVER_CLEARED, {"example": found.forgotten}
        results.append(worded(kind, found.forgotten_bytes, None, evidence, largest=largest))
    if found.copied_bytes >= _LEAST_BYTES:
        evidence = {"bucket_bytes": found.bucket_bytes}
        results.append(worded(FindingKind.GRADIENT_COPIES, found.copied_bytes, None, evidence))
    return results


ANALYSIS = Analysis(
    "gradient_storage",
    "Which gradients take memory that they need not take: from one step to the next, or twice?",
    gradient_storage,
    findings,
)
