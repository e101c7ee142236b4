"""The chart of the bytes that some lines hold at the same point of every step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawing.m4 import even_edges, m4
from .drawing.theme import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    byte_axis,
    esc,
    in_unit,
    pack,
    plain_chart,
)
from .steps import FEW_LABELS, spacing

COLORS = (VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY, "#6A51A3", "#7A8896")
COLUMNS = 200


def figure(
    levels: NDArray[Any], names: Sequence[str], x: NDArray[Any], dashes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return one line for each row of *levels*.

    They are bytes, shape (lines, steps); *x* has the number of each step, *dashes* Plotly's dash of each
    line, solid where missing.
    """
    lines = [_line(level, name, i, x) for i, (level, name) in enumerate(zip(levels, names, strict=True))]
    for line, dash in zip(lines, dashes, strict=False):
        line["line"]["dash"] = dash
    # Plotly would go on to the next label, which is then cut at the edge.
    edges = {"range": [float(x[0]) - 0.5, float(x[-1]) + 0.5]} if len(x) else {}
    distance = spacing(int(x[-1] - x[0]) if len(x) else 0, FEW_LABELS)
    steps = {"tickprefix": "step ", "dtick": distance, "tickangle": 0, **edges}
    return in_unit(plain_chart(lines, steps, byte_axis()))


def _line(level: NDArray[Any], name: str, i: int, x: NDArray[Any]) -> dict[str, Any]:
    kept = np.arange(len(level))
    if len(level) > 2 * COLUMNS:
        kept = m4([level], even_edges(0, len(level), COLUMNS))
    color = COLORS[i % len(COLORS)]
    return {
        "type": "scatter", "mode": "lines+markers" if len(kept) <= 60 else "lines", "name": esc(name, 60),
        "uid": f"growth{i}", "x": pack(x[kept]), "y": pack(level[kept]),
        "line": {"width": 2, "color": color}, "marker": {"size": 6}, "hovertemplate": "%{y:.2f}",
    }  # fmt: skip
