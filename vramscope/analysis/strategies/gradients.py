"""Gradients that need not exist: those of the step before, and copies beside DDP's buckets."""

import numpy as np

from vramscope.analysis.categories.by_lifetime import Lives
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.analysis.step_and_phase import steps_of
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array

LEAST_STEPS = 3
"""Fewest steps that show which gradients are cleared."""
_MAKE_BUCKETS = ("_ddp_init_helper", "_pre_forward")
"""Functions of DistributedDataParallel that make buckets: at creation, and again in its second forward."""
_THEIR_FILE = "torch/nn/parallel/distributed.py"


def is_bucket(stacks: Stacks, found: Allocations) -> Array:
    """Return which allocations are the buckets that DDP reduces gradients in."""
    # Of the innermost frame alone: functions that it calls make other buffers.
    makes = np.array([text in _MAKE_BUCKETS for text in stacks.strings], bool)[stacks.function]
    makes &= np.array([text.replace("\\", "/").endswith(_THEIR_FILE) for text in stacks.strings])[stacks.file]
    return makes[found.stack_id]


def kept_gradients(found: Allocations, lives: Lives, is_gradient: Array, n_instants: int) -> Array:
    """Return the saved bytes (negative) at each instant, if gradients were freed after each optimizer step.

    Gradients that are alive at the end of an optimizer step and at the next backward are gone in between. In
    that backward a gradient returns when the temporary of its size that is added to it is freed; a gradient
    without such a temporary returns at the start.
    """
    change = np.zeros(n_instants)
    starts = np.sort(lives.phases.start_event[lives.phases.phase == Phase.BACKWARD])
    for end in np.unique(lives.phases.end_event[lives.phases.phase == Phase.OPTIMIZER]).tolist():
        following = int(np.searchsorted(starts, end))
        if following == len(starts):
            break
        start = int(starts[following])
        kept = is_gradient & (found.alloc_event < end) & ((lives.dies > start) | (found.free_event == -1))
        if not kept.any():
            continue
        change[end] -= found.block_size[kept].sum()
        for event, n_bytes in _come_back(found, lives, found.block_size[kept], start):
            change[event] += n_bytes
    return np.cumsum(change)


def late_gradients(found: Allocations, lives: Lives, is_gradient: Array, n_instants: int) -> Array:
    """Return the saved bytes (negative) at each instant, if gradients that go after a forward went before it.

    These are alive at the end of an optimizer's step, live through a forward, and are freed before the next
    backward: ``zero_grad()`` stands between ``model(x)`` and ``backward()``.
    """
    phases, change = lives.phases, np.zeros(n_instants)
    ends = np.unique(phases.end_event[phases.phase == Phase.OPTIMIZER])
    forwards, backwards = (
        np.append(np.sort(phases.start_event[phases.phase == each]), n_instants)
        for each in (Phase.FORWARD, Phase.BACKWARD)
    )
    rows = np.flatnonzero(is_gradient & (found.free_event >= 0))
    last = np.searchsorted(ends, lives.dies[rows], side="right") - 1
    rows, last = rows[last >= 0], last[last >= 0]
    end, dies = ends[last], lives.dies[rows]
    forward, backward = (each[np.searchsorted(each, end)] for each in (forwards, backwards))
    is_late = (
        (found.alloc_event[rows] < end) & (forward < dies) & (dies <= backward) & (backward < n_instants)
    )
    size = found.block_size[rows[is_late]]
    np.subtract.at(change, end[is_late], size)
    np.add.at(change, dies[is_late] + 1, size)
    return np.cumsum(change)


def _come_back(found: Allocations, lives: Lives, sizes: Array, start: int) -> list[tuple[int, int]]:
    """Return the events at which gradients return, with their bytes."""
    end = int(lives.phases.end_event[lives.phases.start_event == start].max())
    rows = np.flatnonzero((found.alloc_event >= start) & (found.free_event < end) & (found.free_event >= 0))
    back = []
    for size in np.unique(sizes).tolist():
        freed = np.sort(found.free_event[rows[found.block_size[rows] == size]])
        n = int((sizes == size).sum())
        # The last ones: activations' gradients of that size may have been there too.
        events = freed[len(freed) - min(n, len(freed)) :].tolist()
        back += [(event, size) for event in events] + [(start, size)] * (n - len(events))
    return back


def forgotten(recording: Recording, found: Allocations, is_gradient: Array) -> Array:
    """Return gradients of the first third of the steps that outlast all, if others are freed in each."""
    n_steps = len(recording.steps)
    step = steps_of(recording.steps, np.maximum(found.alloc_event, 0))
    end = int(recording.steps.end_event[-1]) if n_steps else 0
    lasts = (found.free_event == ALIVE) | (found.free_event >= end)
    stays = is_gradient & lasts & (step >= 0) & (step < n_steps / 3)
    cleared_in = step[is_gradient & ~lasts & (step >= 0)]
    if n_steps < LEAST_STEPS or len(np.unique(cleared_in)) < n_steps - 1:
        return np.zeros(0, "i8")
    return np.flatnonzero(stays)
