"""Finds the line that makes thousands of small allocations in every step."""

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.folding import Folded, fold
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array

_SMALL_BYTES = 64 << 10
_LEAST_PER_STEP = 5_000
"""Allocations of one line in the median step from which on there is a finding."""


def small_allocations(recording: Recording) -> list[Finding]:
    """Find the line that makes the most allocations of at most 64 KiB, if it makes thousands in a step.

    What an optimizer of torch makes for itself does not count: no line of the program can do without it.
    """
    steps = recording.steps
    if not len(steps):
        return []
    found, folded = lifetimes(recording), fold(recording.stacks)
    rows = np.flatnonzero((found.size <= _SMALL_BYTES) & (found.alloc_event >= 0))
    step = steps_of(steps, found.alloc_event[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    of_optimizer = _of_torch_optim(recording.stacks, folded)[found.stack_id[rows]]
    rows, step = rows[~of_optimizer], step[~of_optimizer]
    own = folded.of[found.stack_id[rows]]
    if not (own > 0).any():
        return []
    busiest = int(np.bincount(own[own > 0]).argmax())
    mine = own == busiest
    per_step = int(np.median(np.bincount(step[mine], minlength=len(steps))))
    if per_step < _LEAST_PER_STEP:
        return []
    evidence = {"per_step": per_step, "median_bytes": int(np.median(found.size[rows[mine]]))}
    frame = folded.stacks.frame(busiest)
    return [worded(FindingKind.SMALL_ALLOCATIONS, None, frame, evidence, most_bytes=_SMALL_BYTES)]


def _of_torch_optim(stacks: Stacks, folded: Folded) -> Array:
    """Return for each stack whether its innermost frames, below any of the program's, are of torch.optim.

    A closure that an optimizer calls is the program's again.
    """
    of_file = np.array(["/torch/optim/" in text.replace("\\", "/") for text in stacks.strings], bool)
    found: Array = of_file[stacks.file]
    own = folded.of.tolist()
    # Parents precede their children.
    for row, parent in enumerate(stacks.parent.tolist()):
        if row and own[row] == own[parent]:
            found[row] |= found[parent]
    return found


ANALYSIS = asking("Which line makes thousands of small allocations?", small_allocations, list)
