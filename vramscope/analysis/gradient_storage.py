"""Which gradients take memory that they need not take: from one step to the next, or twice?"""

from collections.abc import Iterator
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
from vramscope.analysis.timeline import timeline
from vramscope.model.codes import FindingKind, Severity
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase, Phases
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

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
    gradients, buckets = (_level(found.rows(kind), n_events)[ends] for kind in (is_gradient, bucket))
    both = np.minimum(gradients, buckets)
    if not len(both):
        return 0, 0
    at = int(both.argmax())
    return int(both[at]), int(buckets[at])


def _level(found: Allocations, n_events: int) -> NDArray[Any]:
    """Allocated bytes of these allocations at every instant."""
    change = np.zeros(n_events + 1, "i8")
    np.add.at(change, found.alloc_event + 1, found.block_size)
    is_freed = found.free_event != ALIVE
    np.subtract.at(change, found.free_event[is_freed] + 1, found.block_size[is_freed])
    return np.cumsum(change)


def findings(found: GradientStorage) -> list[Finding]:
    """The gradients that stay from step to step, and those that are stored twice."""
    size, example = format_bytes, f" (the largest: {found.forgotten})" if found.forgotten else ""
    return [
        *_said(
            FindingKind.GRADIENTS_KEPT,
            found.kept_bytes,
            f"{size(found.kept_bytes)} of gradients stay allocated from one step to the next, through "
            f"forward, in {found.n_steps:,} steps",
            "optimizer.zero_grad(set_to_none=True), or model.zero_grad(), before forward or after the "
            "optimizer's step lets go of them until backward makes them again",
            steps=found.n_steps,
        ),
        *_said(
            FindingKind.GRADIENTS_LATE,
            found.late_bytes,
            "gradients of the step before live through forward, as they are cleared after it: the peak would "
            f"be {size(found.late_bytes)} lower",
            "call optimizer.zero_grad() before forward, or right after optimizer.step()",
        ),
        *_said(
            FindingKind.GRADIENTS_NEVER_CLEARED,
            found.forgotten_bytes,
            f"{size(found.forgotten_bytes)} of gradients are made in the first steps and never cleared"
            f"{example}, while others are in each step: no zero_grad() reaches them",
            "if nothing trains these parameters, run their forward under torch.no_grad(), or set "
            "requires_grad_(False); else give them to an optimizer, and clear their gradients",
            example=found.forgotten,
        ),
        *_said(
            FindingKind.GRADIENT_COPIES,
            found.copied_bytes,
            f"{size(found.copied_bytes)} of gradients are there a second time in the "
            f"{size(found.bucket_bytes)} of DistributedDataParallel's buckets",
            "DistributedDataParallel(..., gradient_as_bucket_view=True) keeps them in the buckets alone; "
            "gradients cannot be detached in place then",
            bucket_bytes=found.bucket_bytes,
        ),
    ]


def _said(kind: FindingKind, n_bytes: int, claim: str, advice: str, **evidence: Any) -> Iterator[Finding]:
    if n_bytes >= _LEAST_BYTES:
        yield Finding(kind, Severity.INFO, claim, n_bytes=n_bytes, advice=advice, evidence=evidence)


ANALYSIS = Analysis(
    "gradient_storage",
    "Which gradients take memory that they need not take: from one step to the next, or twice?",
    gradient_storage,
    findings,
)
