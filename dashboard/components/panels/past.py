"""Steps whose events a size cap took: their peaks are exact, their allocations are not known."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dash import dcc, html
from numpy.typing import NDArray

from vramscope.analysis.step_peaks import IntervalPeaks, StepPeaks

from ...address import UNZOOMED, Address
from ...data import Data, View
from ...figures import steps as figures
from ..definitions import explained
from ..graph import graph

MEANING = (
    "The recording has a size limit (max_size): of its oldest steps the exact peaks are kept, "
    "their single allocations are not."
)


@dataclass(frozen=True, slots=True)
class AllSteps:
    """All steps, those that are known by their peaks alone first."""

    found: StepPeaks
    """Rows of steps count from the first step ever."""
    index: NDArray[Any]
    """The number of each step."""
    n_thinned: int


def steps_with_past(data: Data, view: View) -> AllSteps:
    """Every step of a recording."""
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


def _joined(before: IntervalPeaks, after: IntervalPeaks, n_steps: int) -> IntervalPeaks:
    later = replace(after, step=np.where(after.step < 0, -1, after.step + n_steps))
    return IntervalPeaks.of(
        **{name: np.concatenate([values, getattr(later, name)]) for name, values in before.columns()}
    )


def strip(data: Data, view: View, address: Address) -> Any:
    """The thinned steps over the detail that is left; nothing where nothing was thinned."""
    steps = view.recording.past.steps
    if not len(steps):
        return html.Span(hidden=True)
    found: StepPeaks = data.ask(view, "step_peaks")
    first, last = int(steps.index[0]), int(steps.index[-1])
    words = f"Steps {first:,} to {last:,}" if last > first else f"Step {first:,}"
    told = html.Span("exact peaks, detail thinned", className="term dim", tabIndex="0")
    title = html.Div([html.H3(words), explained(told, MEANING)], className="titled")
    to = address.go(path="/phases", at=None, **UNZOOMED).url
    bar = html.Div([title, dcc.Link("All steps in Phases", href=to, className="link")], className="panel-bar")
    drawn = figures.levels(found.past_per_step, steps.index)
    sentence = f"Peak allocated and peak reserved bytes of {len(steps):,} steps before the detail."
    return html.Section(
        [bar, graph("ov-past", drawn, sentence, "slim")], className="panel chart",
        **{"aria-label": "Steps without detail"},
    )  # fmt: skip
