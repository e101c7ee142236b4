"""The chart of cudaMalloc and cudaFree by step, up and down from zero; retries are marked."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.churn import ChurnOverTime
from vramscope.model.marks import Steps

from .drawing.theme import ORANGE, SKY, VERMILION, byte_axis, byte_unit, pack, plain_chart, scaled
from .steps import FEW_LABELS, spacing

MOST_BARS = 160
CAME, WENT, RETRY, FAILED = "cudaMalloc", "cudaFree", "retry", "out of memory"
_ZERO = "rgba(128,128,128,0.6)"
COLOR = {CAME: SKY, WENT: "#7A8896", RETRY: ORANGE, FAILED: VERMILION}


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Sums over neighboring steps; one row per bar."""

    per_bar: int
    index: NDArray[Any]
    """Number of the first step of each bar."""
    instant: NDArray[Any]
    """Instant at which each bar begins."""
    came: NDArray[Any]
    """Bytes from cudaMalloc; ``went`` those of cudaFree."""
    went: NDArray[Any]
    retries: NDArray[Any]
    failures: NDArray[Any]


def bars_of(found: ChurnOverTime, steps: Steps) -> Bars:
    """Return the sums of *found*, which has no rows outside of steps and at least as many rows as *steps*."""
    per_bar = -(-len(steps) // MOST_BARS) or 1
    first = np.arange(0, len(steps), per_bar)
    columns = (found.made_bytes, found.released_bytes, found.n_retries, found.n_ooms)
    sums = (np.add.reduceat(column[: len(steps)], first) for column in columns)
    return Bars(per_bar, steps.index[first], steps.start_event[first], *sums)


def present(bars: Bars) -> list[tuple[str, str]]:
    """Return color and name of the kinds that occur."""
    values = {CAME: bars.came, WENT: bars.went, RETRY: bars.retries, FAILED: bars.failures}
    return [(COLOR[name], name) for name, column in values.items() if column.any()]


def figure(bars: Bars) -> dict[str, Any]:
    """Return bars over the numbers of the steps; a click gives the instant at which the step begins."""
    unit, unit_name = byte_unit(int(max(bars.came.max(initial=0), bars.went.max(initial=0))))
    top = float(bars.came.max(initial=1)) / unit
    drawn = [_bar(CAME, bars, bars.came, unit), _bar(WENT, bars, -bars.went, unit)]
    drawn += [_signs(RETRY, "triangle-up", bars, bars.retries, top * 1.1),
              _signs(FAILED, "x", bars, bars.failures, top * 1.2)]  # fmt: skip
    span = int(bars.index[-1] - bars.index[0]) + 1 if len(bars.index) else 1
    steps = {
        "tickprefix": "step ",
        "dtick": spacing(span, FEW_LABELS),
        "tickangle": 0,
        "separatethousands": True,
    }
    levels = byte_axis(unit_name, rangemode="normal", zeroline=True, zerolinecolor=_ZERO)
    return plain_chart(drawn, steps, levels, barmode="relative", bargap=0.15)


def _bar(name: str, bars: Bars, n_bytes: NDArray[Any], unit: int) -> dict[str, Any]:
    return {
        "type": "bar", "name": name, "uid": f"churn-{name}", "x": pack(bars.index),
        "y": pack(scaled(n_bytes, unit)), "customdata": pack(bars.instant),
        "offset": 0, "width": 0.85 * bars.per_bar, "marker": {"color": COLOR[name]},
        "hovertemplate": "%{y:.2f}",
    }  # fmt: skip


def _signs(name: str, symbol: str, bars: Bars, count: NDArray[Any], height: float) -> dict[str, Any]:
    rows = np.flatnonzero(count)
    return {
        "type": "scatter", "mode": "markers", "name": name, "uid": f"churn-{name}",
        "x": pack(bars.index[rows] + 0.42 * bars.per_bar), "y": [height] * len(rows),
        "customdata": pack(bars.instant[rows]), "text": [f"{n:,}" for n in count[rows].tolist()],
        "marker": {"symbol": symbol, "size": 9, "color": COLOR[name]}, "hovertemplate": "%{text}",
    }  # fmt: skip
