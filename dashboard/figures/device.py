"""The chart of the device's memory by sample: areas from the tensors up to other processes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawing.m4 import even_edges, m4
from .drawing.theme import GRAY, PART_COLOR, byte_axis, byte_unit, pack, plain_chart, scaled, time_axis
from .steps import spacing

COLUMNS = 150
COLOR = {
    "requested": PART_COLOR["requested"],
    "allocated": PART_COLOR["requested"],
    "unallocated": PART_COLOR["releasable"],
    "reserved": PART_COLOR["requested"],
    **{name: PART_COLOR[name] for name in ("rounding", "pending", "inactive_split", "releasable")},
    "private_pools": PART_COLOR["private_pools"],
    "nccl": PART_COLOR["nccl"],
    "own_outside": PART_COLOR["outside"],
    "others": PART_COLOR["others"],
    "unattributed": GRAY,
    "outside": PART_COLOR["outside"],
    "used": PART_COLOR["requested"],
}
"""Colors of the parts in the order in which they are stacked."""


def figure(
    found: Any, steps: Any, row: int, origin_ns: int, range_s: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Return the parts stacked over the samples; the sample *row* is marked.

    Zero of the axis is at *origin_ns*, and it shows *range_s*, and all samples where that is None; it goes
    on to the sample *row* where that lies later.
    """
    parts = stacked(found)
    level = np.sum([*parts.values()], axis=0)
    kept = np.arange(len(level))
    if len(level) > 3 * COLUMNS:
        kept = np.union1d(m4([level], even_edges(0, len(level), COLUMNS)), [row])
    top = int(level.max(initial=0))
    unit, unit_name = byte_unit(top)
    position, word = positions(found, steps, origin_ns)
    x = position[kept]
    if word:  # a level without a clock holds for as long as the one before, also the last
        x, kept = np.append(x, 2 * position[-1] - position[-2:][0] or 1), np.append(kept, len(level) - 1)
    at = float(position[row])
    if word:
        axis = {"tickprefix": f"{word} ", "tickformat": "d", "dtick": spacing(int(x[-1] - x[0]))}
    else:
        start_s, end_s = range_s or (0.0, float(x[-1]))
        unit_s, axis = time_axis(start_s, max(end_s, at))
        at, x = at / unit_s, x / unit_s
    areas = [_area(name, x, values[kept], kept, unit) for name, values in parts.items() if values.any()]
    total = found.total_bytes[kept]
    # The line of a device that is far from full would press everything else flat.
    lines = [_limit(x, total, unit)] if 0 < total.max(initial=0) <= 2.5 * top else []
    cursor = {
        "type": "scatter", "mode": "lines", "uid": "cursor", "hoverinfo": "skip", "x": [at, at],
        "y": [0, float(max(level.max(initial=1), 1)) / unit], "line": {"width": 1.5, "color": "#1F2933"},
    }  # fmt: skip
    return plain_chart([*areas, *lines, cursor], axis, byte_axis(unit_name))


def positions(found: Any, steps: Any, origin_ns: int) -> tuple[NDArray[Any], str]:
    """Return where the samples lie and the word for it: '' for seconds; without a clock, step or sample."""
    if found.has_clock:
        return (found.time_ns - origin_ns) / 1e9, ""
    row = np.searchsorted(steps.end_ns, found.time_ns)
    if len(steps) and row[-1] < len(steps):
        return steps.index[row], "step"
    return np.arange(len(found)), "sample"


def stacked(found: Any) -> dict[str, NDArray[Any]]:
    """Return the bytes of the parts in the order in which they are stacked."""
    parts = found.parts()
    return {name: np.maximum(parts[name], 0) for name in COLOR}


def _area(name: str, x: NDArray[Any], n_bytes: NDArray[Any], rows: NDArray[Any], unit: int) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "uid": f"part-{name}", "name": name.replace("_", " "),
        "stackgroup": "all", "x": pack(x), "y": pack(scaled(n_bytes, unit)), "fillcolor": COLOR[name],
        "customdata": pack(rows), "line": {"shape": "hv", "width": 0, "color": COLOR[name]},
        "hovertemplate": "%{y:.2f}",
    }  # fmt: skip


def _limit(x: NDArray[Any], total: NDArray[Any], unit: int) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "uid": "capacity", "name": "capacity", "x": pack(x),
        "y": pack(np.maximum(total, 0) / unit), "line": {"width": 1.4, "dash": "dash", "color": "#D55E00"},
        "hovertemplate": "%{y:.2f}",
    }  # fmt: skip
