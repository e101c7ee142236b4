"""Computes the summary of one rank, as ``model/rank_summary.py`` describes it.

A recorder that knows the course of its run and a reader that has the whole recording compute the same
summary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis.folding import bytes_by_line, fold
from vramscope.analysis.peak import bare_highs
from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.step_peaks import IntervalPeaks, step_peaks
from vramscope.following.course import Course, LiveBlocks, advanced, begin
from vramscope.model.codes import QUANTITIES
from vramscope.model.counters import Counters
from vramscope.model.device import Device
from vramscope.model.marks import Note, Phase, Phases, Steps
from vramscope.model.rank_summary import DeviceSummary, Failure, LineBytes, PeakPlace, StepRows
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array

MOST_STEPS = 512
"""The most rows of steps: of a longer run, a row has the maxima of 2, 4, 8 … steps."""
_MOST_LINES = 40
_MOST_RETAINED = 12
_MOST_FRAMES = 4
_MOST_STACKS = 400
"""The most stacks that are folded to lines: folding takes 1 µs per frame."""
_MOST_NOTES = 20
_LONGEST_TEXT = 300
_WARM_UP_STEPS = 2
"""Optimizer states and caches are allocated in the first steps and stay: that is no growth."""


class StepsWithPeaks(NamedTuple):
    """Steps and phases with their peaks."""

    steps: Steps
    per_step: IntervalPeaks
    phases: Mapping[str, int]


def device_summary(recording: Recording) -> DeviceSummary:
    """The summary of a whole recording.

    Takes 0.5 s per million events.
    """
    has_events = bool(len(recording.trace) or len(recording.initial.segments))
    past, peaks = recording.past, step_peaks(recording)
    course = advanced(begin(recording.initial, past.n_events), recording.trace, np.zeros(0, "i8"))
    shifted = replace(
        recording.steps,
        start_event=recording.steps.start_event + past.n_events,
        end_event=recording.steps.end_event + past.n_events,
    )
    steps = Steps.joined(past.steps, shifted)
    per_step = IntervalPeaks.joined(peaks.past_per_step, peaks.per_step)
    found = summary_of_course(
        course,
        StepsWithPeaks(steps, per_step, phase_peaks(peaks.per_phase)),
        recording.stacks,
        recording.device,
        recording.source,
    )
    for quantity, high in bare_highs(recording).items():
        if high.n_bytes > found.peak[quantity].n_bytes:
            found = replace(found, peak={**found.peak, quantity: PeakPlace(high.n_bytes, high.step, 0)})
    found = replace(found, samples=sample_peaks(recording.counters), notes=short_notes(recording.notes))
    return found if has_events else _from_samples(recording, found)


def summary_of_course(
    course: Course, known: StepsWithPeaks, stacks: Stacks, device: Device, source: str
) -> DeviceSummary:
    """The summary of a course.

    It is without samples and notes. Instants of *known* are counted from the first event ever; *stacks* are
    those that the blocks of *course* refer to.
    """
    steps = known.steps
    lines = _lines(course.at_peak, stacks)
    return replace(
        figures_of_course(course, known),
        device=device,
        source=source,
        lines=lines[:_MOST_LINES],
        other_bytes=sum(line.n_bytes for line in lines[_MOST_LINES:]),
        retained=_retained(course, steps, stacks),
        failure=_failure(course, steps, stacks),
    )


def figures_of_course(course: Course, known: StepsWithPeaks) -> DeviceSummary:
    """The part of the summary of a course that needs no stacks: levels, peaks, steps and phases."""
    steps = known.steps
    return DeviceSummary(
        n_events=course.n_events,
        end=dict(course.level),
        peak={
            name: PeakPlace(high.n_bytes, _number(steps, high.instant), high.time_ns)
            for name, high in course.highest.items()
        },
        steps=_rows_of(steps, known.per_step.allocated_bytes, known.per_step.reserved_bytes),
        phases=known.phases,
        n_failed=course.n_failed,
    )


def phase_peaks(per_phase: IntervalPeaks) -> dict[str, int]:
    """The maximum of allocated bytes in each phase, over all steps."""
    named = np.unique(per_phase.phase[per_phase.phase != Phase.OTHER]).tolist()
    return {
        Phase(phase).name.lower(): int(per_phase.allocated_bytes[per_phase.phase == phase].max())
        for phase in named
    }


def in_order(phases: Mapping[str, int]) -> dict[str, int]:
    """The same maxima, in the order of ``Phase`` and not in that in which phases were first read."""
    return {phase.name.lower(): phases[phase.name.lower()] for phase in Phase if phase.name.lower() in phases}


def sample_peaks(counters: Counters) -> dict[str, int]:
    """The maximum of each sampled quantity in bytes, where one is known."""
    most = {
        name: int(column.max(initial=-1)) for name, column in counters.columns() if name.endswith("_bytes")
    }
    return {name: n_bytes for name, n_bytes in most.items() if n_bytes >= 0 and "drift" not in name}


def short_notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    """The first notes of a recording, their texts shortened."""
    return tuple(replace(note, text=note.text[:_LONGEST_TEXT]) for note in notes[:_MOST_NOTES])


def _from_samples(recording: Recording, found: DeviceSummary) -> DeviceSummary:
    """The peaks of a recording that has samples and no events."""
    if not len(recording.counters):
        return replace(found, is_exact=False)
    sampled, unknown = sampled_peaks(recording), np.full(len(recording.steps), -1)
    known = {"allocated": sampled.allocated_bytes, "reserved": sampled.reserved_bytes}
    per_step = sampled.per_step.allocated_bytes, sampled.per_step.reserved_bytes
    return replace(
        found,
        is_exact=False,
        peak={name: PeakPlace(max(n_bytes, 0), None, 0) for name, n_bytes in known.items()},
        end={},
        steps=_rows_of(recording.steps, *(per_step if len(sampled.per_step) else (unknown, unknown))),
        phases={},
    )


def _number(steps: Steps, instant: int) -> int | None:
    row = int(steps_of(steps, np.array([max(instant - 1, 0)]))[0])
    return None if row < 0 else int(steps.index[row])


def _failure(course: Course, steps: Steps, stacks: Stacks) -> Failure | None:
    known = course.failed
    if known is None:
        return None
    return Failure(
        step=_number(steps, known.event),
        time_ns=known.time_ns,
        requested_bytes=known.requested_bytes,
        reserved_bytes=known.reserved_bytes,
        allocated_bytes=int(known.live.block_size.sum()),
        lines=_lines(known.live, stacks)[:_MOST_LINES],
    )


def _retained(course: Course, steps: Steps, stacks: Stacks) -> tuple[LineBytes, ...]:
    """Blocks at the peak that were allocated after the first steps and before the last two."""
    if len(steps) < _WARM_UP_STEPS + 2:
        return ()
    live = course.at_peak
    peak_row = int(np.searchsorted(steps.start_event, course.highest["allocated"].instant, side="right")) - 1
    row = np.searchsorted(steps.start_event, live.born, side="right") - 1
    is_old = (row >= _WARM_UP_STEPS) & (row < peak_row - 1)
    found = _lines(live.rows(is_old), stacks, row[is_old])
    return tuple(line for line in found if line.n_steps > 1)[:_MOST_RETAINED]


def _lines(live: LiveBlocks, stacks: Stacks, step: Array | None = None) -> tuple[LineBytes, ...]:
    """The bytes of *live* by line, largest first; *step* is the step in which each block was allocated."""
    ids, which = np.unique(live.stack_id, return_inverse=True)
    which = which.reshape(-1)
    n_bytes = np.bincount(which, live.block_size, len(ids)).astype("i8")
    count = np.bincount(which, minlength=len(ids))
    order = np.lexsort((ids, -n_bytes))
    chosen, rest = order[:_MOST_STACKS], order[_MOST_STACKS:]
    pruned, new_ids = _pruned(stacks, ids[chosen])
    folded = fold(pruned)
    rows = bytes_by_line(folded, new_ids, n_bytes[chosen], count[chosen])
    # The row that each stack is part of.
    keys = {
        pair: row
        for row, pair in enumerate(
            zip(folded.reads_as[rows.folded_id].tolist(), rows.via.tolist(), strict=True)
        )
    }
    place = folded.place[new_ids]
    pairs = zip(folded.reads_as[place].tolist(), folded.via[new_ids].tolist(), strict=True)
    row_of_stack = np.array([keys[pair] for pair in pairs], "i8")
    n_steps = [0] * len(rows.n_bytes)
    if step is not None:
        n_steps = _distinct_steps(row_of_stack, chosen, which, step, len(rows.n_bytes))
    found = [
        LineBytes(
            int(rows.n_bytes[row]),
            int(rows.count[row]),
            folded.stacks.frames(int(rows.folded_id[row]))[:_MOST_FRAMES],
            folded.strings[int(rows.via[row])] if rows.via[row] else "",
            n_steps[row],
        )
        for row in range(len(rows.n_bytes))
    ]
    if len(rest):
        found.append(LineBytes(int(n_bytes[rest].sum()), int(count[rest].sum()), (), ""))
    return tuple(sorted(found, key=lambda line: (-line.n_bytes, line.frames, line.via)))


def _distinct_steps(row_of_stack: Array, chosen: Array, which: Array, step: Array, n_rows: int) -> list[int]:
    row_of = np.full(int(which.max(initial=-1)) + 1, -1)
    row_of[chosen] = row_of_stack
    row = row_of[which]
    pairs = np.unique(np.stack([row[row >= 0], step[row >= 0]]), axis=1)
    return np.bincount(pairs[0], minlength=n_rows).tolist()


def _pruned(stacks: Stacks, ids: Array) -> tuple[Stacks, Array]:
    """The given stacks alone, with their new ids: folding all stacks of a long run would take too long."""
    ids = np.where(ids < len(stacks), ids, 0)
    is_needed = np.zeros(len(stacks), "?")
    is_needed[0] = True
    climbing = np.unique(ids)
    while len(climbing):
        climbing = climbing[~is_needed[climbing]]
        is_needed[climbing] = True
        climbing = np.unique(stacks.parent[climbing])
    rows = np.flatnonzero(is_needed)
    new = np.cumsum(is_needed) - 1
    kept = stacks.rows(rows)
    strings, index = np.unique(np.concatenate([kept.function, kept.file, [0]]), return_inverse=True)
    index = index.reshape(-1).astype("i4")
    return (
        Stacks(
            parent=new[kept.parent].astype("i4"),
            function=index[: len(rows)],
            file=index[len(rows) : 2 * len(rows)],
            line=kept.line,
            strings=tuple(stacks.strings[i] for i in strings.tolist()),
        ),
        new[ids],
    )


def _rows_of(steps: Steps, allocated: Array, reserved: Array) -> StepRows:
    """The rows of all steps; neighbors are joined until there are few, so maxima stay exact."""
    rows, size = StepRows.of_steps(steps, allocated, reserved), 1
    while len(rows) > MOST_STEPS:
        size *= 2
        rows = rows.grouped(size)
    return rows


def joined_rows(older: StepRows, newer: StepRows) -> StepRows:
    """The rows of all steps, in groups of the size that they have if all are grouped at once.

    *older* are as this function returned them, *newer* has one row per step after these; at most
    ``MOST_STEPS`` rows are returned.
    """
    rows, size = StepRows.joined(older, newer), 1
    n_steps = int(rows.n_steps.sum())
    while -(-n_steps // size) > MOST_STEPS:
        size *= 2
    return rows.grouped(size)


def course_steps(course: Course, steps: Steps, phases: Phases, settled: Any) -> StepsWithPeaks:
    """Steps and phases with their peaks, from the stretches of a course.

    The cuts of *course* are the instants of all marks; the first steps are those of *settled*, whose
    stretches are gone. Bytes are −1 for a step without any instant between marks.
    """
    n_settled = len(settled)
    later = steps.rows(slice(n_settled, None))
    end = np.minimum(later.end_event, course.n_events)
    here = course.stretches.between(np.minimum(later.start_event, course.n_events), end, course.n_events)
    per_step = IntervalPeaks.of(
        step=np.arange(len(steps)),
        **{f"{name}_bytes": np.concatenate([getattr(settled, name), here[name]]) for name in QUANTITIES},
    )
    first = int(course.stretches.event[0]) if len(course.stretches) else 0
    known = phases.rows((phases.start_event >= first) & (phases.start_event <= course.n_events))
    inside = course.stretches.between(
        known.start_event, np.minimum(known.end_event, course.n_events), course.n_events
    )
    per_phase = IntervalPeaks.of(phase=known.phase, allocated_bytes=inside["allocated"])
    return StepsWithPeaks(steps, per_step, phase_peaks(per_phase))
