"""Computes the peak of each step and of each of its phases."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.sampled_peaks import peaks_between, sampled_peaks
from vramscope.analysis.shared_results import memoized
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.timeline import Totals, timeline
from vramscope.model.codes import QUANTITIES
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.past import Past, most_of
from vramscope.model.recording import Recording
from vramscope.model.table import Array, Bool, Int64, Table, UInt8
from vramscope.steps.unrecorded import unrecorded


@dataclass(frozen=True, slots=True)
class IntervalPeaks(Table):
    """The maximum during each interval, including the level at its start.

    This equals torch's ``max_memory_allocated`` after a reset at the start of the interval.
    """

    step: Int64
    """Row of ``Recording.steps``; −1 outside of every step."""
    phase: UInt8
    """A ``Phase``; OTHER for a whole step, and for events outside of phases."""
    start_event: Int64
    end_event: Int64
    """The exclusive end; for a phase that occurs several times in a step, the end of the last one."""
    requested_bytes: Int64
    allocated_bytes: Int64
    active_bytes: Int64
    reserved_bytes: Int64
    is_lower_bound: Bool
    """Whether it has no events, and its samples do not say all of it: where several threads train."""


@dataclass(frozen=True, slots=True)
class StepPeaks:
    """Peaks per step, and per phase of each step."""

    per_step: IntervalPeaks = field(default_factory=IntervalPeaks.of)
    """Row i belongs to step i."""
    per_phase: IntervalPeaks = field(default_factory=IntervalPeaks.of)
    """One row per (step, phase) that occurred, in order of their first events; of nested phases (a recompute
    in backward) both count.
    """
    past_per_step: IntervalPeaks = field(default_factory=IntervalPeaks.of)
    """Row i belongs to step i of ``Recording.past``, whose events the size cap removed; as exact as the
    others. Instants count from the first event ever.
    """
    past_per_phase: IntervalPeaks = field(default_factory=IntervalPeaks.of)
    outside: IntervalPeaks = field(default_factory=IntervalPeaks.of)
    """One row per interval of events outside of every step, in order: setup, evaluation, checkpoints."""


@memoized
def step_peaks(recording: Recording) -> StepPeaks:
    """Peaks of all steps and phases; 0.2 s per million events."""
    totals, n_events, past = timeline(recording), len(recording.trace), recording.past
    found = _both(recording.steps, recording.phases, n_events, partial(_peaks, totals))
    found = _counted(recording, recording.steps, recording.phases, found)
    outside = _outside(recording.steps, n_events, totals)
    if not past.n_events:
        return StepPeaks(*found, outside=outside)
    removed = _counted(recording, past.steps, past.phases, _of_past(past, totals))
    return StepPeaks(*found, *removed, outside=outside)


def peaks_by_samples(recording: Recording) -> StepPeaks:
    """Peaks of steps and phases of a recording without events, as samples show them; −1 where none does."""
    found, phases = sampled_peaks(recording), recording.phases
    n_bytes, rows = found.per_step.allocated_bytes, np.arange(len(found.per_step))
    per_step = IntervalPeaks.of(step=rows, allocated_bytes=n_bytes, is_lower_bound=~found.per_step.is_exact)
    stretches = phases.step, phases.phase, phases.start_event, phases.end_event
    known = found.per_phase.allocated_bytes if len(found.per_phase) else np.full(len(phases), -1)
    per_phase = _joined(stretches, {"allocated_bytes": known})
    return StepPeaks(per_step, per_phase.rows((per_phase.step >= 0) & (per_phase.allocated_bytes >= 0)))


def _counted(
    recording: Recording, steps: Steps, phases: Phases, found: tuple[IntervalPeaks, IntervalPeaks]
) -> tuple[IntervalPeaks, IntervalPeaks]:
    """Put in the peaks by torch's counters where steps and phases have no events."""
    bare, (per_step, per_phase) = unrecorded(recording), found
    if not len(bare):
        return found
    is_bare = bare.overlap(steps.start_ns, steps.end_ns)
    most, is_exact = peaks_between(recording.counters, steps.start_ns, steps.end_ns)
    if steps is recording.past.steps:  # of the oldest samples the size cap removes every second
        lost = {name: np.where(is_bare & ~is_exact, -1, getattr(per_step, f"{name}_bytes")) for name in most}
        per_step = replace(per_step, **{f"{name}_bytes": values for name, values in lost.items()})
        is_bare &= is_exact
    put_in = _put_in(per_step, np.arange(len(steps)), is_bare, most)
    per_step = replace(per_step, **put_in, is_lower_bound=is_bare & ~is_exact)
    # Between the phases of such a step nothing is known.
    step_is_bare = np.append(is_bare, False)[per_phase.step]
    per_phase = per_phase.rows(~step_is_bare | (per_phase.phase != Phase.OTHER))
    keys, of_phases = (rows.step * len(Phase) + rows.phase for rows in (per_phase, phases))
    is_put_in = bare.overlap(phases.start_ns, phases.end_ns) & np.isin(of_phases, keys)
    phases, of_phases = phases.rows(is_put_in), of_phases[is_put_in]
    most, is_exact = peaks_between(recording.counters, phases.start_ns, phases.end_ns)
    order = np.argsort(keys, kind="stable")
    row = order[np.searchsorted(keys, of_phases, sorter=order)] if len(phases) else np.zeros(0, "i8")
    is_bound = np.isin(np.arange(len(per_phase)), row[~is_exact])
    put_in = _put_in(per_phase, row, np.ones(len(row), "?"), most)
    return per_step, replace(per_phase, **put_in, is_lower_bound=is_bound)


def _put_in(found: IntervalPeaks, row: Array, is_bare: Array, most: dict[str, Array]) -> dict[str, Array]:
    """The columns of *found*, where each such *row* has the maximum of what is known of it."""
    columns = {}
    for name, values in most.items():
        known = is_bare & (values >= 0)
        column = getattr(found, f"{name}_bytes").copy()
        column[row[known]] = -1
        np.maximum.at(column, row[known], values[known])
        columns[f"{name}_bytes"] = column
    return columns


def _outside(steps: Steps, n_events: int, totals: Totals) -> IntervalPeaks:
    """Peaks of the intervals before, between and after the steps."""
    order = np.argsort(steps.start_event, kind="stable")
    ends = np.clip(steps.end_event[order], 0, n_events)
    start = np.append(0, np.maximum.accumulate(ends))
    end = np.append(np.clip(steps.start_event[order], 0, n_events), n_events)
    start, end = start[start < end], end[start < end]
    none = {"step": np.full(len(start), -1), "phase": np.full(len(start), Phase.OTHER)}
    return IntervalPeaks.of(**none, start_event=start, end_event=end, **_peaks(totals, start, end))


def _of_past(past: Past, totals: Totals) -> tuple[IntervalPeaks, IntervalPeaks]:
    """Peaks of removed steps; the oldest ones have their peaks already, and no phases."""
    n_summarized, end = len(past.summarized), past.n_events + len(totals) - 1
    phases = replace(past.phases, step=np.where(past.phases.step < 0, -1, past.phases.step - n_summarized))
    later = past.steps.rows(slice(n_summarized, None))
    per_step, per_phase = _both(later, phases, end, partial(_past_peaks, past, totals))
    old, bytes_of = past.summarized, {f"{name}_bytes": getattr(past.summarized, name) for name in QUANTITIES}
    oldest = IntervalPeaks.of(start_event=old.start_event, end_event=old.end_event, **bytes_of)
    steps = replace(IntervalPeaks.joined(oldest, per_step), step=np.arange(len(past.steps)))
    step = np.where(per_phase.step < 0, -1, per_phase.step + n_summarized)
    return steps, replace(per_phase, step=step)


def _past_peaks(past: Past, totals: Totals, start: Array, end: Array) -> dict[str, Array]:
    """The maximum of each quantity over the instants *start* to *end*, both included.

    Instants count from the first event ever, and must be those of marks, where the stored peaks begin and
    end; −1 where they are not.
    """
    low, high = (np.clip(at - past.n_events, 0, len(totals)) for at in (start, end + 1))
    return {
        f"{name}_bytes": np.maximum(before, most_of(getattr(totals, f"{name}_bytes"), low, high))
        for name, before in past.peaks.between(start, end, past.n_events).items()
    }


def _both(
    steps: Steps, phases: Phases, n_events: int, peaks: Callable[..., dict[str, Array]]
) -> tuple[IntervalPeaks, IntervalPeaks]:
    """Peaks per step and per phase; *peaks* computes those of intervals."""
    rows = {
        "step": np.arange(len(steps)),
        "phase": np.full(len(steps), Phase.OTHER),
        "start_event": steps.start_event,
        "end_event": steps.end_event,
    }
    per_step = peaks(steps.start_event, steps.end_event)
    stretches = _stretches(steps, phases, n_events)
    return IntervalPeaks.of(**rows, **per_step), _joined(stretches, peaks(stretches[2], stretches[3]))


def _peaks(totals: Totals, start: Array, end: Array) -> dict[str, Array]:
    """The maximum of each quantity over the instants *start* to *end*, both included."""
    # In a live run the marks may be ahead of the events.
    first = np.minimum(start, len(totals) - 1)
    last = np.clip(end, first, len(totals) - 1)
    return {
        f"{name}_bytes": most_of(getattr(totals, f"{name}_bytes"), first, last + 1) for name in QUANTITIES
    }


def _stretches(steps: Steps, phases: Phases, n_events: int) -> tuple[Array, Array, Array, Array]:
    """Step, phase, start and end of every phase, and of every run of events of a step outside of phases."""
    marks = (steps.start_event, steps.end_event, phases.start_event, phases.end_event)
    # Nothing changes between two neighboring marks.
    edges = np.unique(np.clip(np.concatenate([[0, n_events], *marks]), 0, n_events))
    step = steps_of(steps, edges[:-1])
    # Whether each event lies in any phase.
    events = edges[:-1]
    real = phases.rows(phases.start_event < phases.end_event)
    n_begun = np.searchsorted(np.sort(real.start_event), events, side="right")
    n_ended = np.searchsorted(np.sort(real.end_event), events, side="right")
    idle = ~(n_begun > n_ended) & (step >= 0)
    key = np.where(idle, step, -1)
    begins = np.flatnonzero(np.diff(key, prepend=-2) != 0)
    start, end = edges[begins], edges[np.append(begins[1:], len(key))[: len(begins)]]
    start, end, key = start[key[begins] >= 0], end[key[begins] >= 0], key[begins][key[begins] >= 0]
    return (
        np.concatenate([phases.step, key]),
        np.concatenate([phases.phase.astype("i8"), np.full(len(start), Phase.OTHER)]),
        np.concatenate([phases.start_event, start]),
        np.concatenate([phases.end_event, end]),
    )


def _joined(stretches: tuple[Array, Array, Array, Array], peaks: dict[str, Array]) -> IntervalPeaks:
    """Merge intervals to one row per (step, phase)."""
    step, phase, start, end = stretches
    if not len(step):
        return IntervalPeaks.of()
    order = np.lexsort((start, phase, step))
    pair = np.stack([step[order], phase[order]])
    first = np.flatnonzero(np.r_[True, (pair[:, 1:] != pair[:, :-1]).any(axis=0)])
    columns = {quantity: np.maximum.reduceat(values[order], first) for quantity, values in peaks.items()}
    found = IntervalPeaks.of(
        step=pair[0, first],
        phase=pair[1, first],
        start_event=start[order][first],
        end_event=np.maximum.reduceat(end[order], first),
        **columns,
    )
    return found.rows(np.lexsort((found.start_event, found.step)))


ANALYSIS = asking("How much memory did each step and each of its phases need?", step_peaks)
