"""All steps of a recording, also those of which torch's counters alone are known, not the allocations."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dash import html
from numpy.typing import NDArray

from vramscope.analysis.leaks.all_steps import levels_by_counters
from vramscope.analysis.step_peaks import IntervalPeaks, StepPeaks, peaks_by_samples
from vramscope.model.recording import Recording

from ...data import Data, View
from ...figures.curves import COLORS, NamedCurve, by_counters
from ...queries.headline import ahead
from .. import states
from ..graph import plot
from ..panel import color_key, panel
from ..prose import claim_heading, sentence

MEANING = (
    "The recording has a size limit (max_size): the exact peaks of its oldest steps are retained, "
    "their single allocations are not."
)


@dataclass(frozen=True, slots=True, eq=False)
class AllSteps:
    """All steps of a recording; those of which only the peaks are retained come first."""

    found: StepPeaks
    """Peaks by step and phase; rows of steps count from the first step of the run."""
    index: NDArray[Any]
    """The number of each step."""
    n_thinned: int


def steps_with_past(data: Data, view: View) -> AllSteps:
    """Return every step whose peak is known, with those whose events the size cap removed."""
    if not len(view.recording.trace):
        return data.derive(view, "sampled steps", _of_samples)
    found: StepPeaks = data.ask(view, "step_peaks")
    past, steps = view.recording.past, view.recording.steps
    n_thinned = len(past.steps)
    if not n_thinned:
        return AllSteps(found, steps.index, 0)
    joined = StepPeaks(
        _joined(found.past_per_step, found.per_step, n_thinned),
        _joined(found.past_per_phase, found.per_phase, n_thinned),
        outside=found.outside,
    )
    return AllSteps(joined, np.concatenate([past.steps.index, steps.index]), n_thinned)


def counted(data: Data, view: View, claim: str, text: str) -> list[Any]:
    """Return a *claim* over the levels and peaks of the steps, by torch's counters; [] without steps."""
    steps = steps_with_past(data, view)
    if not len(steps.index):
        return []
    peaks = NamedCurve("peak of the step", steps.index, steps.found.per_step.allocated_bytes)
    level = NamedCurve("level at its end", *levels_by_counters(view.recording))
    chart = plot("counted", by_counters((peaks, level)), "Peaks and levels of all steps.", "steps")
    key = color_key(zip(COLORS, (peaks.name, level.name), strict=False), "parts")
    waits = {"data-waits": "yes"} if view.is_live else {}
    known = " ".join(sentence(each) for each in (text, ahead(data, view).text) if each)
    support: list[Any] = [f"{known} ".lstrip()]
    if not len(view.recording.trace):
        support += ["Which lines allocate: ", *states.to_record(view), "."]
    return [
        html.Section([claim_heading(claim), html.P(support, className="support")], className="opening"),
        panel("Allocated bytes, by torch's counters", chart, beside=key, kind="chart",
              label="Levels and peaks by step", **waits),
    ]  # fmt: skip


def _of_samples(recording: Recording) -> AllSteps:
    """Return the steps whose peak samples show."""
    found = peaks_by_samples(recording)
    known = np.flatnonzero(found.per_step.allocated_bytes >= 0)
    phases = found.per_phase.rows(np.isin(found.per_phase.step, known))
    phases = replace(phases, step=np.searchsorted(known, phases.step))
    steps = replace(found.per_step.rows(known), step=np.arange(len(known)))
    return AllSteps(StepPeaks(steps, phases), recording.steps.index[known], 0)


def _joined(before: IntervalPeaks, after: IntervalPeaks, n_steps: int) -> IntervalPeaks:
    later = replace(after, step=np.where(after.step < 0, -1, after.step + n_steps))
    return IntervalPeaks.joined(before, later)
