"""Which marks, steps and phases belong to the events that are still there, and which to those taken?

Steps are found over all marks at once, so that nothing depends on where the cut is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vramscope.model.marks import Marks, Phases, Steps
from vramscope.model.past import Past, StretchPeaks, SummarizedSteps
from vramscope.model.program import resolve

Resolve = Callable[[Marks, int, int], tuple[Steps, Phases]]


@dataclass(frozen=True, slots=True)
class RetainedTimeline:
    """Of the program; instants count from the first event that is there."""

    marks: Marks
    steps: Steps
    phases: Phases
    past: Past


def retained_timeline(
    marks: Marks,
    known: tuple[StretchPeaks, SummarizedSteps],
    events: tuple[int, int],
    end_ns: int,
    found_by: Resolve = resolve,
) -> RetainedTimeline:
    """*marks* of the whole recording, whose events *events* (first and end) are still there."""
    first, end = events
    peaks, settled = known
    steps, phases = with_summarized(settled, *found_by(marks, end, end_ns))
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
        settled,
    )
    late = marks.rows(~early)
    return RetainedTimeline(
        replace(late, event=late.event - first),
        _moved(steps.rows(slice(n_past, None)), first),
        _kept(phases, first, n_past),
        past,
    )


def with_summarized(settled: SummarizedSteps, steps: Steps, phases: Phases) -> tuple[Steps, Phases]:
    """All steps, and the phases of those of which there are marks."""
    n_settled = len(settled)
    if not n_settled:
        return steps, phases
    start = {name: getattr(steps, name).copy() for name in ("start_event", "start_ns")}
    step = phases.step.copy()
    if settled.is_joined[-1] and len(steps):
        # The mark at which it began went with the step before it.
        start["start_event"][0], start["start_ns"][0] = settled.end_event[-1], settled.end_ns[-1]
        step[(step < 0) & (phases.start_ns >= start["start_ns"][0]) & (phases.start_ns < steps.end_ns[0])] = 0
    joined = {
        name: np.concatenate([getattr(settled, name), start.get(name, getattr(steps, name))])
        for name in Steps.DTYPES
        if name != "index"
    }
    steps = Steps(index=np.arange(n_settled + len(steps)), **joined)
    return steps, replace(phases, step=np.where(step < 0, step, step + n_settled))


def _moved(steps: Steps, first: int) -> Steps:
    """They keep their index: it is the number by which people know them."""
    return replace(steps, start_event=steps.start_event - first, end_event=steps.end_event - first)


def _kept(phases: Phases, first: int, n_past: int) -> Phases:
    """Those that reach into what is there; the steps of some of them do not."""
    kept = phases.rows((phases.start_event >= first) | (phases.end_event > first))
    return replace(
        kept,
        start_event=np.maximum(kept.start_event - first, 0),
        end_event=kept.end_event - first,
        step=np.maximum(kept.step - n_past, -1),
    )
