"""Which gradients take memory that they need not take?"""

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.categories import Assigned, assign, undivided
from vramscope.analysis.lifetimes import Allocations, lifetimes, summed
from vramscope.analysis.strategies.gradients import LEAST_STEPS, cleared, forgotten, is_bucket
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.steps.innermost import phases_of

_LEAST_SHARE = 0.5
"""The share of the steps that must keep the gradients of one before."""
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
    without = cleared(recording, found)
    least = max(LEAST_STEPS, _LEAST_SHARE * (len(recording.steps) - 1))
    stays = is_gradient & (without.n_outlasted >= least)
    kept = int(found.block_size[stays].sum())
    bucket = is_bucket(recording.stacks, found)
    copied, of_buckets = _copied(recording, found, is_gradient & ~bucket, bucket)
    measured: list[tuple[str, int, dict[str, int]]] = [
        (FindingKind.GRADIENTS_KEPT, kept, {"steps": int(without.n_outlasted[stays].max(initial=0))}),
        (FindingKind.GRADIENTS_LATE, 0 if kept else without.saved_bytes, {}),
        (FindingKind.GRADIENT_COPIES, copied, {"bucket_bytes": of_buckets}),
    ]
    results = [worded(kind, size, None, words) for kind, size, words in measured if size >= _LEAST_BYTES]
    return results if kept else results + _never_cleared(recording, found, assigned, is_gradient)


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
