"""Finds parameters, gradients and optimizer states that are 64-bit."""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class WideNumbers:
    """Tensors of the model with elements of eight bytes at the peak."""

    n_bytes: int = 0
    """Bytes of their blocks."""
    n_tensors: int = 0
    """Number of such tensors."""
    example: str = ""
    """Name of the largest one, such as ``layers.0.weight``."""


def wide_numbers(recording: Recording, instant: int | None = None) -> WideNumbers:
    """Find 64-bit tensors of the model, from the labels that the recorder gave to tensors.

    Parameters
    ----------
    instant
        Instant to look at; the peak of allocated bytes if None.
    """
    labels = recording.labels
    if not (labels.element_bytes == 8).any():
        return WideNumbers()
    found, at = lifetimes(recording), instant_of(recording, instant)
    assigned = undivided(assign(recording, found))
    rows = np.flatnonzero(
        found.allocated_at(at) & (assigned.label >= 0) & np.isin(assigned.category, _OF_MODEL)
    )
    rows = rows[labels.element_bytes[assigned.label[rows]] == 8]
    if not len(rows):
        return WideNumbers()
    size = found.block_size[rows]
    largest = assigned.label[rows[int(size.argmax())]]
    return WideNumbers(int(size.sum()), len(rows), labels.names[int(labels.name[largest])])


def findings(found: WideNumbers) -> list[Finding]:
    """Return a finding if 64-bit tensors hold 1 MiB or more."""
    if found.n_bytes < _LEAST_BYTES:
        return []
    named = f", as {found.example}" if found.example else ""
    evidence = {"bytes": found.n_bytes, "tensors": found.n_tensors, "example": found.example}
    return [worded(FindingKind.WIDE_NUMBERS, found.n_bytes // 2, None, evidence, named=named)]


ANALYSIS = Analysis(
    "wide_numbers", "Which parameters, gradients and optimizer states are 64-bit?", wide_numbers, findings
)
