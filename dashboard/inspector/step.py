"""A step in the inspector: its peak, that of its phases, and the difference from the step before."""

from typing import Any

import numpy as np
from dash import html

from vramscope.analysis.step_peaks import IntervalPeaks
from vramscope.model.marks import Phase
from vramscope.units import format_bytes, format_duration, format_name

from ..answers import fullest_of_step
from ..components.panel import facts
from ..components.panels.past import steps_with_past
from ..data import Data, View
from .parts import amount, pick, section, title


def content(data: Data, view: View, number: int, _: int) -> Any:
    """Return what is known about the step of that number; None where there is none."""
    all_steps = steps_with_past(data, view)
    hit = np.flatnonzero(all_steps.index == number)
    if not len(hit):
        return None
    row, peaks = int(hit[0]), all_steps.found.per_step
    top = int(peaks.allocated_bytes[row])
    return [
        title("Step", f"Step {number}", _change(peaks, row)),
        facts(
            ("Peak allocated", amount(top, is_lower_bound=bool(peaks.is_lower_bound[row]))),
            ("Peak reserved", amount(int(peaks.reserved_bytes[row])) if view.recording.has_reserved else ""),
            ("Took", _took(view, row - all_steps.n_thinned)),
            ("Its peak", _moment(data, view, row - all_steps.n_thinned)),
        ),
        _phases(all_steps.found, row),
    ]


def _change(peaks: IntervalPeaks, row: int) -> str:
    if row == 0 or peaks.is_lower_bound[row - 1 : row + 1].any():
        return "" if row else "the first step"
    rise = int(peaks.allocated_bytes[row] - peaks.allocated_bytes[row - 1])
    if not rise:
        return "as high as the step before"
    return f"{format_bytes(abs(rise))} {'above' if rise > 0 else 'below'} the step before"


def _took(view: View, row: int) -> str:
    steps = view.recording.steps
    if row < 0 or not steps.start_ns[row] or steps.end_ns[row] <= steps.start_ns[row]:
        return ""
    return format_duration(int(steps.end_ns[row] - steps.start_ns[row]))


def _moment(data: Data, view: View, row: int) -> Any:
    if row < 0:
        return ""
    instant = fullest_of_step(data, view, row)
    return pick(f"instant {instant:,}", "i", instant)


def _phases(found: Any, row: int) -> Any:
    mine = found.per_phase.rows(found.per_phase.step == row)
    columns = mine.phase.tolist(), mine.allocated_bytes.tolist(), mine.is_lower_bound.tolist()
    rows = []
    for phase, n_bytes, is_bound in zip(map(Phase, columns[0]), *columns[1:], strict=True):
        words = "between phases" if phase == Phase.OTHER else format_name(phase)
        swatch = html.I(className=f"swatch phase-{phase.name.lower()}")
        size = amount(n_bytes, is_lower_bound=is_bound)
        rows.append(([swatch, " ", words], size))
    return section("Peak by phase", facts(*rows)) if rows else html.Span()
