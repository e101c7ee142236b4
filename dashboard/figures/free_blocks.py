"""The chart of the largest free block of each kind of memory, at the instants of the analysis."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.largest_free import LargestFree

from .drawing.series import EVENTS, Series
from .drawing.theme import BLUE, GREEN, ORANGE, PURPLE, SKY, byte_axis, in_unit, pack, plain_chart

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
    axis = {
        "nticks": 7, "separatethousands": True, "range": list(series.extent),
        "tickprefix": "event " if series.axis == EVENTS else "",
        "ticksuffix": "" if series.axis == EVENTS else " s",
    }  # fmt: skip
    return in_unit(plain_chart([_line(series, found, kind) for kind in kinds], axis, byte_axis()))


def _line(series: Series, found: LargestFree, kind: BlockKind) -> dict[str, Any]:
    instants = found.instant[kind.rows]
    places = series.position[np.minimum(instants, len(series.position) - 1)]
    return {
        "type": "scatter", "mode": "lines+markers", "name": kind.name, "uid": f"free-{kind.name}",
        "x": pack(places), "y": pack(found.largest_bytes[kind.rows]), "customdata": pack(instants),
        "marker": {"size": 3.5, "color": kind.color}, "hovertemplate": "%{y:.2f}",
        "line": {"width": 1.6, "color": kind.color, "shape": "hv"},
    }  # fmt: skip
