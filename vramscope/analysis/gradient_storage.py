"""Which gradients take memory that they need not take?"""

import math

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.by_module import ModuleEvidence, owners_of
from vramscope.analysis.categories import Assigned, assign, names_of, undivided
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.folding import heaviest_line, passes_through
from vramscope.analysis.lifetimes import Allocations, lifetimes, summed
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.strategies.gradients import LEAST_STEPS, cleared, forgotten, is_bucket
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.units import format_share

_LEAST_SHARE = 0.5
"""The share of the steps that must keep the gradients of one before."""
_LEAST_BYTES = 1 << 20
_LAYERS = {"embedding": "Embedding", "embedding_bag": "EmbeddingBag"}
"""The classes of layers that look rows up, by the function of torch.nn.functional."""
_LEAST_OF_PEAK, _MOST_LOOKED_UP = 0.1, 0.25
"""Share of the peak that the gradient of an embedding must have, and of its rows that a step may look up."""


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
    results += _of_embeddings(recording, found, assigned, is_gradient)
    return results if kept else results + _never_cleared(recording, found, assigned, is_gradient)


def _never_cleared(
    recording: Recording, found: Allocations, assigned: Assigned, is_gradient: Array
) -> list[Finding]:
    rows, names = forgotten(recording, found, is_gradient), names_of(recording.labels, assigned.label)
    size = found.block_size[rows]
    if size.sum() < _LEAST_BYTES:
        return []
    example = str(names[rows[size.argmax()]])
    largest = f" (the largest: {example})" if example else ""
    mine = {each.removeprefix("gradient of ") for each in names[rows].tolist()} - {""}
    is_theirs = np.array([each.rpartition(" of ")[2] in mine for each in names.tolist()])
    is_theirs &= found.allocated_at(int(recording.steps.end_event[-1]))
    is_theirs &= assigned.category == Category.OPTIMIZER_STATE
    state, kind = int(found.block_size[is_theirs].sum()), FindingKind.GRADIENTS_NEVER_CLEARED
    wording, evidence = f"trained.{kind}" if state else kind, {"example": example, "state_bytes": state}
    return [worded(wording, int(size.sum()), None, evidence, largest=largest)]


def _of_embeddings(
    recording: Recording, found: Allocations, assigned: Assigned, is_gradient: Array
) -> list[Finding]:
    """Find gradients that have all rows of an embedding of which a step looks up a small part.

    What its forwards return in a step has a row for each lookup: their bytes by those of the weight bound the
    share of the rows. A weight that a layer without one of its own may share has a dense gradient anyway.
    """
    said = []
    for function, layer in _LAYERS.items():
        looks_up = passes_through(recording.stacks, function, "torch/nn/functional.py")[found.stack_id]
        # A call makes the begins of its bags, if any, before the last line of the function, which looks up.
        line = recording.stacks.line[found.stack_id]
        looks_up &= (line == line[looks_up].max(initial=0)) | (layer == "Embedding")
        # A bag returns a row for several lookups, but counts them on CUDA, which a CPU need not.
        if looks_up.any() and not (layer == "EmbeddingBag" and recording.source == "simulated"):
            said += _of_layers(recording, found, assigned, is_gradient, (looks_up, layer))
    return said


def _of_layers(
    recording: Recording, found: Allocations, assigned: Assigned, is_gradient: Array, of: tuple[Array, str]
) -> list[Finding]:
    """Find such gradients of one class of layers."""
    looks_up, layer = of
    level, owners = timeline(recording).allocated_bytes, owners_of(recording, found, assigned)
    names = names_of(recording.labels, assigned.label)
    multiplies = passes_through(recording.stacks, "forward", "torch/nn/modules/linear.py")[found.stack_id]
    called, lives = owners.known == ModuleEvidence.CALL, lives_of(recording, found)
    at, step, said = int(level.argmax()), steps_of(recording.steps, found.alloc_event), []
    live = is_gradient & found.allocated_at(at)
    # One that no optimizer clears, or for which an optimizer with state for others has none, trains nothing.
    live[forgotten(recording, found, is_gradient)] = False
    states = {each.rpartition(" of ")[2] for each in names[assigned.category == Category.OPTIMIZER_STATE]}
    of_layers = {f"{owners.paths[each]}.weight" for each in np.unique(owners.module[called & multiplies])}
    for module in np.unique(owners.module[called & looks_up & (step >= 0)]).tolist():
        rows = np.flatnonzero(called & looks_up & (owners.module == module) & (step >= 0))
        weight = f"{owners.paths[module]}.weight"
        mine = np.flatnonzero(live & (names == f"gradient of {weight}"))
        n_bytes, size = int(found.block_size[mine].sum()), int(found.size[mine].max(initial=0))
        read = _read_bytes(found, rows, layer)
        if read is None:
            continue
        share = np.bincount(step[rows], read).max() / max(size, 1)
        # Another use of the weight, as by a product, makes a second one in the same backward.
        alike = (found.size == size) & np.isin(lives.born_in, lives.born_in[mine])
        is_much = alike.sum() == len(mine) and n_bytes >= max(_LEAST_BYTES, _LEAST_OF_PEAK * level[at])
        is_much &= not states or weight in states
        if is_much and share <= _MOST_LOOKED_UP and of_layers <= set(names.tolist()):
            frame = heaviest_line(recording.stacks, found.stack_id[rows], found.block_size[rows])
            of_peak, looked_up = format_share(n_bytes, int(level[at]), 0), math.ceil(1000 * share) / 10
            kind = FindingKind.EMBEDDING_GRADIENT
            said.append(
                worded(
                    kind, n_bytes, frame, weight=weight, of_peak=of_peak, looked_up=f"{looked_up:g} %",
                    layer=layer,
                )
            )  # fmt: skip
    return said


def _read_bytes(found: Allocations, rows: Array, layer: str) -> Array | None:
    """Return the bytes of a weight that the call behind each of *rows* read; None if that is unclear.

    On CUDA a call of ``embedding_bag`` makes three tensors: the lookups of each bag, the bag of each lookup,
    and a row for each bag; in the mode ``max``, which has no sparse gradients, the place of each maximum too.
    """
    size = found.size[rows].astype("f8")
    if layer == "Embedding":
        return size
    read = np.zeros(len(rows))
    for stack in np.unique(found.stack_id[rows]).tolist():
        mine = np.flatnonzero(found.stack_id[rows] == stack)
        bags, lookups, results = (size[mine[first::3]] for first in range(3))
        may_be_maxima = len(mine) % 4 == 0 and not np.ptp(size[mine[3::4]] / size[mine[2::4]])
        if may_be_maxima or len(mine) % 3 or np.ptp(results / bags):
            return None
        read[mine[2::3]] = results * lookups / bags
    return read


def _is_certain(recording: Recording, found: Allocations, assigned: Assigned) -> Array:
    is_known = (assigned.category == Category.GRADIENT) & (assigned.label >= 0) & (found.alloc_event >= 0)
    is_shared = recording.trace.pool[np.maximum(found.alloc_event, 0)] == 0
    return is_known & is_shared & (lives_of(recording, found).phase == Phase.BACKWARD)


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


ANALYSIS = asking("Which gradients take memory that they need not take?", gradient_storage, list)
