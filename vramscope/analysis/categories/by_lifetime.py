"""Derives a category from the phases in which a block was allocated and freed, where no label exists.

Every rule is a mask over allocations; the first that matches decides. Without a match the category stays
unknown.

A program that runs out of memory in its first forward is the most common failure. What a forward held that
never reached its backward was meant for it, so it counts as activations.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from vramscope.analysis.categories.by_stack import is_bare, is_closure
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.analysis.step_and_phase import steps_of
from vramscope.model.marks import Category, MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.steps.innermost import phases_of
from vramscope.steps.unrecorded import unrecorded


class Reason(IntEnum):
    """Why a block is in its category; ``why.tsv`` says what each means."""

    NONE = 0
    IDENTITY = 1
    SAVED = 2
    RECOMPUTED = 3
    KEPT_GRAPH = 4
    LEFT_BY_BACKWARD = 5
    LEFT_BY_OPTIMIZER = 6
    LOADED = 7
    WITHIN = 8
    WORKSPACE = 9
    COLLECTIVE = 10
    UNFINISHED = 11
    STACKS = 12
    CONSTRUCTED = 13
    HELD = 14


_STRETCH = 1 << 14
"""Allocations per pass: intermediate arrays stay in the processor's cache."""
_FORWARD = (Phase.FORWARD, Phase.LOSS)
_WORK = (*_FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.RECOMPUTE, Phase.EVAL, Phase.DATA)


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """The phases in which each allocation began and ended; one value per row of ``lifetimes``."""

    born_in: Array
    """Row of ``phases`` of the allocation; −1 outside of all phases, and before the trace."""
    phase: Array
    """The ``Phase`` of the allocation; OTHER outside of all phases."""
    step: Array
    dies: Array
    """The event that frees it; the number of events for blocks alive at the end."""
    freed_in: Array
    """Row of ``phases`` of the free; −1 outside of all phases."""
    phases: Phases
    """The phases without those that the user named: these name a line, not what it does."""


def lives_of(recording: Recording, found: Allocations) -> Lives:
    """The phases in which allocations begin and end."""
    return _placed(_program_timeline(recording), found)


@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """One row per interval of forwards that ended early, ordered by its end."""

    start: Array
    """The event after the last completed backward or optimizer step."""
    last_forward: Array
    """The event at which the last forward of the interval begins."""
    end: Array
    """The instant of the failure, or the number of events where the forward still runs."""


@dataclass(frozen=True, slots=True, eq=False)
class _ProgramTimeline:
    """Steps and phases of a recording, prepared once for all allocations."""

    n_events: int
    steps: Steps
    phases: Phases
    """The phases without those that the user named."""
    phase_at: Array
    """Row of ``phases`` at each event; one extra value, −1, for a missing event."""
    is_closed: Array
    """Whether each phase ended; one extra value for a missing phase."""
    starts: Array
    """Events at which phases begin, in order."""
    backwards: Array
    """Events at which backwards begin, in order."""
    first_forward: Array
    """Event at which the first forward of each step begins; −1 for none, and one extra value."""
    unfinished: Unfinished
    """Forwards without their backward."""


def _program_timeline(recording: Recording) -> _ProgramTimeline:
    phases, n_events = recording.phases.rows(recording.phases.phase != Phase.USER), len(recording.trace)
    if is_bare(recording):
        phases = phases.rows(~is_closure(recording, phases))
    phase_at = phases_of(phases, n_events + 1)
    phase_at[-1] = -1
    phase_at[:-1][unrecorded(recording).stand_in(np.arange(n_events))] = -1
    is_closed = _is_closed(phases, recording.marks, n_events)
    # The event of the first forward of each step; see ``_ProgramTimeline.first_forward``.
    first = np.full(len(recording.steps) + 1, -1)
    # In reverse order, so that the first is written last.
    start = phases.start_event[phases.phase == Phase.FORWARD][::-1]
    first[steps_of(recording.steps, start)] = start
    first[-1] = -1
    return _ProgramTimeline(
        n_events=n_events,
        steps=recording.steps,
        phases=phases,
        phase_at=phase_at,
        is_closed=padded(is_closed),
        starts=np.sort(phases.start_event),
        backwards=np.sort(phases.start_event[phases.phase == Phase.BACKWARD]),
        first_forward=first,
        unfinished=unfinished_forwards(recording, phases, is_closed),
    )


def _placed(program: _ProgramTimeline, found: Allocations) -> Lives:
    # A block that predates the trace has event −1: the index of the extra value, which is none.
    born_in = program.phase_at[found.alloc_event]
    dies = np.where(found.free_event == ALIVE, program.n_events, found.free_event)
    return Lives(
        born_in=born_in,
        phase=np.where(born_in >= 0, padded(program.phases.phase)[born_in], Phase.OTHER),
        step=np.where(found.alloc_event >= 0, steps_of(program.steps, found.alloc_event), -1),
        dies=dies,
        freed_in=program.phase_at[np.where(dies < 0, program.n_events, dies)],
        phases=program.phases,
    )


def padded(values: Array) -> Array:
    """*values* with one extra 0 for the index −1."""
    return np.append(values, 0)


def by_life(recording: Recording, found: Allocations) -> tuple[Array, Array, Array]:
    """Category, ``Reason`` and ``Phase`` of birth of every allocation."""
    program = _program_timeline(recording)
    category, reason, phase = (np.empty(len(found), "u1") for _ in range(3))
    for first in range(0, len(found), _STRETCH):
        part = slice(first, first + _STRETCH)
        here = found.rows(part)
        lives = _placed(program, here)
        rules = _rules(program, here, lives)
        fits = [mask for mask, _, _ in rules]
        category[part] = np.select(fits, [value for _, value, _ in rules], Category.UNKNOWN)
        reason[part] = np.select(fits, [value for _, _, value in rules], Reason.NONE)
        phase[part] = lives.phase
    return category, reason, phase


def _rules(
    program: _ProgramTimeline, found: Allocations, lives: Lives
) -> list[tuple[Array, Category, Reason]]:
    """The rules with their category and reason, most certain first."""
    phase, dies, inside = lives.phase, lives.dies, lives.born_in >= 0
    forward = inside & np.isin(phase, _FORWARD)
    end = padded(lives.phases.end_event)[lives.born_in]
    left = inside & (dies >= end) & (program.is_closed[lives.born_in] != 0)
    served, is_early = _backward_of(program, found.alloc_event, lives)
    # Blocks that a backward of their own step freed, also from outside of every module, such as what a loss
    # function saves: only autograd frees those there.
    is_backward = (lives.freed_in >= 0) & (padded(lives.phases.phase)[lives.freed_in] == Phase.BACKWARD)
    again = (
        is_backward
        & (lives.freed_in != lives.born_in)
        & (lives.step >= 0)
        & (lives.step == steps_of(program.steps, found.free_event))
    )
    # Before its step's first forward, or before the first step and freed later.
    is_before = _before_steps(program.steps, found.alloc_event) & (found.free_event >= 0)
    is_before |= found.alloc_event < program.first_forward[lives.step]
    held = held_by_unfinished(program.unfinished, found.alloc_event, dies, phase, inside)
    return [
        (left & forward & served, Category.ACTIVATION, Reason.SAVED),
        (~inside & again, Category.ACTIVATION, Reason.SAVED),
        (held, Category.ACTIVATION, Reason.UNFINISHED),
        (left & (phase == Phase.RECOMPUTE), Category.ACTIVATION, Reason.RECOMPUTED),
        (left & (phase == Phase.BACKWARD) & again, Category.ACTIVATION, Reason.KEPT_GRAPH),
        (left & (phase == Phase.BACKWARD), Category.GRADIENT, Reason.LEFT_BY_BACKWARD),
        (left & (phase == Phase.OPTIMIZER), Category.OPTIMIZER_STATE, Reason.LEFT_BY_OPTIMIZER),
        (left & (phase == Phase.DATA), Category.INPUT, Reason.LOADED),
        (~inside & served & is_before, Category.INPUT, Reason.LOADED),
        (inside & (dies < end), Category.TEMPORARY, Reason.WITHIN),
        (left & forward & is_early, Category.TEMPORARY, Reason.WITHIN),
        (~inside & _within_a_gap(program, found, lives), Category.TEMPORARY, Reason.WITHIN),
    ]


def _is_closed(phases: Phases, marks: Marks, n_events: int) -> Array:
    """Whether each phase ended: before the recording did, or at the same time by a mark of its own."""
    ends = marks.rows(marks.kind == MarkKind.PHASE_END)
    closed: Array = phases.end_event < n_events
    for phase in Phase:
        mine = phases.phase == phase
        closed[mine] |= np.isin(phases.end_ns[mine], ends.time_ns[ends.phase == phase])
    # A loss inferred from a gap ends where backward begins, without a mark of its own.
    closed |= phases.phase == Phase.LOSS
    return closed


def _backward_of(program: _ProgramTimeline, born: Array, lives: Lives) -> tuple[Array, Array]:
    """Two masks: whether the block served a backward of its step, and whether it was freed before that
    backward.

    A block serves a backward that began during its life, if it is freed no later than in the next step.
    """
    steps, n_events = program.steps, program.n_events
    following = np.append(program.backwards, n_events + 1)[np.searchsorted(program.backwards, born)]
    ends = np.append(steps.end_event, [n_events, n_events])
    # A block from before the first step belongs to it: its first batch.
    step = np.where(_before_steps(steps, born), 0, lives.step)
    step_end = ends[np.where(step >= 0, step, len(steps))]
    next_end = np.where(step >= 0, ends[np.minimum(step + 1, len(steps))], step_end)
    is_ours = (following < step_end) & (following <= n_events)
    return (
        is_ours & (following <= lives.dies) & (lives.dies <= next_end),
        is_ours & (lives.dies < following),
    )


def _before_steps(steps: Steps, born: Array) -> Array:
    start = steps.start_event
    return (born >= 0) & (born < (start[0] if len(start) else -1))


def _within_a_gap(program: _ProgramTimeline, found: Allocations, lives: Lives) -> Array:
    """Whether it was allocated and freed in a step between the same two phases.

    A step without a marked forward does not count: the forward itself, with all that it saves, lies in such a
    gap.
    """
    place = np.searchsorted(program.starts, found.alloc_event, side="right")
    following = np.append(program.starts, program.n_events)[place]
    is_marked = program.first_forward[lives.step] >= 0
    return (lives.step >= 0) & is_marked & (lives.dies < following)


def unfinished_forwards(recording: Recording, phases: Phases, is_closed: Array) -> Unfinished:
    """Find the forwards that ran out of memory, and the forward that runs when the trace ends.

    Marks say when memory ran out; the simulated device marks that too, but its program goes on. *phases* are
    without those that the user named, and *is_closed* says which of them ended.
    """
    marks = recording.marks
    failed = marks.event[marks.kind == MarkKind.OOM] if recording.source != "simulated" else []
    is_open = ~is_closed.astype(bool) & np.isin(phases.phase, _FORWARD)
    ends = {*np.asarray(failed).tolist(), *([len(recording.trace)] if is_open.any() else [])}
    work = phases.rows(np.isin(phases.phase, _WORK))
    found = [stretch for end in sorted(ends) if (stretch := _stretch(work, end)) is not None]
    columns = np.array(found, dtype="i8").reshape(-1, 3)
    return Unfinished(*columns.T)


def _stretch(work: Phases, end: int) -> tuple[int, int, int] | None:
    """Start, last forward and end; None where the last phase before *end* is no forward."""
    begun = np.flatnonzero(work.start_event <= end)
    if not len(begun) or work.phase[begun[-1]] not in _FORWARD:
        return None
    is_complete = np.isin(work.phase, (Phase.BACKWARD, Phase.OPTIMIZER)) & (work.end_event < end)
    start = work.end_event[is_complete].max(initial=0)
    return int(start), int(work.start_event[begun[-1]]), end


def held_by_unfinished(
    unfinished: Unfinished, born: Array, dies: Array, phase: Array, inside: Array
) -> Array:
    """Whether each allocation was made by such a forward, or by the loss after it, and alive at its end.

    *phase* and *inside* are the ``Phase`` of birth, and whether there is one.
    """
    if not len(unfinished.end):
        return np.zeros(len(born), dtype="?")
    row = np.minimum(np.searchsorted(unfinished.end, born, side="right"), len(unfinished.end) - 1)
    is_alive = (unfinished.start[row] <= born) & (born < unfinished.end[row]) & (unfinished.end[row] <= dies)
    is_forward = inside & np.isin(phase, _FORWARD)
    is_loss = ~inside & (born >= unfinished.last_forward[row])
    return is_alive & (is_forward | is_loss)
