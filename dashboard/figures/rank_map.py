"""The heat map of ranks and steps: a cell for neighboring ranks in neighboring steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vramscope.analysis.rank_comparison.heat_map import UNKNOWN, HeatMap

from .drawing.theme import base_layout, byte_unit, pack, scaled
from .steps import FEW_LABELS, spacing

MOST_CELLS = (128, 256)
"""Rows and columns: 128 × 256 cells of four bytes are 175 kB."""
COLORS = "Cividis"
"""Light is full; readable with every kind of color vision, on both themes."""
_DARKEST = 0.02
"""The share of the emptiest cells that have the darkest color."""
_LEAST_RANGE = 0.97
"""The darkest color is at most this share of the lightest."""


def color_range(found: HeatMap) -> tuple[int, int]:
    """Return the bytes of the darkest and of the lightest color: of what is shown, so that it has contrast.

    A first step of half the size would use up most colors, so the emptiest cells share the darkest.
    """
    known = found.most_bytes[found.most_bytes != UNKNOWN]
    if not len(known):
        return 0, 1
    low, high = int(np.quantile(known, _DARKEST)), max(int(known.max()), 1)
    # Noise must not look like a difference.
    return min(low, int(_LEAST_RANGE * high)), high


def figure(found: HeatMap, view: list[list[float]]) -> dict[str, Any]:
    """Return the heat map.

    *view* are left and right edge in steps, upper and lower edge in ranks.
    """
    colors = color_range(found)
    unit, name = byte_unit(colors[1])
    axes = {
        "xaxis": {"showgrid": False, "zeroline": False, "tickprefix": "step ", "exponentformat": "none",
                  "range": view[0], **step_ticks(view[0]), "tickangle": 0, "ticks": "outside", "ticklen": 4,
                  "minallowed": -0.5},
        "yaxis": {"showgrid": False, "zeroline": False, "tickprefix": "rank ", "exponentformat": "none",
                  "range": [view[1][1], view[1][0]], **ticks(view[1]), "ticks": "outside", "ticklen": 4,
                  "minallowed": -0.5},
    }  # fmt: skip
    margin = {"l": 84, "r": 84, "t": 10, "b": 34}
    heat = {
        "type": "heatmap", **cells(found, unit), "colorscale": COLORS, "hoverinfo": "none",
        "zmin": colors[0] / unit, "zmax": colors[1] / unit, "zsmooth": False,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "ticksuffix": f" {name}", "len": 1, "xpad": 8,
                     "ypad": 0, "nticks": 5},
    }  # fmt: skip
    layout = base_layout(**axes, margin=margin, hovermode="closest", dragmode="zoom", meta=meta(found, name))
    return {"data": [heat], "layout": layout}


def step_ticks(edges: Sequence[float]) -> dict[str, int]:
    """Return the ticks of the axis of steps, few enough to lie level."""
    return ticks(edges, FEW_LABELS)


def ticks(edges: Sequence[float], most: int = 12) -> dict[str, int]:
    """Return the ticks of an axis: ranks and steps are whole numbers, however close the view."""
    return {"tick0": 0, "dtick": spacing(int(edges[1] - edges[0]), most)}


def cells(found: HeatMap, unit: int) -> dict[str, Any]:
    """Return the cells with their edges, half a step before the first step and after the last."""
    x = np.append(found.first_step, found.first_step[-1:] + found.steps_per_column) - 0.5
    y = np.append(found.first_rank, found.first_rank[-1:] + found.ranks_per_row) - 0.5
    known = np.where(found.most_bytes == UNKNOWN, np.nan, scaled(found.most_bytes, unit)).astype("f4")
    z = pack(known.reshape(-1)) | {"shape": f"{known.shape[0]}, {known.shape[1]}"}
    return {"z": z, "x": pack(x), "y": pack(y)}


def meta(found: HeatMap, unit_name: str) -> dict[str, Any]:
    """Return what the browser needs to name the cell under the pointer."""
    return {"ranks": found.ranks_per_row, "steps": found.steps_per_column, "unit": unit_name}
