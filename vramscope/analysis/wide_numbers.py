"""Finds parameters, gradients and optimizer states that are 64-bit."""

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.categories import assign, undivided
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.timeline import instant_of
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category
from vramscope.model.recording import Recording

_OF_MODEL = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
_LEAST_BYTES = 1 << 20


def wide_numbers(recording: Recording, instant: int | None = None) -> list[Finding]:
    """Find 64-bit tensors of the model, from the labels that the recorder gave to tensors.

    Parameters
    ----------
    instant
        Instant to look at; the peak of allocated bytes if None.
    """
    labels = recording.labels
    if not (labels.element_bytes == 8).any():
        return []
    found, at = lifetimes(recording), instant_of(recording, instant)
    assigned = undivided(assign(recording, found))
    rows = np.flatnonzero(
        found.allocated_at(at) & (assigned.label >= 0) & np.isin(assigned.category, _OF_MODEL)
    )
    rows = rows[labels.element_bytes[assigned.label[rows]] == 8]
    size = found.block_size[rows]
    if size.sum() < _LEAST_BYTES:
        return []
    example = labels.names[int(labels.name[assigned.label[rows[int(size.argmax())]]])]
    evidence = {"bytes": int(size.sum()), "tensors": len(rows), "example": example}
    named = f", as {example}" if example else ""
    return [worded(FindingKind.WIDE_NUMBERS, int(size.sum()) // 2, None, evidence, named=named)]


ANALYSIS = Analysis(
    "wide_numbers", "Which parameters, gradients and optimizer states are 64-bit?", wide_numbers, list
)
