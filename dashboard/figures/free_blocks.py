"""The chart of the largest free block of each kind of memory, at the instants of the analysis."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.largest_free import LargestFree

from .drawing.series import EVENTS, Series
from .drawing.theme import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    base_layout,
    byte_axis,
    byte_unit,
    pack,
    scaled,
)

COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, "#6A51A3")


class BlockKind(NamedTuple):
    """A pool, stream and size class, whose free blocks serve the same requests."""

    name: str
    color: str
    rows: NDArray[Any]
    """Rows of the table."""


def kinds_of(found: LargestFree, pools: Sequence[tuple[int, int]]) -> list[BlockKind]:
    """Return the kinds that occur, those with most free bytes first; as many as there are colors."""
    columns = np.stack([found.pool.astype("i8"), found.stream.astype("i8"), found.is_large.astype("i8")])
    known, of = np.unique(columns, axis=1, return_inverse=True)
    of = of.reshape(-1)
    most = [int(found.free_bytes[of == kind].max(initial=0)) for kind in range(known.shape[1])]
    order = sorted(range(len(most)), key=lambda kind: -most[kind])[: len(COLORS)]
    streams = np.unique(known[1]).tolist()
    return [
        BlockKind(_name(known[:, kind].tolist(), pools, streams), COLORS[i], np.flatnonzero(of == kind))
        for i, kind in enumerate(order)
    ]


def _name(kind: list[int], pools: Sequence[tuple[int, int]], streams: list[int]) -> str:
    pool, stream, is_large = kind
    words = ["large blocks" if is_large else "small blocks"]
    if len(streams) > 1:
        words.append(f"stream {streams.index(stream)}")
    if 0 <= pool < len(pools) and pools[pool] != (0, 0):
        words.append(f"private pool {pools[pool]}")
    return ", ".join(words)


def figure(series: Series, found: LargestFree, kinds: Sequence[BlockKind]) -> dict[str, Any]:
    """Return a line for each kind."""
    unit, unit_name = byte_unit(int(found.largest_bytes.max(initial=0)))
    lines = [
        _line(
            kind.name,
            kind.color,
            _places(series, found.instant[kind.rows]),
            found.largest_bytes[kind.rows],
            found.instant[kind.rows],
            unit,
        )
        for kind in kinds
    ]
    first, last = series.extent
    axes = {
        "xaxis": {"showgrid": False, "zeroline": False, "ticks": "outside", "ticklen": 4, "nticks": 7,
                  "exponentformat": "none", "separatethousands": True, "range": [first, last],
                  "tickprefix": "event " if series.axis == EVENTS else "",
                  "ticksuffix": "" if series.axis == EVENTS else " s"},
        "yaxis": byte_axis(unit_name),
    }  # fmt: skip
    margin = {"l": 72, "r": 16, "t": 10, "b": 34}
    return {"data": lines, "layout": base_layout(**axes, hovermode="x unified", margin=margin)}


def _places(series: Series, instants: NDArray[Any]) -> NDArray[Any]:
    return series.position[np.minimum(instants, len(series.position) - 1)]


def _line(
    name: str, color: str, x: NDArray[Any], n_bytes: NDArray[Any], instants: NDArray[Any], unit: int
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "uid": f"free-{name}", "x": pack(x),
        "y": pack(scaled(n_bytes, unit)), "customdata": pack(instants),
        "marker": {"size": 3.5, "color": color}, "hovertemplate": "%{y:.2f}",
        "line": {"width": 1.6, "color": color, "shape": "hv"},
    }  # fmt: skip
