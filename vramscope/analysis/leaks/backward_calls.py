"""Which line called the backward that made what has no stack?

On CUDA backward runs on a thread of autograd's, without Python's frames, while the thread that called it
waits in one line. That line is known where the call makes the first gradient itself, of ones, just before.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.lifetimes import Allocations
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks


def calls_of_backward(recording: Recording, found: Allocations, own: NDArray[Any]) -> NDArray[Any]:
    """By row of *found*: for what a backward made without a stack the folded stack of its call; else 0.

    *own*: the folded stack of each row, 0 for none. A loop over phases, not over allocations.
    """
    call = np.zeros(len(found), dtype=own.dtype)
    phases = recording.phases
    backward = np.flatnonzero(phases.phase == Phase.BACKWARD)
    if not len(backward) or own.all():
        return call
    order = np.argsort(found.alloc_event, kind="stable")
    event = found.alloc_event[order]
    is_call = (_makes_first_gradient(recording.stacks)[found.stack_id] & (own > 0))[order]
    calls, earliest = np.flatnonzero(is_call), 0
    for row in backward[np.argsort(phases.start_event[backward], kind="stable")].tolist():
        start, end = np.searchsorted(event, [phases.start_event[row], phases.end_event[row]])
        last = int(np.searchsorted(calls, start)) - 1
        # Not that of the backward before: this one was given its first gradient.
        is_its_own = last >= 0 and calls[last] >= earliest
        call[order[start:end]] = own[order[calls[last]]] if is_its_own else 0
        earliest = int(end)
    return np.where(own > 0, 0, call).astype(own.dtype)


def _makes_first_gradient(stacks: Stacks) -> NDArray[Any]:
    """Of each stack: whether ``torch.autograd.backward`` is about to begin."""
    strings = stacks.strings
    found: NDArray[Any] = np.array([text == "_make_grads" for text in strings], bool)[stacks.function]
    for row, parent in enumerate(stacks.parent.tolist()):
        if row:
            found[row] |= found[parent]
    return found
