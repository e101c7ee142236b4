"""Which gradients take memory that they need not take?"""

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.categories import Assigned, assign, undivided
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.strategies.gradients import LEAST_STEPS, forgotten, is_bucket, late_gradients
from vramscope.analysis.strategies.trials import summed
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase, Phases
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.steps.innermost import phases_of

_LEAST_SHARE = 0.5
"""Of the steps that train: so many must keep their gradients."""
_LEAST_BYTES = 1 << 20


def gradient_storage(recording: Recording) -> list[Finding]:
    """Find gradients that stay from step to step, and those that are stored twice.

    Gradients that capture knew by identity and that backward allocated; others are not counted. Memory of
    private pools is not counted: a captured CUDA graph needs its gradients where they are.
    """
    named = np.isin(recording.labels.category, (Category.GRADIENT, Category.SHARDED_GRADIENT))
    if not named.any() or not len(recording.phases):
        return []
    found = lifetimes(recording)
    assigned = undivided(assign(recording, found))
    is_gradient = _is_certain(recording, found, assigned)
    if not is_gradient.any():
        return []
    kept, n_steps = _kept(recording, found, is_gradient, assigned)
    late = _late_bytes(recording, found, assigned)
    bucket = is_bucket(recording.stacks, found)
    copied, of_buckets = _copied(recording, found, is_gradient & ~bucket, bucket)
    measured: list[tuple[str, int, dict[str, int]]] = [
        (FindingKind.GRADIENTS_KEPT, kept, {"steps": n_steps}),
        (FindingKind.GRADIENTS_LATE, late, {}),
        (FindingKind.GRADIENT_COPIES, copied, {"bucket_bytes": of_buckets}),
    ]
    results = [worded(kind, size, None, words) for kind, size, words in measured if size >= _LEAST_BYTES]
    return results if kept else results + _never_cleared(recording, found, assigned, is_gradient)


def _late_bytes(recording: Recording, found: Allocations, assigned: Assigned) -> int:
    """What the peak would be lower by if gradients that are cleared after forward were cleared before it."""
    is_gradient = assigned.category == Category.GRADIENT
    extra = late_gradients(found, lives_of(recording, found), is_gradient, len(recording.trace) + 1)
    level = timeline(recording).allocated_bytes
    return int(level.max(initial=0) - (level + extra).max(initial=0))


def _never_cleared(
    recording: Recording, found: Allocations, assigned: Assigned, is_gradient: Array
) -> list[Finding]:
    rows, labels = forgotten(recording, found, is_gradient), recording.labels
    size = found.block_size[rows]
    if size.sum() < _LEAST_BYTES:
        return []
    example = labels.names[int(labels.name[assigned.label[rows[size.argmax()]]])]
    largest = f" (the largest: {example})" if example else ""
    kind = FindingKind.GRADIENTS_NEVER_CLEARED
    return [worded(kind, int(size.sum()), None, {"example": example}, largest=largest)]


def _is_certain(recording: Recording, found: Allocations, assigned: Assigned) -> Array:
    is_known = (assigned.category == Category.GRADIENT) & (assigned.label >= 0)
    born_in = phases_of(recording.phases, len(recording.trace) + 1)[np.maximum(found.alloc_event, 0)]
    in_backward = (born_in >= 0) & (recording.phases.phase[born_in] == Phase.BACKWARD)
    is_shared = recording.trace.pool[np.maximum(found.alloc_event, 0)] == 0
    return is_known & (found.alloc_event >= 0) & in_backward & is_shared


def _kept(
    recording: Recording, found: Allocations, is_gradient: Array, assigned: Assigned
) -> tuple[int, int]:
    """Bytes in the last step that creates no gradient and has some from forward to the optimizer's end.

    And the number of such steps; 0 where fewer than half of those that train are such.
    """
    n_steps = len(recording.steps)
    any_gradient = assigned.category == Category.GRADIENT
    creates = np.zeros(n_steps + 1, "?")
    creates[steps_of(recording.steps, found.alloc_event[any_gradient])] = True
    start, end = _training_steps(recording.phases, n_steps)
    n_training = int((start < end).sum())
    # Few programs keep them, and these have few: a look at each step costs next to nothing.
    own, rows = found.rows(is_gradient), np.flatnonzero((start < end) & ~creates[:-1]).tolist()
    lasting = (own.allocated_at(int(start[row])) & own.allocated_at(int(end[row])) for row in rows)
    kept = [n_bytes for lasts in lasting if (n_bytes := int(own.block_size[lasts].sum()))]
    if len(kept) < max(LEAST_STEPS, _LEAST_SHARE * n_training):
        return 0, 0
    return kept[-1], len(kept)


def _training_steps(phases: Phases, n_steps: int) -> tuple[Array, Array]:
    """Events at which each step's first forward begins and its last optimizer ends; the end is 0 for a step
    without forward, backward and optimizer."""
    start, end = np.full(n_steps, np.iinfo("i8").max), np.zeros(n_steps, "i8")
    forward, backward, optimizer = (
        (phases.phase == each) & (phases.step >= 0)
        for each in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    )
    np.minimum.at(start, phases.step[forward], phases.start_event[forward])
    np.maximum.at(end, phases.step[optimizer], phases.end_event[optimizer])
    return start, np.where(np.isin(np.arange(n_steps), phases.step[backward]), end, 0)


def _copied(recording: Recording, found: Allocations, is_gradient: Array, bucket: Array) -> tuple[int, int]:
    """At the end of the backward where gradients and buckets together have most, the smaller of both."""
    ends = recording.phases.end_event[recording.phases.phase == Phase.BACKWARD]
    if not bucket.any() or not len(ends):
        return 0, 0
    n_events = len(recording.trace)
    gradients, buckets = (
        summed(found, found.block_size * kind, n_events)[ends] for kind in (is_gradient, bucket)
    )
    both = np.minimum(gradients, buckets)
    at = int(both.argmax())
    return int(both[at]), int(buckets[at])


ANALYSIS = Analysis(
    "gradient_storage", "Which gradients take memory that they need not take?", gradient_storage, list
)
