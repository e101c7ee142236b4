"""The figures of a failed allocation: the curve into it, and the parts of the device at that moment."""

from typing import Any, NamedTuple

import numpy as np

from vramscope.units import format_bytes

from .drawing.series import TIME, Series
from .drawing.theme import (
    EVENTS_AXIS,
    QUANTITY_COLOR,
    QUANTITY_FILL,
    VERMILION,
    base_layout,
    byte_axis,
    byte_unit,
    esc,
    pack,
    scaled,
    time_axis,
)
from .drawing.window import Window
from .track import columns_of, reduced

COLUMNS = 400
STEPS_BEFORE = 3
SHARE = 0.25
"""Share of a recording without steps that is shown."""


def figure(
    series: Series, event: int, first_event: int, requested_bytes: int, most_bytes: int, most_name: str
) -> dict[str, Any]:
    """Return the curve of the totals up to a failed allocation.

    *event* is the instant of the failure; the picture begins at *first_event*. *most_name* is what has
    *most_bytes*, 0 where unknown: the device, or the limit of the process.
    """
    start, end = float(series.position[first_event]), float(series.position[event])
    view = Window(start, end if end > start else start + 1.0)
    wanted = int(series.allocated[event]) + requested_bytes
    top = max(wanted, most_bytes, int(series.reserved[first_event : event + 1].max(initial=0)))
    unit, unit_name = byte_unit(top)
    right = view.end + 0.035 * (view.end - view.start)
    unit_s, named = time_axis(view.start, right, 6) if series.axis == TIME else (1.0, EVENTS_AXIS)
    left, failed, end = view.start / unit_s, view.end / unit_s, right / unit_s
    units = (unit_s, unit)
    traces = [_curve(series, name, view, right, units) for name in ("reserved", "allocated")]
    traces.append(_request(failed, end, int(series.allocated[event]), requested_bytes, unit))
    notes = []
    if most_bytes:
        traces.append(_line(left, end, most_bytes / unit))
        most = esc(f"{most_name}: {format_bytes(most_bytes)}")
        place = {"x": left, "y": most_bytes / unit, "xanchor": "left", "yanchor": "bottom"}
        notes = [{"text": most, "showarrow": False, **place}]
    axis_x = {"range": [left, end], "fixedrange": True, "showgrid": False, "zeroline": False} | named
    axis_y = byte_axis(unit_name, range=[0, 1.12 * top / unit])
    margins = {"l": 72, "r": 20, "t": 8, "b": 30}
    layout = base_layout(xaxis=axis_x, yaxis=axis_y, margin=margins, annotations=notes, dragmode=False)
    return {"data": traces, "layout": layout}


def _curve(series: Series, name: str, view: Window, right: float, units: tuple[float, int]) -> dict[str, Any]:
    unit_s, unit = units
    values = getattr(series, name)
    points = reduced(series.position, values, columns_of(series.position, view, COLUMNS))
    at, level = np.append(points.position, right), np.append(points.value, points.value[-1:])
    return {
        "type": "scatter", "mode": "lines", "uid": name, "name": name,
        "x": pack(at / unit_s), "y": pack(scaled(level, unit)),
        "line": {"shape": "hv", "color": QUANTITY_COLOR[name], "width": 1.6},
        "fill": "tozeroy", "fillcolor": QUANTITY_FILL[name],
    }  # fmt: skip


def _request(start: float, end: float, below: int, requested: int, unit: int) -> dict[str, Any]:
    low, high = below / unit, (below + requested) / unit
    return {
        "type": "scatter", "mode": "lines", "uid": "request", "name": "requested",
        "x": [start, end, end, start, start], "y": [low, low, high, high, low],
        "line": {"color": VERMILION, "width": 1.6}, "fill": "toself", "fillcolor": "rgba(213,94,0,0.30)",
    }  # fmt: skip


def _line(start: float, end: float, level: float) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "uid": "capacity", "name": "limit", "x": [start, end],
        "y": [level, level], "line": {"color": QUANTITY_COLOR["capacity"], "width": 1.4, "dash": "dash"},
    }  # fmt: skip


class RoomPart(NamedTuple):
    """One kind of bytes of a device."""

    name: str
    """The column of the analysis, without ``_bytes``."""
    label: str
    style: str
    """Its name in the palette of parts."""


PARTS = (
    RoomPart("allocated", "allocated", "requested"),
    RoomPart("free_here", "free, for such requests", "inactive_split"),
    RoomPart("free_other_streams", "free or pending, other streams", "pending"),
    RoomPart("free_other_sizes", "free, other size class", "releasable"),
    RoomPart("free_private", "free, private pools", "rounding"),
    RoomPart("own_outside", "this process outside of torch", "outside"),
    RoomPart("others", "other processes", "others"),
    RoomPart("unattributed", "not attributed to a process", "unknown"),
    RoomPart("device_free", "free on the device", "none"),
)


def known_parts(room: Any) -> list[tuple[RoomPart, int]]:
    """Return the parts that have bytes at a failure, with their bytes."""
    known = [(part, int(getattr(room, f"{part.name}_bytes"))) for part in PARTS]
    return [(part, n_bytes) for part, n_bytes in known if n_bytes > 0]
