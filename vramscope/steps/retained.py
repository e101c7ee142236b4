"""Splits marks, steps and phases into those of retained events and those of deleted events.

Steps are found over all marks at once, so that nothing depends on where the cut is.

Reading a trace finds steps from marks and takes some µs per mark, so a run of weeks could not be opened any
more. Therefore the older half of the marks is replaced by finished steps if the remaining marks lead to the
same later steps as all marks do. That is tested; if it fails, the marks stay.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import MarkKind, Marks, Phases, Steps
from vramscope.model.past import Past, StretchPeaks, SummarizedSteps
from vramscope.steps import resolve


@dataclass(frozen=True, slots=True)
class RetainedTimeline:
    """Marks, steps and phases of the retained events; instants are relative to the first one."""

    marks: Marks
    steps: Steps
    phases: Phases
    past: Past


def retained_timeline(
    marks: Marks, known: tuple[StretchPeaks, SummarizedSteps], first: int, found: tuple[Steps, Phases]
) -> RetainedTimeline:
    """Return the timeline of the events from *first* on, from all marks of the recording.

    *known* is what is kept of older marks, *found* are the steps and phases of *marks*.
    """
    peaks, summarized = known
    steps, phases = with_summarized(summarized, *found)
    if not first:
        return RetainedTimeline(marks, steps, phases, Past())
    n_past = int(np.searchsorted(steps.start_event, first))
    is_past = np.where(phases.step < 0, phases.start_event < first, phases.step < n_past)
    early = marks.event < first
    past = Past(
        first,
        marks.rows(early),
        steps.rows(slice(n_past)),
        phases.rows(is_past),
        peaks.rows(peaks.event <= first),
        summarized,
    )
    late, kept = marks.rows(~early), steps.rows(slice(n_past, None))
    return RetainedTimeline(
        replace(late, event=late.event - first),
        # They keep their index, the number that users know.
        replace(kept, start_event=kept.start_event - first, end_event=kept.end_event - first),
        _kept(phases, first, n_past),
        past,
    )


def with_summarized(summarized: SummarizedSteps, steps: Steps, phases: Phases) -> tuple[Steps, Phases]:
    """Put the summarized steps before *steps*; return all steps, and the phases with the new step numbers."""
    n_summarized = len(summarized)
    if not n_summarized:
        return steps, phases
    start = {name: getattr(steps, name).copy() for name in ("start_event", "start_ns")}
    step = phases.step.copy()
    if summarized.is_joined[-1] and len(steps):
        # The mark at which this step began was deleted with the step before it.
        start["start_event"][0], start["start_ns"][0] = summarized.end_event[-1], summarized.end_ns[-1]
        step[(step < 0) & (phases.start_ns >= start["start_ns"][0]) & (phases.start_ns < steps.end_ns[0])] = 0
    joined = {
        name: np.concatenate([getattr(summarized, name), start.get(name, getattr(steps, name))])
        for name in Steps.DTYPES
        if name != "index"
    }
    steps = Steps(index=np.arange(n_summarized + len(steps)), **joined)
    return steps, replace(phases, step=np.where(step < 0, step, step + n_summarized))


def _kept(phases: Phases, first: int, n_past: int) -> Phases:
    """Return the phases that reach into the retained events; the steps of some of them do not."""
    kept = phases.rows((phases.start_event >= first) | (phases.end_event > first))
    return replace(
        kept,
        start_event=np.maximum(kept.start_event - first, 0),
        end_event=kept.end_event - first,
        step=np.maximum(kept.step - n_past, -1),
        made_by=replace(kept.made_by, start_event=np.maximum(kept.made_by.start_event - first, 0)),
    )


_ATTEMPTS = 4
_ENDS = (MarkKind.PHASE_END, MarkKind.STEP, MarkKind.EXIT)

_Timeline = tuple[Marks, StretchPeaks, SummarizedSteps]


def drop_older_marks(known: _Timeline, n_events: int) -> _Timeline | None:
    """Return about half of the marks, the stretches after the cut and the steps before it.

    Returns None if no cut is safe.
    """
    marks, peaks, summarized = known
    end_ns = int(marks.time_ns[-1]) if len(marks) else 0
    steps, phases = with_summarized(summarized, *resolve(marks, n_events, end_ns))
    # The last steps may continue after the deleted events.
    middle = (len(summarized) + len(steps)) // 2
    for cut in range(middle, min(middle + _ATTEMPTS, len(steps) - 1)):
        if cut <= len(summarized) or steps.end_event[cut - 1] > n_events:
            continue
        kept = marks.rows(marks_needed_after(marks, steps, phases, cut))
        older = _summarized(known, steps, cut, n_events)
        again = with_summarized(older, *resolve(kept, n_events, end_ns))
        if _is_same((steps, phases), again, cut):
            first = int(np.searchsorted(peaks.event, steps.start_event[cut]))
            return kept, peaks.rows(slice(first, None)), older
    return None


def marks_needed_after(marks: Marks, steps: Steps, phases: Phases, cut: int) -> NDArray[np.bool_]:
    """Return the mask of the marks that the step *cut* and later steps need.

    These are their own marks and those of phases and blocks that are open when the step begins.
    """
    start_ns = steps.start_ns[cut]
    is_later = marks.time_ns > start_ns
    is_later |= (marks.time_ns == start_ns) & ~np.isin(marks.kind, _ENDS)
    is_open = (phases.start_ns <= start_ns) & (phases.end_ns > start_ns)
    begins = np.isin(marks.time_ns, phases.start_ns[is_open]) & (marks.kind == MarkKind.PHASE_BEGIN)
    is_of_all = np.isin(marks.kind, (MarkKind.GRAPH_POOL, MarkKind.MEM_POOL, MarkKind.EVENTS))
    return is_later | begins | is_of_all | _entered(marks, start_ns)


def _entered(marks: Marks, before_ns: int) -> NDArray[np.bool_]:
    """Return the mask of the enter marks of blocks that are still open at *before_ns*."""
    is_open = np.zeros(len(marks), dtype="?")
    stack: list[int] = []
    for row in np.flatnonzero(np.isin(marks.kind, (MarkKind.ENTER, MarkKind.EXIT))).tolist():
        if marks.time_ns[row] > before_ns:
            break
        if marks.kind[row] == MarkKind.ENTER:
            stack.append(row)
        elif stack:
            stack.pop()
    is_open[stack] = True
    return is_open


def _summarized(known: _Timeline, steps: Steps, cut: int, n_events: int) -> SummarizedSteps:
    _, peaks, before = known
    new = steps.rows(slice(len(before), cut))
    columns = {name: getattr(new, name) for name in ("start_event", "end_event", "start_ns", "end_ns")}
    columns |= peaks.between(new.start_event, new.end_event, n_events)
    joined = (steps.start_event[1:] == steps.end_event[:-1]) & (steps.start_ns[1:] == steps.end_ns[:-1])
    columns["is_joined"] = joined[len(before) : cut]
    return SummarizedSteps(
        **{name: np.concatenate([getattr(before, name), columns[name]]) for name in SummarizedSteps.DTYPES}
    )


def _is_same(before: tuple[Steps, Phases], after: tuple[Steps, Phases], cut: int) -> bool:
    """Return whether all steps, and all phases from the step *cut* on, are found again."""
    (steps, phases), (found, found_phases) = before, after
    if len(steps) != len(found):
        return False
    wanted = phases.rows((phases.step >= cut) | (phases.end_ns > steps.start_ns[cut]))
    there = found_phases.rows((found_phases.step >= cut) | (found_phases.end_ns > steps.start_ns[cut]))
    # A phase that began in an earlier step no longer has the index of that step.
    wanted = replace(wanted, step=np.where(wanted.step < cut, -1, wanted.step))
    there = replace(there, step=np.where(there.step < cut, -1, there.step))
    names = [name for name in Phases.DTYPES if name != "name"]
    return all(np.array_equal(getattr(steps, name), getattr(found, name)) for name in Steps.DTYPES) and (
        len(wanted) == len(there)
        and all(np.array_equal(getattr(wanted, name), getattr(there, name)) for name in names)
    )
