"""Gradients that need not exist: those of the step before, and copies beside DDP's buckets."""

from bisect import bisect_left
from dataclasses import replace
from itertools import compress, pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from vramscope.analysis.categories import Assigned, assign, names_of, undivided
from vramscope.analysis.categories.by_lifetime import Lives, lives_of
from vramscope.analysis.folding import files_ending, functions_named
from vramscope.analysis.lifetimes import ALIVE, Allocations, summed
from vramscope.analysis.shared_results import memoized
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.timeline import timeline
from vramscope.analysis.what_if import replay, request_sequence, with_frees
from vramscope.model.marks import Category, MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array, rows_within

LEAST_STEPS = 3
"""Fewest steps that show which gradients are cleared."""
_MAKE_BUCKETS = ("_ddp_init_helper", "_pre_forward")
"""Functions of DistributedDataParallel that make buckets: at creation, and again in its second forward."""
_THEIR_FILE = "torch/nn/parallel/distributed.py"
_MOST_REPLAYED = 200_000
"""Events that are replayed within a second or two."""
_Backward: TypeAlias = tuple[int, dict[int, list[int]]]
"""Where it begins, and its temporaries by their size, as they are freed."""


def is_bucket(stacks: Stacks, found: Allocations) -> Array:
    """Return which allocations are the buckets that DDP reduces gradients in."""
    # Of the innermost frame alone: functions that it calls make other buffers.
    return (functions_named(stacks, _MAKE_BUCKETS) & files_ending(stacks, _THEIR_FILE))[found.stack_id]


def of_parameters(assigned: Assigned, lives: Lives) -> Array:
    """Return which gradients an optimizer may have: where capture labels any, those with a label.

    None has the gradient of an activation, as of one that retain_grad() keeps, or whose requires_grad a hook
    sets; nor one that a program asks for by itself, as of each sample.
    """
    is_gradient: Array = assigned.category == Category.GRADIENT
    is_labelled = assigned.label >= 0
    in_zero_grad = np.append(lives.phases.phase, Phase.OTHER)[lives.freed_in] == Phase.ZERO_GRAD
    return is_gradient & (is_labelled | in_zero_grad) if (is_gradient & is_labelled).any() else is_gradient


class Cleared(NamedTuple):
    """A run whose gradients go right after the step of the optimizer that owns them."""

    extra_bytes: Array
    """The saved bytes (negative) at each instant, of blocks as large as they were."""
    n_outlasted: Array
    """Further steps of its optimizer that each allocation outlasts; 0 for what is no gradient."""
    saved_bytes: int
    """What the peak is lower by; by a replay, which places blocks anew, where there are not too many."""


@memoized
def cleared(recording: Recording, found: Allocations) -> Cleared:
    """Return what would change if each gradient were freed right after its optimizer's step."""
    level = timeline(recording).allocated_bytes
    free_event, n_outlasted = _freed_early(recording, found)
    freed = replace(found, free_event=free_event)
    changes = (summed(each, each.block_size, len(level) - 1) for each in (freed, found))
    extra = np.minimum(np.subtract(*changes), 0)
    saved = int(level.max(initial=0) - (level + extra).max(initial=0))
    if saved and len(recording.trace) <= _MOST_REPLAYED:
        program = request_sequence(recording)
        rows = np.flatnonzero(freed.free_event != found.free_event)
        moved = with_frees(program, rows, freed.free_event[rows])
        before, after = (replay(each, program.settings).peak_allocated_bytes for each in (program, moved))
        saved = max(before - after, 0)
    return Cleared(extra, n_outlasted, saved)


def _freed_early(recording: Recording, found: Allocations) -> tuple[Array, Array]:
    """Return the event that frees each allocation, if gradients were cleared by their optimizer's step.

    And the number of further steps that each gradient outlasts.

    What a backward adds to such a gradient takes its place: a temporary of its size. A gradient that outlasts
    a later step of its optimizer, and to which none was added, stays as it is.
    """
    assigned, lives = undivided(assign(recording, found)), lives_of(recording, found)
    is_gradient = of_parameters(assigned, lives)
    is_gradient[forgotten(recording, found, assigned.category == Category.GRADIENT)] = False
    phases, dies = lives.phases, lives.dies.copy()
    ended = recording.marks.of_phase(MarkKind.PHASE_END, Phase.OPTIMIZER)
    optimizers = np.unique(ended.value)
    owner = optimizers if len(optimizers) == 1 else _owners(recording, lives, assigned.label)
    owner = np.where(is_gradient, owner, -1)
    backward = phases.rows(phases.phase == Phase.BACKWARD)
    leads_to = np.append(ended.value, -1)[np.searchsorted(ended.event, backward.start_event)]
    # The first step of the optimizer of each backward; 0 where none follows.
    first_end = np.array([ended.event[ended.value == of][:1].sum() for of in leads_to], "i8")
    within = rows_within(backward.start_event, backward.end_event, found.alloc_event)
    end = np.append(backward.end_event, 0)[within]
    added: list[dict[int, list[int]]] = [{} for _ in leads_to]
    rows = np.flatnonzero(~is_gradient & (within >= 0) & (dies < end))
    for row in rows[np.argsort(dies[rows], kind="stable")].tolist():
        added[within[row]].setdefault(int(found.size[row]), []).append(row)
    n_outlasted = np.zeros(len(found), "i8")
    for of in np.unique(owner[owner != -1]).tolist():
        mine, own_ends = np.flatnonzero(owner == of), np.unique(ended.event[ended.value == of])
        born, gone = (np.searchsorted(own_ends, at[mine], "right") for at in (found.alloc_event, dies))
        n_outlasted[mine] = np.maximum(gone - born - 1, 0)
        # A backward adds to the gradients that it makes where there are none yet; and one of a next phase to
        # those that are left of the phase before.
        is_older = (found.alloc_event[mine] < 0).any()
        adds = is_older | np.isin(leads_to, np.append(leads_to, -2)[within[mine]])
        adds |= first_end >= own_ends.max(initial=0)
        into = list(zip(backward.start_event[adds].tolist(), compress(added, adds), strict=True))
        for row, first, last in zip(*(each.tolist() for each in (mine, born, gone)), strict=True):
            _clear(row, int(found.size[row]), own_ends[first:last].tolist(), dies, into)
    free_event = np.where(dies < len(recording.trace), dies, ALIVE)
    return np.where(dies == lives.dies, found.free_event, free_event), n_outlasted


def _clear(row: int, size: int, ends: list[int], dies: Array, backwards: list[_Backward]) -> None:
    """Free the gradient *row* after each of the *ends* of its optimizer's steps, where that is possible."""
    last = int(dies[row])
    for at, after in pairwise([*ends, last]):
        first, beyond = (bisect_left(backwards, each, key=itemgetter(0)) for each in (at, after))
        again = next(filter(None, (added.get(size) for _, added in backwards[first:beyond])), None)
        if again or after == last:
            dies[row] = at - 1
        if again:
            row = again.pop()
            dies[row] = last


def _owners(recording: Recording, lives: Lives, label: Array) -> Array:
    """Return the optimizer that frees each allocation in its ``zero_grad()``, −1 where none does.

    What lives at the end belongs to the one that freed others of the same label's name.
    """
    begun = recording.marks.of_phase(MarkKind.PHASE_BEGIN, Phase.ZERO_GRAD)
    in_zero_grad = np.append(lives.phases.phase, Phase.OTHER)[lives.freed_in] == Phase.ZERO_GRAD
    by = np.append(begun.value, -1)[np.searchsorted(begun.event, lives.dies, side="right") - 1]
    names = names_of(recording.labels, label)
    of_name = dict(zip(names[in_zero_grad].tolist(), by[in_zero_grad].tolist(), strict=True)) | {"": -1}
    return np.where(in_zero_grad, by, [of_name.get(each, -1) for each in names.tolist()])


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
