"""Finds the line that called the backward in which something happened without a stack.

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


def calls_of_backward(
    recording: Recording, found: Allocations, own: NDArray[Any], events: NDArray[Any]
) -> NDArray[Any]:
    """Return the folded stack of the backward call in which each event happened, or 0.

    The loop runs over phases, not over allocations.

    *own* has the folded stack of each allocation, 0 for none; *events* may have any order.
    """
    call = np.zeros(len(events), dtype=own.dtype)
    phases = recording.phases
    backward = np.flatnonzero(phases.phase == Phase.BACKWARD)
    if not len(backward) or not len(events):
        return call
    order = np.argsort(events, kind="stable")
    event = events[order]
    rows = np.flatnonzero(_makes_first_gradient(recording.stacks)[found.stack_id] & (own > 0))
    rows = rows[np.argsort(found.alloc_event[rows], kind="stable")]
    called, earliest = found.alloc_event[rows], 0
    for row in backward[np.argsort(phases.start_event[backward], kind="stable")].tolist():
        first, end = int(phases.start_event[row]), int(phases.end_event[row])
        start, stop = np.searchsorted(event, [first, end])
        last = int(np.searchsorted(called, first)) - 1
        # A call before the previous backward does not count: here the caller passed the first gradient.
        is_its_own = last >= 0 and called[last] >= earliest
        call[order[start:stop]] = own[rows[last]] if is_its_own else 0
        earliest = end
    return call


def _makes_first_gradient(stacks: Stacks) -> NDArray[Any]:
    """Return for each stack whether ``torch.autograd.backward`` is about to begin."""
    strings = stacks.strings
    found: NDArray[Any] = np.array([text == "_make_grads" for text in strings], bool)[stacks.function]
    for row, parent in enumerate(stacks.parent.tolist()):
        if row:
            found[row] |= found[parent]
    return found
