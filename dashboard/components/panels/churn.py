"""The panel of cudaMalloc and cudaFree per step, with retries after releasing the cache."""

from typing import Any

import numpy as np
from dash import html

from vramscope.analysis.churn import ChurnOverTime
from vramscope.units import format_count

from ...answers import ask_allowing_stale
from ...data import Data, View
from ...figures import churn as figures
from .. import panel as panels
from ..graph import graph

MEANING = (
    "cudaMalloc is slow, and cudaFree makes the device wait. A training in its steady state calls neither; "
    "a retry releases the whole cache for one request."
)


def panel(data: Data, view: View) -> Any:
    """Return bars by step; an empty element where no step calls cudaMalloc or cudaFree."""
    steps = view.recording.steps
    found: ChurnOverTime = ask_allowing_stale(data, view, "churn")
    inside = found.rows(found.step >= 0)
    n_known = min(len(steps), len(inside))
    moved = (inside.n_made + inside.n_released)[:n_known]
    if n_known < 2 or not moved.any():
        return html.Div(id="fr-churn", hidden=True)
    last = int(steps.index[int(np.flatnonzero(moved)[-1])])
    is_settled = last < int(steps.index[n_known - 1])
    words = f"nothing after step {last:,}" if is_settled else f"up to step {last:,}"
    bars = figures.bars_of(inside, steps.rows(slice(n_known)))
    apart = f", {format_count(bars.per_bar, 'step')} a bar" if bars.per_bar > 1 else ""
    title = "cudaMalloc / cudaFree per step"
    sentence = f"Bytes of cudaMalloc and cudaFree in each of {n_known:,} steps."
    return panels.panel(
        panels.titled(title, f"{words}{apart}", MEANING),
        panels.color_key(figures.present(bars), "band"),
        graph("fr-churn", figures.figure(bars), sentence, "steps"),
        beside=html.P("Click to go there", className="dim only-live"),
        kind="chart",
        label=title,
    )
