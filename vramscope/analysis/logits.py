"""Measures what the logits and their loss hold at the peak: blocks of one size, made by cross entropy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.categories import assign, undivided
from vramscope.analysis.folding import fold
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.stack_functions import passes_through
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame

_LEAST_SHARE = 0.4
_LEAST_BYTES = 16 << 20
_OTHERS = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True)
class Logits:
    """Blocks at the peak that have the size of the logits."""

    peak_bytes: int = 0
    n_bytes: int = 0
    n_blocks: int = 0
    logits_bytes: int = 0
    """Bytes of the largest tensor that cross entropy makes: of logits, in the numbers that it computes in."""
    is_upcast: bool = False
    """Whether logits of half that size are there as well: 16-bit numbers that became 32-bit ones."""
    frame: Frame | None = None
    """The line that calls cross entropy."""


def logits(recording: Recording) -> Logits:
    """Find the logits by the function ``cross_entropy``, and count all blocks of their size at the peak."""
    found = lifetimes(recording)
    of_loss = _of_loss(recording, found)
    if not of_loss.any():
        return Logits()
    level = timeline(recording).allocated_bytes
    at = int(level.argmax())
    largest = np.flatnonzero(of_loss)[int(found.size[of_loss].argmax())]
    rows = np.flatnonzero(found.allocated_at(at) & of_logits(recording, found))
    node = int(fold(recording.stacks).of[found.stack_id[largest]])
    return Logits(
        int(level[at]),
        int(found.block_size[rows].sum()),
        len(rows),
        int(found.size[largest]),
        bool((2 * found.size[rows] == found.size[largest]).any()),
        fold(recording.stacks).stacks.frame(node) if node else None,
    )


def of_logits(recording: Recording, found: Allocations) -> NDArray[Any]:
    """Return which allocations have the size of the logits, in 32 or 16 bits, and are none of the model."""
    of_loss = _of_loss(recording, found)
    if not of_loss.any():
        return of_loss
    size = int(found.size[of_loss].max())
    of_others = np.isin(undivided(assign(recording, found)).category, _OTHERS) | (found.size < 1 << 20)
    of_layer = passes_through(recording.stacks, "forward", "torch/nn/modules/linear.py")[found.stack_id]
    # Anything may have half their size, but a layer's result of half their size is what was converted.
    is_half = (found.size == size // 2) & ~of_others
    return ((found.size == size) & ~of_others) | (is_half & (is_half & of_layer).any())


def _of_loss(recording: Recording, found: Allocations) -> NDArray[Any]:
    calls = passes_through(recording.stacks, "cross_entropy", "torch/nn/functional.py")
    return calls[found.stack_id]


def findings(found: Logits) -> list[Finding]:
    """Return a finding if blocks of the size of the logits are most of the peak."""
    if found.n_blocks < 2 or found.n_bytes < max(_LEAST_BYTES, _LEAST_SHARE * found.peak_bytes):
        return []
    words: dict[str, Any] = {
        "share": f"{100 * found.n_bytes / found.peak_bytes:.0f}",
        "blocks": found.n_blocks,
        "upcast": ", which are computed in 16 bits and converted" if found.is_upcast else "",
        "logits_bytes": found.logits_bytes,
    }
    return [worded(FindingKind.LARGE_LOGITS, found.n_bytes, found.frame, **words)]


ANALYSIS = Analysis(
    "logits", "How much of the peak are logits and what their loss makes of them?", logits, findings
)
