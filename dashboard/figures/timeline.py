"""The timeline of a whole run for Plotly, in reports: what the browser draws."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import MarkKind, Phase

from .drawing.series import EVENTS, RETRY, Series
from .drawing.theme import (
    PHASE_COLOR,
    QUANTITY_COLOR,
    QUANTITY_FILL,
    base_layout,
    byte_axis,
    byte_unit,
    esc,
    pack,
    scaled,
    time_axis,
    unpack,
)
from .drawing.window import window
from .steps import spacing
from .track import Track, position_of, track

QUANTITIES = ("allocated", "active", "reserved", "device_used", "capacity")
_PAINTED = ("reserved", "active", "allocated")  # in this order: allocated on top
LANE = (0.0, 0.1)
"""Share of the height for phases and steps, below the curves."""
WIDTH_PX = 1000
"""Width of a picture that no browser has measured."""
MOST_BORDERS, MOST_NAMES, MOST_NAMED_FLAGS = 60, 12, 12
_LINE: dict[str, dict[str, Any]] = {
    "allocated": {"width": 1.6},
    "active": {"width": 1.2, "dash": "dot"},
    "reserved": {"width": 1.6},
    "capacity": {"width": 1.4, "dash": "dash"},
}
_FLAG = {
    MarkKind.OOM: ("x", "#D55E00"),
    MarkKind.EMPTY_CACHE: ("triangle-down", "#7A8896"),
    RETRY: ("triangle-up", "#E69F00"),
    MarkKind.MARK: ("diamond", "#6A51A3"),
    MarkKind.GC: ("circle-open", "#7A8896"),
}
# Plotly widens the range by 5 % for text and markers, but not for filled traces.
_UNPADDED = {"fill": "tozeroy", "fillcolor": "rgba(0,0,0,0)"}


def figure(
    series: Series, shown: Collection[str], at: int | None, counted: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, Any]:
    """Return the quantities over time, with phases, steps and marks.

    *counted* are the steps without events, as :func:`dashboard.figures.doubts.counted` gives them.
    """
    drawn = track(series, window(series, None, None), WIDTH_PX)
    # The unit of the vertical axis: its bytes and its name.
    greatest = max(series.top("reserved"), series.top("allocated"))
    greatest = max(greatest, int(counted["counted.y"].max(initial=0))) if counted else greatest
    unit, unit_name = byte_unit(max(greatest, series.capacity_bytes) if "capacity" in shown else greatest)
    traces = []
    if "capacity" in shown and series.capacity_bytes:
        level = np.full(2, series.capacity_bytes)
        traces.append(_line("capacity", np.array(series.extent), level, unit, unit_name))
    if "device_used" in shown:
        traces.append(_samples(drawn.columns, unit, unit_name))
    curve = partial(_interrupted, counted) if counted else _curve
    for name in _PAINTED:
        if name in shown:
            traces += curve(name, drawn.columns, unit, unit_name)
    traces += _counted(counted, unit, unit_name) if counted else []
    return chart(series, [*traces, *lanes_and_marks(series, at, drawn)], unit_name)


def chart(series: Series, traces: list[dict[str, Any]], unit_name: str) -> dict[str, Any]:
    """Return the figure of *traces* at positions of *series*; its time has the unit that pages give it."""
    unit_s, axis = 1.0, {"autorange": True, "nticks": 9}
    if series.axis != EVENTS:
        unit_s, axis = time_axis(*series.extent)
    data = [each | {"x": pack(unpack(each["x"]) / unit_s)} for each in traces]
    return {"data": data, "layout": _layout(series, axis, unit_name)}


def _layout(series: Series, axis: dict[str, Any], unit_name: str) -> dict[str, Any]:
    floor = LANE[1] + 0.02 if len(series.phases.start) or len(series.steps.start) else LANE[0]
    plain = {"fixedrange": True, "showgrid": False, "zeroline": False, "visible": False, "range": [0, 1]}
    axes = {
        "xaxis": {
            "showgrid": False, "zeroline": False, "anchor": "y2", "ticks": "outside", "ticklen": 4,
            "exponentformat": "none", "separatethousands": True, "automargin": False, **axis,
        },
        "yaxis": byte_axis(unit_name, domain=[floor, 1.0], nticks=7, automargin=False),
        "yaxis2": plain | {"domain": list(LANE), "anchor": "x"},
        "yaxis3": plain | {"domain": [LANE[0], 1.0], "overlaying": "y", "anchor": "x"},
    }  # fmt: skip
    return base_layout(**axes, margin={"l": 72, "r": 14, "t": 10, "b": 34}, dragmode="zoom")


def lanes_and_marks(series: Series, at: int | None, drawn: Track | None = None) -> list[dict[str, Any]]:
    """Return the traces below and above the curves: phases, steps, marks and the instant."""
    drawn = drawn or track(series, window(series, None, None), WIDTH_PX)
    lanes = [*_phases(drawn.columns), *_steps(drawn.columns, series.extent)]
    return [*lanes, _flags(drawn), _cursor(position_of(series, at))]


def _curve(name: str, columns: Mapping[str, NDArray[Any]], unit: int, unit_name: str) -> list[dict[str, Any]]:
    """Return one line; of narrow steps the least and the greatest levels, with the area between them."""
    x, low = columns[f"{name}.x"], columns.get(f"{name}.low")
    line = _line(name, x, columns[f"{name}.y"], unit, unit_name)
    if name not in QUANTITY_FILL:
        return [line]
    if low is None:
        return [line | {"fill": "tozeroy", "fillcolor": QUANTITY_FILL[name]}]
    least = _line(name, x, low, unit, unit_name)
    least |= {"uid": f"{name}-least", "name": f"{name}, least", "showlegend": False}
    greatest = {"name": f"{name}, greatest", "fill": "tonexty", "fillcolor": QUANTITY_FILL[name]}
    return [least | {"line": {"shape": "hv", "width": 0}}, line | greatest]


def _interrupted(
    counted: Mapping[str, NDArray[Any]], name: str, columns: Mapping[str, NDArray[Any]], *units: Any
) -> list[dict[str, Any]]:
    """Return the line of *name* without a level in stretches that have no events, over no area."""
    starts, ends, x = counted["bare.from"], counted["bare.to"], columns[f"{name}.x"]
    row = np.searchsorted(starts, x, side="right") - 1
    y = np.where((row >= 0) & (x < ends[row]), np.nan, columns[f"{name}.y"])
    at = np.searchsorted(x, starts)
    return [_line(name, np.insert(x, at, starts), np.insert(y, at, np.nan), *units)]


def _counted(counted: Mapping[str, NDArray[Any]], unit: int, unit_name: str) -> list[dict[str, Any]]:
    """Return the peaks of steps without events as bars over the step, and their last levels as points."""
    start, end, y, level = (counted[f"counted.{name}"] for name in ("x", "end", "y", "level"))
    gap = np.full(len(start), np.nan)
    ends = [np.stack(each, axis=1).ravel() for each in ((start, end, gap), (y, y, gap), (gap, level, gap))]
    x, peaks, levels = (np.where(each < 0, np.nan, each) for each in ends)
    usual = {"type": "scatter", "meta": unit_name, "x": pack(x), **_UNPADDED}
    color = QUANTITY_COLOR["allocated"]
    bars = {"mode": "lines", "uid": "counted", "name": "peak", "y": pack(scaled(peaks, unit))}
    points = {"mode": "markers", "uid": "counted-level", "name": "level", "y": pack(scaled(levels, unit))}
    return [
        usual | bars | {"line": {"color": color, "width": 2}},
        usual | points | {"marker": {"color": color, "size": 4}},
    ]


def _line(name: str, x: NDArray[Any], n_bytes: NDArray[Any], unit: int, unit_name: str) -> dict[str, Any]:
    # The stylesheet's handle is the uid: Plotly makes it a class of the trace.
    return {
        "type": "scatter", "mode": "lines", "uid": name, "name": name, "meta": unit_name, "x": pack(x),
        "y": pack(scaled(n_bytes, unit)),
        "line": {"shape": "hv", "color": QUANTITY_COLOR[name], **_LINE[name]},
    }  # fmt: skip


def _samples(columns: Mapping[str, NDArray[Any]], unit: int, unit_name: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "uid": "device_used", "name": "device_used",
        "meta": unit_name, "x": pack(columns["device_used.x"]),
        "y": pack(scaled(columns["device_used.y"], unit)), **_UNPADDED,
        "marker": {"color": QUANTITY_COLOR["device_used"], "size": 4, "symbol": "circle"},
    }  # fmt: skip


def _phases(columns: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """Return one thick line for each phase with a gap after every band."""
    edges, kind = columns["phase.x"], columns["phase.kind"]
    bands = np.stack([edges[:-1], edges[1:], np.full(len(kind), np.nan)], axis=1)
    height = np.resize([0.74, 0.74, np.nan], bands.shape)
    return [
        {
            "type": "scatter", "mode": "lines", "name": phase.name.lower(), "uid": f"phase{int(phase)}",
            "x": pack(bands[kind == phase].ravel()), "y": pack(height[kind == phase].ravel()),
            "yaxis": "y2", "line": {"color": PHASE_COLOR[phase], "width": 11},
        }
        for phase in Phase
        if phase != Phase.OTHER
    ]  # fmt: skip


def _steps(columns: Mapping[str, NDArray[Any]], extent: tuple[float, float]) -> list[dict[str, Any]]:
    """Return the borders of steps where they are few, and names of steps that do not touch."""
    start, end, number = (columns[f"step.{name}"] for name in ("start", "end", "number"))
    borders = np.union1d(start, end)
    borders = np.repeat(borders if len(borders) <= MOST_BORDERS else borders[:0], 3)
    center, room = (start + end) / 2, (extent[1] - extent[0]) / (MOST_NAMES + 1)
    stride = spacing(int(np.ptp(number)) if len(number) else 0, MOST_NAMES)
    named: list[int] = []
    for row in np.flatnonzero(number % stride == 0).tolist():
        if not named or center[row] - center[named[-1]] >= room:
            named.append(row)
    return [
        {
            "type": "scatter", "mode": "lines", "name": "step", "uid": "steplines", "yaxis": "y3",
            "x": pack(borders), "y": pack(np.resize([0.0, 1.0, np.nan], len(borders))),
            "line": {"width": 1, "color": "rgba(128,128,128,0.35)"},
        },
        {
            "type": "scatter", "mode": "text", "name": "step", "uid": "stepnames", "yaxis": "y2",
            "x": pack(center[named]), "y": pack(np.full(len(named), 0.2)), **_UNPADDED,
            "text": [f"step {n}" for n in number[named]], "textfont": {"size": 11}, "cliponaxis": True,
        },
    ]  # fmt: skip


def _flags(drawn: Track) -> dict[str, Any]:
    position, names = drawn.columns["flag.x"], drawn.facts["flags"]
    looks = [_FLAG[kind] for kind in drawn.columns["flag.kind"].tolist()]
    return {
        "type": "scatter", "mode": "markers+text" if len(names) <= MOST_NAMED_FLAGS else "markers",
        "name": "mark", "uid": "flags", "yaxis": "y3", "x": pack(position),
        "y": pack(np.full(len(names), 0.965)), **_UNPADDED, "text": [esc(name, 24) for name in names],
        "textposition": "middle right", "textfont": {"size": 11}, "cliponaxis": False,
        "marker": {"symbol": [look[0] for look in looks], "color": [look[1] for look in looks], "size": 9},
    }  # fmt: skip


def _cursor(x: float | None) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": "instant", "uid": "cursor", "yaxis": "y3",
        "x": [] if x is None else [x, x], "y": [] if x is None else [0, 1],
        "line": {"width": 1.5, "color": "#1F2933"},
    }  # fmt: skip
