"""Splits marks, steps and phases into those of retained events and those of deleted events.

Steps are found over all marks at once, so that nothing depends on where the cut is.
"""

from dataclasses import dataclass, replace

import numpy as np

from vramscope.model.marks import Marks, Phases, Steps
from vramscope.model.past import Past, StretchPeaks, SummarizedSteps


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
    late = marks.rows(~early)
    return RetainedTimeline(
        replace(late, event=late.event - first),
        _moved(steps.rows(slice(n_past, None)), first),
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


def _moved(steps: Steps, first: int) -> Steps:
    """Return *steps* relative to the event *first*; they keep their index, the number that users know."""
    return replace(steps, start_event=steps.start_event - first, end_event=steps.end_event - first)


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
