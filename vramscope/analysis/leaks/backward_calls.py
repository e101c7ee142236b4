"""Finds the line that called the backward which made allocations without a stack.

On CUDA backward runs on a thread of autograd, without Python frames, while the calling thread waits in one
line. That line is known if the call itself makes the first gradient (of ones) just before.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.lifetimes import Allocations
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks


def calls_of_backward(recording: Recording, found: Allocations, own: NDArray[Any]) -> NDArray[Any]:
    """Return for each row of *found* the folded stack of the backward call that made it, or 0.

    Only rows without a stack of their own get one. *own* is the folded stack of each row, 0 for none. The
    loop runs over phases, not over allocations.
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
        # A call before the previous backward does not count: here the caller passed the first gradient.
        is_its_own = last >= 0 and calls[last] >= earliest
        call[order[start:end]] = own[order[calls[last]]] if is_its_own else 0
        earliest = int(end)
    return np.where(own > 0, 0, call).astype(own.dtype)


def _makes_first_gradient(stacks: Stacks) -> NDArray[Any]:
    """Return for each stack whether ``torch.autograd.backward`` is about to begin."""
    strings = stacks.strings
    found: NDArray[Any] = np.array([text == "_make_grads" for text in strings], bool)[stacks.function]
    for row, parent in enumerate(stacks.parent.tolist()):
        if row:
            found[row] |= found[parent]
    return found
