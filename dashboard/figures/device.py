"""The chart of the device's memory by sample: areas from the tensors up to other processes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawing.m4 import even_edges, m4
from .drawing.theme import GRAY, PART_COLOR, byte_axis, byte_unit, pack, plain_chart, scaled

COLUMNS = 150
COLOR = {
    "requested": PART_COLOR["requested"],
    "allocated": PART_COLOR["requested"],
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


def figure(found: Any, row: int) -> dict[str, Any]:
    """Return the parts stacked over seconds since the first sample; the sample *row* is marked."""
    level = np.maximum(np.where(found.used_bytes >= 0, found.used_bytes, found.reserved_bytes), 0)
    kept = np.arange(len(level))
    if len(level) > 3 * COLUMNS:
        kept = np.union1d(m4([level], even_edges(0, len(level), COLUMNS)), [row])
    top = int(level.max(initial=0))
    unit, unit_name = byte_unit(top)
    x = (found.time_ns[kept] - found.time_ns[0]) / 1e9
    areas = [
        _area(name, x, values[kept], kept, unit) for name, values in stacked(found).items() if values.any()
    ]
    total = found.total_bytes[kept]
    # The line of a device that is far from full would press everything else flat.
    lines = [_limit(x, total, unit)] if 0 < total.max(initial=0) <= 2.5 * top else []
    at = float((found.time_ns[row] - found.time_ns[0]) / 1e9)
    cursor = {
        "type": "scatter", "mode": "lines", "uid": "cursor", "hoverinfo": "skip", "x": [at, at],
        "y": [0, float(max(level.max(initial=1), 1)) / unit], "line": {"width": 1.5, "color": "#1F2933"},
    }  # fmt: skip
    seconds = {"ticksuffix": " s", "nticks": 9}
    return plain_chart([*areas, *lines, cursor], seconds, byte_axis(unit_name))


def stacked(found: Any) -> dict[str, NDArray[Any]]:
    """Return parts by name; where a part is unknown at a sample, the remainder of the sum it belongs to."""
    columns = {name.removesuffix("_bytes"): column for name, column in found.columns()}
    parts = {name: np.maximum(columns[name], 0) for name in COLOR if name in columns}
    unknown = found.requested_bytes < 0
    parts["allocated"] = np.where(unknown, np.maximum(found.allocated_bytes, 0), 0)
    inside = (
        "requested",
        "allocated",
        "rounding",
        "pending",
        "inactive_split",
        "releasable",
        "private_pools",
    )
    rest = np.maximum(found.reserved_bytes, 0) - sum(parts[name] for name in inside)
    parts["releasable"] = parts["releasable"] + np.where(unknown, np.maximum(rest, 0), 0)
    beyond = parts["own_outside"] + parts["others"] + parts["unattributed"]
    known = np.maximum(found.reserved_bytes, 0) + beyond
    vague = (found.own_outside_bytes < 0) | (found.others_bytes < 0)
    left = np.where(vague & (found.used_bytes >= 0), np.maximum(found.used_bytes - known, 0), 0)
    parts["outside"] = np.where(found.reserved_bytes >= 0, left, 0)
    # torch's bytes are in it too where nobody recorded them.
    parts["used"] = np.where(found.reserved_bytes >= 0, 0, left)
    return parts


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
