"""What do its birth and its death say a block was for, where nobody knew the tensor?

Every rule is a mask over allocations; the first that fits decides. What no rule fits stays unknown.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis._place import phases_of, steps_of
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.model.marks import Category, MarkKind, Marks, Phase, Phases
from vramscope.model.recording import Recording


class Reason(IntEnum):
    """Why a block is in its category."""

    NONE = 0
    """Nothing is known."""
    IDENTITY = 1
    """Capture knew the tensor by its storage."""
    SAVED = 2
    """Made on the way forward and alive when a backward of its step began."""
    RECOMPUTED = 3
    """Made by a forward that a checkpoint ran again, for the backward around it."""
    KEPT_GRAPH = 4
    """Made by a backward and freed by a later one of the same step: a graph of the gradient itself."""
    LEFT_BY_BACKWARD = 5
    """Outlived the backward that made it."""
    LEFT_BY_OPTIMIZER = 6
    """Outlived the optimizer's step that made it."""
    LOADED = 7
    """Made by a data loader, or between the phases before a step's first forward, and there in backward."""
    WITHIN = 8
    """Born and dead within one phase, or between the same two, or before backward had any use of it."""
    WORKSPACE = 9
    """Of the size and life of a library's workspace."""
    COLLECTIVE = 10
    """Asked for by torch's code for several devices."""


_FORWARD = (Phase.FORWARD, Phase.LOSS)
_COMPUTING = (*_FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.EVAL)


@dataclass(frozen=True, slots=True)
class Lives:
    """Where each allocation began and ended, as the rules need it; one value per row of ``lifetimes``."""

    born_in: NDArray[Any]
    """Row of ``phases``; −1 outside of all of them, and before the trace."""
    phase: NDArray[Any]
    """A ``Phase``; OTHER outside."""
    step: NDArray[Any]
    dies: NDArray[Any]
    """The event; the number of events for what is alive at the end."""
    freed_in: NDArray[Any]
    """Row of ``phases``; −1 outside."""
    phases: Phases
    """Without those that the user named: they say what a line is called, not what it does."""


def lives_of(recording: Recording, found: Allocations) -> Lives:
    """Places of birth and death."""
    known = recording.phases.rows(recording.phases.phase != Phase.USER)
    n_events = len(recording.trace)
    row_at = np.append(phases_of(known, n_events), -1)
    born_in = np.where(found.alloc_event >= 0, row_at[found.alloc_event], -1)
    dies = np.where(found.free_event == ALIVE, n_events, found.free_event)
    return Lives(
        born_in=born_in,
        phase=np.where(born_in >= 0, padded(known.phase)[born_in], Phase.OTHER),
        step=np.where(found.alloc_event >= 0, steps_of(recording.steps, found.alloc_event), -1),
        dies=dies,
        freed_in=row_at[np.where(dies < 0, n_events, dies)],
        phases=known,
    )


def padded(values: NDArray[Any]) -> NDArray[Any]:
    """One more value, for −1."""
    return np.append(values, 0)


def by_life(recording: Recording, found: Allocations) -> tuple[NDArray[Any], NDArray[Any]]:
    """Category and ``Reason`` of every allocation."""
    lives = lives_of(recording, found)
    rules = _rules(recording, found, lives)
    fits = [mask for mask, _, _ in rules]
    category = np.select(fits, [value for _, value, _ in rules], Category.UNKNOWN)
    reason = np.select(fits, [value for _, _, value in rules], Reason.NONE)
    return category, reason


def _rules(
    recording: Recording, found: Allocations, lives: Lives
) -> list[tuple[NDArray[Any], Category, Reason]]:
    """Best knowledge first."""
    phase, dies, inside = lives.phase, lives.dies, lives.born_in >= 0
    forward = inside & np.isin(phase, _FORWARD)
    end = padded(lives.phases.end_event)[lives.born_in]
    closed = padded(_is_closed(lives.phases, recording.marks, len(recording.trace)))[lives.born_in]
    left = inside & (dies >= end) & (closed != 0)
    served, is_early = _backward_of(recording, found.alloc_event, lives)
    again = _freed_by_backward(recording, found, lives)
    return [
        (left & forward & served, Category.ACTIVATION, Reason.SAVED),
        (~inside & again, Category.ACTIVATION, Reason.SAVED),
        (left & (phase == Phase.RECOMPUTE), Category.ACTIVATION, Reason.RECOMPUTED),
        (left & (phase == Phase.BACKWARD) & again, Category.ACTIVATION, Reason.KEPT_GRAPH),
        (left & (phase == Phase.BACKWARD), Category.GRADIENT, Reason.LEFT_BY_BACKWARD),
        (left & (phase == Phase.OPTIMIZER), Category.OPTIMIZER_STATE, Reason.LEFT_BY_OPTIMIZER),
        (left & (phase == Phase.DATA), Category.INPUT, Reason.LOADED),
        (~inside & served & _before_forward(recording, found, lives), Category.INPUT, Reason.LOADED),
        (inside & (dies < end), Category.TEMPORARY, Reason.WITHIN),
        (left & forward & is_early, Category.TEMPORARY, Reason.WITHIN),
        (~inside & _within_a_gap(recording, found, lives), Category.TEMPORARY, Reason.WITHIN),
    ]


def _freed_by_backward(recording: Recording, found: Allocations, lives: Lives) -> NDArray[Any]:
    """Whether a block was freed within a backward of the step that it was born in.

    Born outside of every module, as what a loss function saves: only autograd lets go of it there.
    """
    is_backward = (lives.freed_in >= 0) & (padded(lives.phases.phase)[lives.freed_in] == Phase.BACKWARD)
    freed: NDArray[Any] = (
        is_backward
        & (lives.freed_in != lives.born_in)
        & (lives.step >= 0)
        & (lives.step == steps_of(recording.steps, found.free_event))
    )
    return freed


def _is_closed(phases: Phases, marks: Marks, n_events: int) -> NDArray[Any]:
    """Which phases ended: before the recording did, or with it by a mark of their own."""
    ends = marks.rows(marks.kind == MarkKind.PHASE_END)
    closed: NDArray[Any] = phases.end_event < n_events
    for phase in Phase:
        mine = phases.phase == phase
        closed[mine] |= np.isin(phases.end_ns[mine], ends.time_ns[ends.phase == phase])
    # The program's own loss ends where backward begins, by no mark of its own.
    closed |= phases.phase == Phase.LOSS
    return closed


def _backward_of(recording: Recording, born: NDArray[Any], lives: Lives) -> tuple[NDArray[Any], NDArray[Any]]:
    """Whether a backward of its step began while the block lived, and it died no later than the next step;
    whether it died before that backward began."""
    steps = recording.steps
    begins = np.sort(lives.phases.start_event[lives.phases.phase == Phase.BACKWARD])
    n_events = len(recording.trace)
    following = np.append(begins, n_events + 1)[np.searchsorted(begins, born)]
    ends = np.append(steps.end_event, [n_events, n_events])
    # What comes before the first step was made for it: its first batch.
    step = np.where(_before_steps(recording, born), 0, lives.step)
    step_end = ends[np.where(step >= 0, step, len(steps))]
    next_end = np.where(step >= 0, ends[np.minimum(step + 1, len(steps))], step_end)
    is_ours = (following < step_end) & (following <= n_events)
    return (
        is_ours & (following <= lives.dies) & (lives.dies <= next_end),
        is_ours & (lives.dies < following),
    )


def _before_steps(recording: Recording, born: NDArray[Any]) -> NDArray[Any]:
    start = recording.steps.start_event
    before: NDArray[Any] = (born >= 0) & (born < (start[0] if len(start) else -1))
    return before


def _before_forward(recording: Recording, found: Allocations, lives: Lives) -> NDArray[Any]:
    """Whether it was made in a step before that step's first forward, or before the first step and freed."""
    n_steps = len(recording.steps)
    first = np.full(n_steps + 1, -1)
    is_forward = lives.phases.phase == Phase.FORWARD
    # Backwards, so that the first is written last.
    start = lives.phases.start_event[is_forward][::-1]
    first[steps_of(recording.steps, start)] = start
    first[-1] = -1
    is_first_batch = _before_steps(recording, found.alloc_event) & (found.free_event >= 0)
    before: NDArray[Any] = is_first_batch | (found.alloc_event < first[lives.step])
    return before


def _within_a_gap(recording: Recording, found: Allocations, lives: Lives) -> NDArray[Any]:
    """Whether it was born and died in a step between the same two phases."""
    starts = np.sort(lives.phases.start_event)
    n_events = len(recording.trace)
    following = np.append(starts, n_events)[np.searchsorted(starts, found.alloc_event, side="right")]
    within: NDArray[Any] = (lives.step >= 0) & (lives.dies < following)
    return within
