"""What do its birth and its death say a block was for, where nobody knew the tensor?

Every rule is a mask over allocations; the first that fits decides. What no rule fits stays unknown.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.categories.by_stack_lives import (
    is_bare,
    is_closure,
)
from vramscope.analysis.categories.unfinished_forwards import (
    Unfinished,
    held_by_unfinished,
    unfinished_forwards,
)
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.analysis.step_and_phase import phases_of, steps_of
from vramscope.model.marks import Category, MarkKind, Marks, Phase, Phases, Steps
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
    UNFINISHED = 11
    """Held by a forward that ran out of memory, or still runs, before its backward."""
    STACKS = 12
    """Nobody marked forward and backward; the stacks of its birth and of what came after tell."""
    CONSTRUCTED = 13
    """Asked for by a module's constructor, and seen by nobody before it was freed or replaced."""


_STRETCH = 1 << 14
"""Allocations at a time: what the rules need in between stays in the processor's cache."""
_FORWARD = (Phase.FORWARD, Phase.LOSS)


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
    return _placed(_course_of(recording), found)


@dataclass(frozen=True, slots=True)
class _Course:
    """What the steps and phases of a recording say, found once for all allocations."""

    n_events: int
    steps: Steps
    phases: Phases
    """Without those that the user named."""
    phase_at: NDArray[Any]
    """Row of ``phases`` at each event; one more value, −1, for what is no event."""
    is_closed: NDArray[Any]
    """Which phases ended; one more value, for none."""
    starts: NDArray[Any]
    """Events at which phases begin, in order."""
    backwards: NDArray[Any]
    """Of these the backwards."""
    first_forward: NDArray[Any]
    """Of each step the event at which its first forward begins; −1 for none, and one more value."""
    unfinished: Unfinished
    """Forwards without their backward."""


def _course_of(recording: Recording) -> _Course:
    phases, n_events = recording.phases.rows(recording.phases.phase != Phase.USER), len(recording.trace)
    if is_bare(recording):
        phases = phases.rows(~is_closure(recording, phases))
    phase_at = phases_of(phases, n_events + 1)
    phase_at[-1] = -1
    is_closed = _is_closed(phases, recording.marks, n_events)
    return _Course(
        n_events=n_events,
        steps=recording.steps,
        phases=phases,
        phase_at=phase_at,
        is_closed=padded(is_closed),
        starts=np.sort(phases.start_event),
        backwards=np.sort(phases.start_event[phases.phase == Phase.BACKWARD]),
        first_forward=_first_forward(recording.steps, phases),
        unfinished=unfinished_forwards(recording, phases, is_closed),
    )


def _placed(course: _Course, found: Allocations) -> Lives:
    # What pre-dates the trace was born at event −1: the last value, which is none.
    born_in = course.phase_at[found.alloc_event]
    dies = np.where(found.free_event == ALIVE, course.n_events, found.free_event)
    return Lives(
        born_in=born_in,
        phase=np.where(born_in >= 0, padded(course.phases.phase)[born_in], Phase.OTHER),
        step=np.where(found.alloc_event >= 0, steps_of(course.steps, found.alloc_event), -1),
        dies=dies,
        freed_in=course.phase_at[np.where(dies < 0, course.n_events, dies)],
        phases=course.phases,
    )


def padded(values: NDArray[Any]) -> NDArray[Any]:
    """One more value, for −1."""
    return np.append(values, 0)


def by_life(recording: Recording, found: Allocations) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Category, ``Reason`` and ``Phase`` of birth of every allocation."""
    course = _course_of(recording)
    category, reason, phase = (np.empty(len(found), "u1") for _ in range(3))
    for first in range(0, len(found), _STRETCH):
        part = slice(first, first + _STRETCH)
        here = found.rows(part)
        lives = _placed(course, here)
        rules = _rules(course, here, lives)
        fits = [mask for mask, _, _ in rules]
        category[part] = np.select(fits, [value for _, value, _ in rules], Category.UNKNOWN)
        reason[part] = np.select(fits, [value for _, _, value in rules], Reason.NONE)
        phase[part] = lives.phase
    return category, reason, phase


def _rules(course: _Course, found: Allocations, lives: Lives) -> list[tuple[NDArray[Any], Category, Reason]]:
    """Best knowledge first."""
    phase, dies, inside = lives.phase, lives.dies, lives.born_in >= 0
    forward = inside & np.isin(phase, _FORWARD)
    end = padded(lives.phases.end_event)[lives.born_in]
    left = inside & (dies >= end) & (course.is_closed[lives.born_in] != 0)
    served, is_early = _backward_of(course, found.alloc_event, lives)
    again = _freed_by_backward(course, found, lives)
    held = held_by_unfinished(course.unfinished, found.alloc_event, dies, phase, inside)
    return [
        (left & forward & served, Category.ACTIVATION, Reason.SAVED),
        (~inside & again, Category.ACTIVATION, Reason.SAVED),
        (held, Category.ACTIVATION, Reason.UNFINISHED),
        (left & (phase == Phase.RECOMPUTE), Category.ACTIVATION, Reason.RECOMPUTED),
        (left & (phase == Phase.BACKWARD) & again, Category.ACTIVATION, Reason.KEPT_GRAPH),
        (left & (phase == Phase.BACKWARD), Category.GRADIENT, Reason.LEFT_BY_BACKWARD),
        (left & (phase == Phase.OPTIMIZER), Category.OPTIMIZER_STATE, Reason.LEFT_BY_OPTIMIZER),
        (left & (phase == Phase.DATA), Category.INPUT, Reason.LOADED),
        (~inside & served & _before_forward(course, found, lives), Category.INPUT, Reason.LOADED),
        (inside & (dies < end), Category.TEMPORARY, Reason.WITHIN),
        (left & forward & is_early, Category.TEMPORARY, Reason.WITHIN),
        (~inside & _within_a_gap(course, found, lives), Category.TEMPORARY, Reason.WITHIN),
    ]


def _freed_by_backward(course: _Course, found: Allocations, lives: Lives) -> NDArray[Any]:
    """Whether a block was freed within a backward of the step that it was born in.

    Born outside of every module, as what a loss function saves: only autograd lets go of it there.
    """
    is_backward = (lives.freed_in >= 0) & (padded(lives.phases.phase)[lives.freed_in] == Phase.BACKWARD)
    freed: NDArray[Any] = (
        is_backward
        & (lives.freed_in != lives.born_in)
        & (lives.step >= 0)
        & (lives.step == steps_of(course.steps, found.free_event))
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


def _backward_of(course: _Course, born: NDArray[Any], lives: Lives) -> tuple[NDArray[Any], NDArray[Any]]:
    """Whether a backward of its step began while the block lived, and it died no later than the next step;
    whether it died before that backward began."""
    steps, n_events = course.steps, course.n_events
    following = np.append(course.backwards, n_events + 1)[np.searchsorted(course.backwards, born)]
    ends = np.append(steps.end_event, [n_events, n_events])
    # What comes before the first step was made for it: its first batch.
    step = np.where(_before_steps(steps, born), 0, lives.step)
    step_end = ends[np.where(step >= 0, step, len(steps))]
    next_end = np.where(step >= 0, ends[np.minimum(step + 1, len(steps))], step_end)
    is_ours = (following < step_end) & (following <= n_events)
    return (
        is_ours & (following <= lives.dies) & (lives.dies <= next_end),
        is_ours & (lives.dies < following),
    )


def _before_steps(steps: Steps, born: NDArray[Any]) -> NDArray[Any]:
    start = steps.start_event
    before: NDArray[Any] = (born >= 0) & (born < (start[0] if len(start) else -1))
    return before


def _first_forward(steps: Steps, phases: Phases) -> NDArray[Any]:
    """See ``_Course.first_forward``."""
    first = np.full(len(steps) + 1, -1)
    # Backwards, so that the first is written last.
    start = phases.start_event[phases.phase == Phase.FORWARD][::-1]
    first[steps_of(steps, start)] = start
    first[-1] = -1
    return first


def _before_forward(course: _Course, found: Allocations, lives: Lives) -> NDArray[Any]:
    """Whether it was made in a step before that step's first forward, or before the first step and freed."""
    is_first_batch = _before_steps(course.steps, found.alloc_event) & (found.free_event >= 0)
    before: NDArray[Any] = is_first_batch | (found.alloc_event < course.first_forward[lives.step])
    return before


def _within_a_gap(course: _Course, found: Allocations, lives: Lives) -> NDArray[Any]:
    """Whether it was born and died in a step between the same two phases.

    Where the step's forward is not marked it lies in such a gap itself, with all that it saves.
    """
    place = np.searchsorted(course.starts, found.alloc_event, side="right")
    following = np.append(course.starts, course.n_events)[place]
    is_marked = course.first_forward[lives.step] >= 0
    within: NDArray[Any] = (lives.step >= 0) & is_marked & (lives.dies < following)
    return within
