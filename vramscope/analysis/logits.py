"""Measures what the logits and their loss hold at the peak: blocks of one size, made by cross entropy."""

from typing import Any

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories import assign, undivided
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.folding import fold, passes_through
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.step_and_phase import are_in_evaluations
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array

_LEAST_SHARE = 0.4
_LEAST_BYTES = 16 << 20
_OTHERS = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)


def logits(recording: Recording) -> list[Finding]:
    """Find whether blocks of the size of the logits, which ``cross_entropy`` shows, are much of the peak."""
    found = lifetimes(recording)
    of_loss = _of_loss(recording, found)
    kinds = {*recording.phases.phase.tolist()}
    is_inference = Phase.EVAL in kinds and kinds.isdisjoint((Phase.FORWARD, Phase.BACKWARD))
    if not of_loss.any() or is_inference:
        return []
    level = timeline(recording).allocated_bytes
    at = int(level.argmax())
    largest = np.flatnonzero(of_loss)[int(found.size[of_loss].argmax())]
    # An evaluation has no backward: what it makes or keeps of each batch is no matter of the loss.
    trains = ~are_in_evaluations(recording.steps, recording.phases, found.alloc_event)
    trains &= lives_of(recording, found).phase != Phase.EVAL
    mine = of_logits(recording, found) & trains
    rows = np.flatnonzero(found.allocated_at(at) & mine)
    n_bytes = int(found.block_size[rows].sum())
    if len(rows) < 2 or n_bytes < max(_LEAST_BYTES, _LEAST_SHARE * int(level[at])):
        return []
    folded = fold(recording.stacks)
    node = int(folded.of[found.stack_id[largest]])
    is_upcast = (2 * found.size[rows] == found.size[largest]).any()
    words: dict[str, Any] = {
        "share": f"{100 * n_bytes / int(level[at]):.0f}",
        "blocks": len(rows),
        "upcast": ", which are computed in 16 bits and converted" if is_upcast else "",
        "logits_bytes": int(found.size[largest]),
    }
    frame = folded.stacks.frame(node) if node else None
    kind = f"chunked.{FindingKind.LARGE_LOGITS}" if is_chunked(recording, found) else FindingKind.LARGE_LOGITS
    return [worded(kind, n_bytes, frame, **words)]


def is_chunked(recording: Recording, found: Allocations) -> bool:
    """Return whether the loss is computed in a checkpoint, as in chunks."""
    again = passes_through(recording.stacks, "checkpoint", "torch/utils/checkpoint.py")[found.stack_id]
    return bool((again & _of_loss(recording, found)).any())


def of_logits(recording: Recording, found: Allocations) -> Array:
    """Return which allocations have the size of the logits, in 32 or 16 bits, and are none of the model.

    Scores of attention may have that size too: nothing larger than labels is allocated between what belongs
    to the loss and cross entropy, neither before it nor after.
    """
    of_loss = _of_loss(recording, found)
    if not of_loss.any():
        return of_loss
    size = int(found.size[of_loss].max())
    category = undivided(assign(recording, found)).category
    of_others = np.isin(category, _OTHERS) | (found.size < 1 << 20)
    of_layer = passes_through(recording.stacks, "forward", "torch/nn/modules/linear.py")[found.stack_id]
    # Anything may have half their size, but a layer's result of half their size is what was converted.
    has_size, is_half = found.size == size, (found.size == size // 2) & ~of_others
    # What the program itself makes between, such as labels, belongs to no layer.
    of_layers = passes_through(recording.stacks, "_call_impl", "torch/nn/modules/module.py")
    of_layers |= passes_through(recording.stacks, "_engine_run_backward", "torch/autograd/graph.py")
    is_other = ~has_size & ~is_half & (found.size > size >> 10) & (category != Category.WORKSPACE)
    is_other &= of_layers[found.stack_id]
    loss = np.flatnonzero(of_loss)
    n_before = np.cumsum(is_other)
    after = np.searchsorted(found.alloc_event[loss], found.alloc_event, side="left")
    following, last = loss[np.minimum(after, len(loss) - 1)], loss[np.maximum(after - 1, 0)]
    near = (n_before == n_before[following]) | (n_before == n_before[last])
    return near & ((has_size & ~of_others) | (is_half & (is_half & of_layer).any()))


def _of_loss(recording: Recording, found: Allocations) -> Array:
    return passes_through(recording.stacks, "cross_entropy", "torch/nn/functional.py")[found.stack_id]


ANALYSIS = asking("How much of the peak are logits and what their loss makes of them?", logits, list)
