"""The chart of reserved bytes of a run, as recorded and as replayed, over the allocated bytes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .drawing.theme import GREEN, SKY, VERMILION, byte_axis, byte_unit, esc, pack, plain_chart, scaled


class NamedCurve(NamedTuple):
    """A curve with a name: bytes after each event."""

    name: str
    events: NDArray[Any]
    n_bytes: NDArray[Any]


COLOR = {"before": SKY, "after": GREEN, "allocated": "#7A8896", "capacity": VERMILION}


def figure(
    before: NamedCurve, after: NamedCurve | None, allocated: NamedCurve, capacity: int = 0
) -> dict[str, Any]:
    """Return the lines of reserved bytes over the area of allocated bytes.

    *after* is None where no setting is chosen. *capacity* are bytes that the allocator can reserve, 0 where
    unknown, drawn up to twice the greatest of the curves.
    """
    curves = [curve for curve in (allocated, before, after) if curve is not None]
    top = max(int(curve.n_bytes.max(initial=0)) for curve in curves)
    shown = 0 < capacity <= 2 * top
    unit, unit_name = byte_unit(max(top, capacity if shown else 0))
    lines = [_line("allocated", allocated, unit, fill="tozeroy"), _line("before", before, unit, dash="dot")]
    lines += [_line("after", after, unit)] if after is not None else []
    events = {"tickprefix": "event ", "nticks": 5, "separatethousands": True}
    shapes = [_limit(capacity / unit)] if shown else []
    return plain_chart(lines, events, byte_axis(unit_name), shapes=shapes)


def _line(kind: str, curve: NamedCurve, unit: int, **more: str) -> dict[str, Any]:
    style = {"width": 2 if kind != "allocated" else 1, "color": COLOR[kind], "shape": "hv"}
    fill = {"fill": more["fill"], "fillcolor": "rgba(122, 136, 150, .22)"} if "fill" in more else {}
    return {
        "type": "scatter", "mode": "lines", "name": esc(curve.name, 60), "uid": f"fit{kind}",
        "x": pack(curve.events), "y": pack(scaled(curve.n_bytes, unit)),
        "line": style | ({"dash": more["dash"]} if "dash" in more else {}), "hovertemplate": "%{y:.2f}",
    } | fill  # fmt: skip


def _limit(level: float) -> dict[str, Any]:
    style = {"color": COLOR["capacity"], "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": level, "y1": level, "line": style}


def outline(events: Sequence[int] | NDArray[Any], levels: NDArray[Any]) -> NDArray[Any]:
    """Return the greatest of *levels*, which are by instant, between each of *events* and the one before."""
    if not len(levels) or not len(events):
        return np.zeros(len(events), "i8")
    edges = np.clip(np.asarray(events) + 1, 0, len(levels) - 1)
    first = np.concatenate([[0], np.minimum(edges[:-1] + 1, len(levels) - 1)])
    return np.array([levels[a : b + 1].max(initial=0) for a, b in zip(first, edges, strict=True)])
