"""The overview's chart: the quantities over time, with phases, steps and marks."""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import MarkKind, Phase

from .drawing.envelope import Envelope, envelope
from .drawing.lanes import phase_bands, step_labels
from .drawing.m4 import Extremes, m4, time_edges
from .drawing.series import EVENTS, RETRY, Curve, Series
from .drawing.theme import (
    PHASE_COLOR,
    QUANTITY_COLOR,
    base_layout,
    byte_axis,
    byte_unit,
    esc,
    pack,
    scaled,
)
from .drawing.window import Window, entry

# With 4 points a column about 5,000 points: a zoom stays under 110 kB and 6,000 SVG points.
MAIN_COLUMNS, OTHER_COLUMNS = 520, 200
QUANTITIES = ("allocated", "active", "reserved", "device_used", "capacity", "host_resident", "host_pinned")
SAMPLED = ("host_pinned", "host_resident", "device_used")
_TOTALS = ("reserved", "active", "allocated")  # painted in this order: allocated on top
LANES = (0.0, 0.075)  # of the height, below the curves
WIDTH_PX = 1000
"""Width of a picture that no browser has measured."""


def figure(series: Series, view: Window, shown: Collection[str], at: int | None) -> dict[str, Any]:
    """Return the quantities in *view* over time, with phases, steps and marks."""
    return {"data": traces(series, view, shown, at), "layout": layout(series, view)}


def layout(series: Series, view: Window) -> dict[str, Any]:
    """Return the axes and margins of a picture of *view*."""
    first, last = series.extent
    made = base_layout(**_axes(series), margin={"l": 72, "r": 14, "t": 10, "b": 34}, dragmode="zoom")
    if (view.start, view.end) != (first, last):
        made["xaxis"] |= {"autorange": False, "range": [view.start, view.end]}
    return made


def traces(series: Series, view: Window, shown: Collection[str], at: int | None) -> list[dict[str, Any]]:
    """Return the traces: curves, or the least and greatest levels of steps too narrow for curves."""
    unit = shown_unit(series, shown)
    others = {
        "capacity": _capacity(series, view, shown),
        **{name: _samples(getattr(series, name), view, name in shown) for name in SAMPLED},
    }
    steps = envelope(series, view, view, WIDTH_PX)
    drawn = [_line(name, points, *unit) for name, points in others.items()]
    if steps is None:
        curves = {name: _total(series, name, view, shown) for name in _TOTALS}
        drawn += [_line(name, curve, *unit) for name, curve in curves.items()]
        drawn[-1]["customdata"] = pack(curves["allocated"].instant)
    else:
        drawn += [each for name in _TOTALS if name in shown for each in _of_steps(series, name, steps, *unit)]
    return [*drawn, *lanes_and_marks(series, view, at)]


def lanes_and_marks(series: Series, view: Window, at: int | None) -> list[dict[str, Any]]:
    """Return the traces below and above the curves: phases, steps, marks and the instant."""
    return [*_phase_traces(series, view), *_step_traces(series, view), *_flag_traces(series, view, at)]


def _of_steps(series: Series, name: str, steps: Envelope, unit: int, unit_name: str) -> list[dict[str, Any]]:
    """Return the least and the greatest level in each interval as two lines with the area between them."""
    low, high = (
        _Points(steps.borders, np.append(levels, levels[-1]), np.zeros(0, "i8"))
        for levels in steps.extremes(getattr(series, name), series.blocks.get(name))
    )
    upper = _line(name, high, unit, unit_name) | {"name": f"{name}, greatest"}
    if name not in _FILL:
        return [upper]
    lower = _line(name, low, unit, unit_name) | {"name": f"{name}, least", "showlegend": False}
    lower |= {"uid": f"{name}-least", "line": {"shape": "hv", "width": 0}, "fill": "none"}
    if name == "allocated":
        peak = steps.greatest(series.allocated, series.highs(name))
        upper["customdata"] = pack(np.append(peak, peak[-1]))
    return [lower, upper | {"fill": "tonexty"}]


class _Points(NamedTuple):
    position: NDArray[Any]
    value: NDArray[Any]
    instant: NDArray[Any]


_NOTHING = _Points(np.zeros(0), np.zeros(0, "i8"), np.zeros(0, "i8"))


def shown_unit(series: Series, shown: Collection[str]) -> tuple[int, str]:
    """Return the unit of the vertical axis: its bytes and its name."""
    greatest = max(series.top("reserved"), series.top("allocated"))
    return byte_unit(max(greatest, series.capacity_bytes) if "capacity" in shown else greatest)


def _total(series: Series, name: str, view: Window, shown: Collection[str]) -> _Points:
    values = getattr(series, name)
    if name not in shown:
        return _NOTHING
    columns = MAIN_COLUMNS if name == "allocated" else OTHER_COLUMNS
    return reduced(series.position, values, view, columns, series.blocks.get(name))


def reduced(
    position: NDArray[Any],
    values: NDArray[Any],
    view: Window,
    columns: int,
    blocks: Extremes | None = None,
) -> _Points:
    """Return the points of a step function that draw it exactly in *view*, levels at both edges included."""
    first = entry(position, view.start)
    stop = int(np.searchsorted(position, view.end, "right"))
    if stop <= first:
        return _NOTHING
    inside = m4([values], time_edges(position, first, stop, columns), [blocks])
    level = values[inside]
    # A repeated level draws nothing new between two steps; the last point ends the line.
    keep = np.concatenate([[True], level[1:] != level[:-1]])
    inside = inside[keep]
    instant = np.append(inside, stop - 1)
    at = np.append(position[inside], view.end)
    at[0] = max(at[0], view.start)
    return _Points(at, values[instant], instant)


def _samples(curve: Curve, view: Window, shown: bool) -> _Points:
    """Return the samples as they are: between two of them nothing is known."""
    first, stop = np.searchsorted(curve.position, [view.start, np.nextafter(view.end, np.inf)])
    if not shown or first == stop:
        return _NOTHING
    rows = m4([curve.value], time_edges(curve.position, int(first), int(stop), OTHER_COLUMNS))
    return _Points(curve.position[rows], curve.value[rows], np.zeros(len(rows), "i8"))


def _capacity(series: Series, view: Window, shown: Collection[str]) -> _Points:
    if "capacity" not in shown or not series.capacity_bytes:
        return _NOTHING
    ends = np.array([view.start, view.end])
    return _Points(ends, np.full(2, series.capacity_bytes), np.zeros(2, "i8"))


_LINE: dict[str, dict[str, Any]] = {
    "allocated": {"width": 1.6},
    "active": {"width": 1.2, "dash": "dot"},
    "reserved": {"width": 1.6},
    "capacity": {"width": 1.4, "dash": "dash"},
}
_SYMBOL = {"device_used": "circle", "host_resident": "square", "host_pinned": "diamond"}
_FILL = {"allocated": "rgba(100,116,139,0.20)", "reserved": "rgba(86,180,233,0.13)"}


# Plotly widens the range by 5 % for text and markers, but not for filled traces.
_UNPADDED = {"fill": "tozeroy", "fillcolor": "rgba(0,0,0,0)"}


def _line(name: str, points: _Points, unit: int, unit_name: str) -> dict[str, Any]:
    is_sampled = name in SAMPLED
    trace = {
        "type": "scatter",
        "mode": "markers" if is_sampled else "lines",
        "uid": name,  # the stylesheet's handle: Plotly makes it a class of the trace
        "name": name,
        "meta": unit_name,
        "x": pack(points.position),
        "y": pack(scaled(points.value, unit)),
    }
    if is_sampled:
        marker = {"color": QUANTITY_COLOR[name], "size": 4, "symbol": _SYMBOL[name]}
        return trace | _UNPADDED | {"marker": marker}
    trace["line"] = {"shape": "hv", "color": QUANTITY_COLOR[name], **_LINE[name]}
    return trace | ({"fill": "tozeroy", "fillcolor": _FILL[name]} if name in _FILL else {})


def _phase_traces(series: Series, view: Window) -> list[dict[str, Any]]:
    bands = phase_bands(series.phases, view.start, view.end)
    return [_band(phase, bands.of(phase)) for phase in Phase if phase != Phase.OTHER]


def _band(phase: Phase, edges: NDArray[Any]) -> dict[str, Any]:
    """Return one thick line with a gap after every band: it needs a third of the points of filled shapes."""
    gaps = np.insert(edges.reshape(-1, 2), 2, edges[1::2], axis=1).ravel()
    height = np.tile([0.74, 0.74, np.nan], len(edges) // 2)
    line = {"color": PHASE_COLOR[phase], "width": 11}
    return {
        "type": "scatter", "mode": "lines", "name": phase.name.lower(), "uid": f"phase{int(phase)}",
        "x": pack(gaps), "y": pack(height), "yaxis": "y2", "line": line,
    }  # fmt: skip


def _step_traces(series: Series, view: Window) -> list[dict[str, Any]]:
    labels = step_labels(series.steps, view.start, view.end)
    lines = np.repeat(labels.borders, 3)
    height = np.tile([0.0, 1.0, np.nan], len(labels.borders))
    borders = {
        "type": "scatter", "mode": "lines", "name": "step", "uid": "steplines", "yaxis": "y3",
        "x": pack(lines), "y": pack(height), "line": {"width": 1, "color": "rgba(128,128,128,0.35)"},
    }  # fmt: skip
    names = {
        "type": "scatter", "mode": "text", "name": "step", "uid": "stepnames", "yaxis": "y2",
        "x": pack(labels.centers), "y": pack(np.full(len(labels.centers), 0.2)),
        **_UNPADDED, "text": [f"step {n}" for n in labels.numbers],
        "textfont": {"size": 11}, "cliponaxis": True,
    }  # fmt: skip
    return [borders, names]


_FLAG: dict[int, tuple[str, str, str]] = {
    MarkKind.OOM: ("x", "#D55E00", "out of memory"),
    MarkKind.EMPTY_CACHE: ("triangle-down", "#7A8896", "empty_cache"),
    RETRY: ("triangle-up", "#E69F00", "retry"),
    MarkKind.MARK: ("diamond", "#6A51A3", ""),
    MarkKind.GC: ("circle-open", "#7A8896", "gc"),
}
_GRAVEST = tuple(_FLAG)
FLAG_LIMIT = 60


def _flag_traces(series: Series, view: Window, at: int | None) -> list[dict[str, Any]]:
    flags = series.flags
    inside = np.flatnonzero((flags.position >= view.start) & (flags.position <= view.end))
    gravity = [_GRAVEST.index(kind) for kind in flags.kind[inside].tolist()]
    inside = inside[np.argsort(gravity, kind="stable")][:FLAG_LIMIT]
    looks = [_FLAG[kind] for kind in flags.kind[inside].tolist()]
    names = [esc(flags.names[i] or look[2], 24) for i, look in zip(inside, looks, strict=True)]
    signs = {
        "type": "scatter", "mode": "markers+text" if len(inside) <= 12 else "markers", "name": "mark",
        "uid": "flags", "yaxis": "y3", "x": pack(flags.position[inside]),
        "y": pack(np.full(len(inside), 0.965)),
        **_UNPADDED, "text": names,
        "textposition": "middle right", "textfont": {"size": 11}, "cliponaxis": False,
        "marker": {"symbol": [look[0] for look in looks], "color": [look[1] for look in looks], "size": 9},
    }  # fmt: skip
    return [signs, _cursor(series, view, at)]


def _cursor(series: Series, view: Window, at: int | None) -> dict[str, Any]:
    known = at is not None and 0 <= at < len(series.position)
    x = float(series.position[at]) if known else np.nan
    inside = view.start <= x <= view.end
    return {
        "type": "scatter", "mode": "lines", "name": "instant", "uid": "cursor", "yaxis": "y3",
        "x": [x, x] if inside else [], "y": [0, 1] if inside else [],
        "line": {"width": 1.5, "color": "#1F2933"},
    }  # fmt: skip


def _axes(series: Series) -> dict[str, Any]:
    _, unit_name = shown_unit(series, QUANTITIES[:4])
    floor = LANES[1] + 0.02 if len(series.phases.start) or len(series.steps.start) else LANES[0]
    events = series.axis == EVENTS
    plain = {"fixedrange": True, "showgrid": False, "zeroline": False, "visible": False, "range": [0, 1]}
    return {
        "xaxis": {
            "autorange": True, "showgrid": False, "zeroline": False, "anchor": "y2", "ticks": "outside",
            "ticklen": 4, "exponentformat": "none", "separatethousands": True, "nticks": 9,
            "ticksuffix": "" if events else " s", "automargin": False,
        },
        "yaxis": byte_axis(unit_name, domain=[floor, 1.0], nticks=7, automargin=False),
        "yaxis2": plain | {"domain": list(LANES), "anchor": "x"},
        "yaxis3": plain | {"domain": [LANES[0], 1.0], "overlaying": "y", "anchor": "x"},
    }  # fmt: skip
