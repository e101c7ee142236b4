"""The charts of peaks by step and phase, and of one step by category."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.analysis.shapes import TensorShape
from vramscope.analysis.step_peaks import StepPeaks
from vramscope.model.marks import Category, Phase
from vramscope.units import format_name

from . import anatomy
from .anatomy import ModuleColumn
from .drawing.m4 import even_edges, m4
from .drawing.theme import CATEGORY_COLOR, EVENTS_AXIS, PHASE_COLOR, byte_axis, pack, plain_chart, unpack

STEP_COLUMNS = 200
STACK_COLUMNS = 160
ORDER = (
    Category.SHARDED_PARAMETER, Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE,
    Category.WORKSPACE, Category.SHARDED_GRADIENT, Category.GRADIENT, Category.INPUT, Category.ACTIVATION,
    Category.UNSHARDED_PARAMETER, Category.COMMUNICATION, Category.TEMPORARY, Category.UNKNOWN,
)  # fmt: skip
"""From the bottom up: what stays longest lies lowest."""


def peaks(found: StepPeaks, index: NDArray[Any], chosen: int | None, n_thinned: int = 0) -> dict[str, Any]:
    """Return a line per phase over the steps, and one for the whole step, in bytes.

    *chosen* is the row of the step that is marked; of *n_thinned* first steps only the peaks are retained.
    """
    lines = [
        line(format_name(phase), PHASE_COLOR[phase], *_of_phase(found, phase, index))
        for phase in Phase
        if phase != Phase.OTHER and (found.per_phase.phase == phase).any()
    ]
    rows = np.arange(len(index))
    name = "step, at least" if found.per_step.is_lower_bound.any() else "step"
    whole = line(name, "#1F2933", index, found.per_step.allocated_bytes, rows)
    whole |= {"uid": "allocated", "line": {"shape": "linear", "width": 2.2, "color": "#1F2933"}}
    # The whole step first: a phase that reaches it is drawn over it, in dashes that show both.
    lines = _told_apart([whole, *lines])
    beside = _outside(found, index)
    mark = _chosen(index, found, chosen)
    return plain_chart([*lines, *beside, mark], _step_axis(index), byte_axis(), **_thinned(index, n_thinned))


_DASHES = ("solid", "9px,9px", "3px,15px", "2px,22px")
"""Dashes for lines that lie on one another: each shows those below it in its gaps."""
MOST_OUTSIDE = 200


def _told_apart(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *lines* with dashes for those that lie on others for half of their points, or more."""
    near = 0.004 * max(
        (y for line in lines for y in unpack(line["y"]).tolist()), default=0.0
    )  # about a pixel
    drawn: list[tuple[dict[float, float], int]] = []
    for line in lines:
        points = dict(zip(unpack(line["x"]).tolist(), unpack(line["y"]).tolist(), strict=True))
        same = [
            sum(x in other and abs(other[x] - y) <= near for x, y in points.items()) for other, _ in drawn
        ]
        below = [level for (_, level), n in zip(drawn, same, strict=True) if 2 * n >= max(len(points), 1)]
        level = min(max(below, default=-1) + 1, len(_DASHES) - 1)
        drawn.append((points, level))
        line["line"] = line["line"] | {"dash": _DASHES[level]}
    return lines


def _outside(found: StepPeaks, index: NDArray[Any]) -> list[dict[str, Any]]:
    """Return the peaks between the steps, as marks between them: setup, evaluation, checkpoints."""
    rows = found.outside
    if not len(rows) or not len(index):
        return []
    kept = np.sort(np.argsort(-rows.allocated_bytes, kind="stable")[:MOST_OUTSIDE])
    after = np.searchsorted(np.sort(found.per_step.start_event), rows.start_event[kept], "left")
    at = np.where(after > 0, index[np.maximum(after - 1, 0)], index[0] - 1) + 0.5
    return [
        {
            "type": "scatter", "mode": "markers", "name": OUTSIDE, "uid": "outside",
            "hoverinfo": "skip", "cliponaxis": False,
            "x": pack(at), "y": pack(rows.allocated_bytes[kept]),
            "marker": {"size": 8, "symbol": "diamond", "color": PHASE_COLOR[Phase.EVAL]},
        }
    ]  # fmt: skip


OUTSIDE = "between steps: setup, evaluation"


def _step_axis(index: NDArray[Any]) -> dict[str, Any]:
    span = int(index[-1] - index[0]) + 1 if len(index) else 1
    return {
        "tickprefix": "step ", "dtick": spacing(span), "separatethousands": True,
        # Around a single point the axis would show steps that do not exist, "step −1" among them.
        **({"range": [int(index[0]) - 0.5, int(index[0]) + 0.5]} if len(index) == 1 else {}),
    }  # fmt: skip


FEW_LABELS = 4
"""Labels as long as ``step 12,000`` that fit on a phone: Plotly turns more, and cuts them off."""


def spacing(span: int, most: int = 12) -> int:
    """Return the distance of at most *most* labels over *span* steps: 1, 2 or 5 times a power of ten."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if span <= most * factor * power:
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


def line(name: str, color: str, x: NDArray[Any], n_bytes: NDArray[Any], rows: NDArray[Any]) -> dict[str, Any]:
    """Return one line; above twice STEP_COLUMNS steps, with the extremes of each column."""
    kept = np.arange(len(x))
    if len(x) > 2 * STEP_COLUMNS:
        kept = m4([n_bytes], even_edges(0, len(x), STEP_COLUMNS))
    few = len(kept) <= 60
    return {
        "type": "scatter", "mode": "lines+markers" if few else "lines", "name": name, "uid": f"peak-{name}",
        "x": pack(x[kept]), "y": pack(n_bytes[kept]), "customdata": pack(rows[kept]),
        "line": {"width": 1.6, "color": color}, "marker": {"size": 6, "color": color},
        "hovertemplate": "%{y:.2f}",
    }  # fmt: skip


def _chosen(index: NDArray[Any], found: StepPeaks, row: int | None) -> dict[str, Any]:
    some = row is not None and 0 <= row < len(index)
    return {
        "type": "scatter", "mode": "markers", "uid": "chosen", "hoverinfo": "skip",
        "x": [int(index[row])] if some else [],
        "y": [int(found.per_step.allocated_bytes[row])] if some else [],
        "marker": {"size": 15, "color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "#7A8896"}},
    }  # fmt: skip


_NONE: Mapping[Category, TensorShape] = MappingProxyType({})


def stack(
    found: Allocations, category: NDArray[Any], extent: tuple[int, int], allocated: NDArray[Any],
    by_module: Sequence[ModuleColumn] = (), shapes: Mapping[Category, TensorShape] = _NONE,
) -> dict[str, Any]:  # fmt: skip
    """Return bytes by category from one instant to another, both included; the outline is exact.

    *by_module* are the columns of the axis; without any it counts events. *shapes* are those of the largest
    tensors that were seen.
    """
    start, end = extent
    levels, repeated = by_category(found, category, start, end), ""
    shown = [(each, levels[each]) for each in ORDER if levels[each].any()]
    inside = allocated[start : end + 1]
    if by_module:
        bounds = np.array([*(each.start for each in by_module), end + 1])
        even = np.interp(
            np.linspace(0, len(by_module), 2 * STACK_COLUMNS + 1), np.arange(len(bounds)), bounds
        )
        chosen = m4([inside], np.unique(even.astype("i8")) - start)
        every = np.interp(np.arange(start, end + 1), bounds, np.arange(len(bounds)))
        x = every[chosen]
        axis = anatomy.axis(by_module, bounds, inside)
        repeated = anatomy.of_blocks(by_module, bounds, levels[Category.ACTIVATION])
        margin = {"l": 72, "r": 16, "t": 10, "b": 26 + 6 * max(map(len, axis["ticktext"]))}
        more: dict[str, Any] = {"margin": margin, "shapes": anatomy.bands(by_module)}  # fmt: skip
    else:
        chosen = m4([inside], even_edges(0, end - start + 1, STACK_COLUMNS))
        x, more = chosen + start, {}
        axis = EVENTS_AXIS | {"fixedrange": True}
    packed = pack(x)
    areas = [_area(each, packed, level[chosen]) for each, level in shown]
    said = anatomy.highest(shown)
    for (each, level), area in zip(shown, areas, strict=True):
        blocks = f"of it {repeated}" if repeated and each == Category.ACTIVATION else ""
        shape = anatomy.of_tensor(each, shapes.get(each), int(level.max()))
        area["meta"] = ", ".join(filter(None, (said[each], blocks, shape)))
    return plain_chart(areas, axis, byte_axis(), **more)


def by_category(found: Allocations, category: NDArray[Any], start: int, end: int) -> NDArray[Any]:
    """Return allocated bytes, shape (categories, instants from *start* to *end*, both included)."""
    change = np.zeros((len(Category), end - start + 1), "i8")
    at_start = found.rows_at(start)
    np.add.at(change[:, 0], category[at_start], found.block_size[at_start])
    born = np.arange(*np.searchsorted(found.alloc_event, np.array([start, end])))
    np.add.at(change, (category[born], found.alloc_event[born] - start + 1), found.block_size[born])
    # Whatever dies within was there at the start or is born within: 2.5 million rows would take 6 ms more.
    there = np.concatenate([at_start, born])
    dies = there[(found.free_event[there] < end) & (found.free_event[there] != ALIVE)]
    np.subtract.at(change, (category[dies], found.free_event[dies] - start + 1), found.block_size[dies])
    return np.cumsum(change, axis=1)


def _area(category: Category, x: Any, n_bytes: NDArray[Any]) -> dict[str, Any]:
    color = CATEGORY_COLOR[category]
    return {
        "type": "scatter", "mode": "lines", "uid": f"cat-{int(category)}", "stackgroup": "all", "x": x,
        "name": format_name(category), "y": pack(n_bytes),
        "fillcolor": color, "line": {"shape": "hv", "width": 0, "color": color},
        "hovertemplate": "%{y:.2f}",
    }  # fmt: skip
