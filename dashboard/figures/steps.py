"""The charts of peaks by step and phase, and of one step by category."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.analysis.step_peaks import IntervalPeaks, StepPeaks
from vramscope.model.marks import Category, Phase
from vramscope.units import format_name

from .drawing.m4 import even_edges, m4
from .drawing.theme import (
    CATEGORY_COLOR,
    PHASE_COLOR,
    QUANTITY_COLOR,
    base_layout,
    byte_axis,
    byte_unit,
    pack,
    scaled,
)

STEP_COLUMNS = 200
STACK_COLUMNS = 160
ORDER = (
    Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE, Category.WORKSPACE, Category.GRADIENT,
    Category.INPUT, Category.ACTIVATION, Category.COMMUNICATION, Category.TEMPORARY, Category.UNKNOWN,
)  # fmt: skip
"""From the bottom up: what stays longest lies lowest."""


def peaks(found: StepPeaks, index: NDArray[Any], chosen: int | None, n_thinned: int = 0) -> dict[str, Any]:
    """Return a line per phase over the steps, and one for the whole step.

    Parameters
    ----------
    found
        Peaks by step and phase.
    index
        Number of each step, shape (steps,).
    chosen
        Row of the step that is marked; None for none.
    n_thinned
        Number of first steps of which only the peaks are retained.
    """
    unit, unit_name = byte_unit(int(found.per_step.allocated_bytes.max(initial=0)))
    lines = [
        _line(format_name(phase), PHASE_COLOR[phase], *_of_phase(found, phase, index), unit)
        for phase in Phase
        if phase != Phase.OTHER and (found.per_phase.phase == phase).any()
    ]
    rows = np.arange(len(index))
    whole = _line("step", "#1F2933", index, found.per_step.allocated_bytes, rows, unit)
    whole |= {"uid": "allocated", "line": {"shape": "linear", "width": 2.2, "color": "#1F2933"}}
    mark = _chosen(index, found, chosen, unit)
    axes = {
        "xaxis": _step_axis(index),
        "yaxis": byte_axis(unit_name),
    }  # fmt: skip
    margin = {"l": 72, "r": 16, "t": 10, "b": 34}
    return {
        "data": [*lines, whole, mark],
        "layout": base_layout(**axes, **_thinned(index, n_thinned), hovermode="x unified", margin=margin),
    }


def levels(found: IntervalPeaks, index: NDArray[Any]) -> dict[str, Any]:
    """Return peak allocated and peak reserved of steps of which only the peaks are retained."""
    unit, unit_name = byte_unit(int(found.reserved_bytes.max(initial=0)))
    rows = np.arange(len(index))
    lines = [
        _line(name, QUANTITY_COLOR[name], index, getattr(found, f"{name}_bytes"), rows, unit)
        | {"uid": name, "mode": "lines"}
        for name in ("reserved", "allocated")
    ]
    axes = {"xaxis": _step_axis(index), "yaxis": byte_axis(unit_name, nticks=3)}
    margin = {"l": 72, "r": 16, "t": 6, "b": 30}
    return {"data": lines, "layout": base_layout(**axes, hovermode="x unified", margin=margin)}


def _step_axis(index: NDArray[Any]) -> dict[str, Any]:
    span = int(index[-1] - index[0]) + 1 if len(index) else 1
    return {
        "showgrid": False, "zeroline": False, "tickprefix": "step ", "dtick": spacing(span),
        "exponentformat": "none", "separatethousands": True, "ticks": "outside", "ticklen": 4,
        # Around a single point the axis would show steps that do not exist, "step −1" among them.
        **({"range": [int(index[0]) - 0.5, int(index[0]) + 0.5]} if len(index) == 1 else {}),
    }  # fmt: skip


def spacing(span: int) -> int:
    """Return the distance of labels over *span* steps: 1, 2 or 5 times a power of ten, at most 12 labels."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if span <= 12 * factor * power:
                return factor * power
        power *= 10


def _thinned(index: NDArray[Any], n_thinned: int) -> dict[str, Any]:
    """Return a shade over the steps whose allocations are unknown."""
    if not n_thinned:
        return {}
    first, end = int(index[0]), int(index[n_thinned - 1]) + 0.5
    shade = {
        "type": "rect", "layer": "below", "xref": "x", "yref": "paper", "x0": first, "x1": end,
        "y0": 0, "y1": 1, "line": {"width": 0}, "fillcolor": "rgba(128,128,128,0.10)",
    }  # fmt: skip
    words = {
        "text": "exact peaks, no allocations", "x": first, "y": 0, "xref": "x", "yref": "paper",
        "xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 11, "color": "#7A8896"},
    }  # fmt: skip
    return {"shapes": [shade], "annotations": [words]}


def _of_phase(found: StepPeaks, phase: Phase, index: NDArray[Any]) -> tuple[Any, Any, Any]:
    mine = found.per_phase.rows((found.per_phase.phase == phase) & (found.per_phase.step >= 0))
    return index[mine.step], mine.allocated_bytes, mine.step


def _line(
    name: str, color: str, x: NDArray[Any], n_bytes: NDArray[Any], rows: NDArray[Any], unit: int
) -> dict[str, Any]:
    """Return one line; above twice STEP_COLUMNS steps, with the extremes of each column."""
    kept = np.arange(len(x))
    if len(x) > 2 * STEP_COLUMNS:
        kept = m4([n_bytes], even_edges(0, len(x), STEP_COLUMNS))
    few = len(kept) <= 60
    return {
        "type": "scatter", "mode": "lines+markers" if few else "lines", "name": name, "uid": f"peak-{name}",
        "x": pack(x[kept]), "y": pack(scaled(n_bytes[kept], unit)), "customdata": pack(rows[kept]),
        "line": {"width": 1.6, "color": color}, "marker": {"size": 6, "color": color},
        "hovertemplate": "%{y:.2f}",
    }  # fmt: skip


def _chosen(index: NDArray[Any], found: StepPeaks, row: int | None, unit: int) -> dict[str, Any]:
    some = row is not None and 0 <= row < len(index)
    return {
        "type": "scatter", "mode": "markers", "uid": "chosen", "hoverinfo": "skip",
        "x": [int(index[row])] if some else [],
        "y": [int(found.per_step.allocated_bytes[row]) / unit] if some else [],
        "marker": {"size": 15, "color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "#7A8896"}},
    }  # fmt: skip


def stack(
    found: Allocations, category: NDArray[Any], start: int, end: int, allocated: NDArray[Any]
) -> dict[str, Any]:
    """Return bytes by category over the instants *start* to *end*, both included; the outline is exact."""
    levels = by_category(found, category, start, end)
    edges = even_edges(0, end - start + 1, STACK_COLUMNS)
    chosen = m4([allocated[start : end + 1]], edges)
    unit, unit_name = byte_unit(int(allocated[start : end + 1].max(initial=0)))
    x = pack(chosen + start)
    areas = [_area(each, x, levels[each][chosen], unit) for each in ORDER if levels[each].any()]
    axes = {
        "xaxis": {"showgrid": False, "zeroline": False, "exponentformat": "none", "separatethousands": True,
                  "tickprefix": "event ", "ticks": "outside", "ticklen": 4, "nticks": 7, "fixedrange": True},
        "yaxis": byte_axis(unit_name),
    }  # fmt: skip
    margin = {"l": 72, "r": 16, "t": 10, "b": 34}
    return {"data": areas, "layout": base_layout(**axes, hovermode="x unified", margin=margin)}


def by_category(found: Allocations, category: NDArray[Any], start: int, end: int) -> NDArray[Any]:
    """Return allocated bytes, shape (categories, instants from *start* to *end*, both included)."""
    change = np.zeros((len(Category), end - start + 1), "i8")
    at_start = found.allocated_at(start)
    np.add.at(change[:, 0], category[at_start], found.block_size[at_start])
    born = (found.alloc_event >= start) & (found.alloc_event < end)
    dies = (found.free_event >= start) & (found.free_event < end) & (found.free_event != ALIVE)
    np.add.at(change, (category[born], found.alloc_event[born] - start + 1), found.block_size[born])
    np.subtract.at(change, (category[dies], found.free_event[dies] - start + 1), found.block_size[dies])
    return np.cumsum(change, axis=1)


def _area(category: Category, x: Any, n_bytes: NDArray[Any], unit: int) -> dict[str, Any]:
    color = CATEGORY_COLOR[category]
    return {
        "type": "scatter", "mode": "lines", "uid": f"cat-{int(category)}", "stackgroup": "all", "x": x,
        "name": format_name(category), "y": pack(scaled(n_bytes, unit)),
        "fillcolor": color, "line": {"shape": "hv", "width": 0, "color": color},
        "hovertemplate": "%{y:.2f}",
    }  # fmt: skip
