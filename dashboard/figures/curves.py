"""The charts of lines: reserved bytes as recorded and as replayed, and bytes that grow from step to step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.model.past import most_of

from .drawing.theme import (
    BLUE,
    EVENTS_AXIS,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    byte_axis,
    byte_unit,
    esc,
    in_unit,
    pack,
    plain_chart,
    scaled,
)
from .steps import FEW_LABELS, line, spacing

COLORS = (VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY, "#6A51A3", "#7A8896")


class NamedCurve(NamedTuple):
    """A curve with a name: bytes after each event, or of each step."""

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
    shapes = [_limit(capacity / unit)] if shown else []
    return plain_chart(lines, EVENTS_AXIS, byte_axis(unit_name), shapes=shapes)


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
    return np.maximum(most_of(levels, first, edges + 1), 0)


def growth(
    levels: NDArray[Any], names: Sequence[str], x: NDArray[Any], dashes: Sequence[str] = (),
    counted: Sequence[NamedCurve] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return one line for each row of *levels*.

    They are bytes, shape (lines, steps); *x* has the number of each step, *dashes* Plotly's dash of each
    line, solid where missing. *counted* has bytes by step that are drawn as points.
    """
    lines = [
        _growth_line(level, name, i, x) for i, (level, name) in enumerate(zip(levels, names, strict=True))
    ]
    for each, dash in zip(lines, dashes, strict=False):
        each["line"]["dash"] = dash
    lines += by_counters(counted, len(lines))["data"]
    x = np.concatenate([x, *(each.events for each in counted)])
    # Plotly would go on to the next label, which is then cut at the edge.
    edges = {"range": [float(x.min()) - 0.5, float(x.max()) + 0.5]} if len(x) else {}
    distance = spacing(int(np.ptp(x)) if len(x) else 0, FEW_LABELS)
    steps = {"tickprefix": "step ", "dtick": distance, "tickangle": 0, **edges}
    return in_unit(plain_chart(lines, steps, byte_axis()))


def by_counters(counted: Sequence[NamedCurve], first: int = 0) -> dict[str, Any]:
    """Return bytes by step as points, between which nothing is known, in the colors from *first* on."""
    lines = [_growth_line(each.n_bytes, each.name, i, each.events) for i, each in enumerate(counted, first)]
    points = [each | {"mode": "markers", "marker": {"size": 5} | each["line"]} for each in lines]
    return plain_chart(points, {"tickprefix": "step "}, byte_axis())


def _growth_line(level: NDArray[Any], name: str, i: int, x: NDArray[Any]) -> dict[str, Any]:
    return line(esc(name, 60), COLORS[i % len(COLORS)], x, level, x) | {"uid": f"growth{i}"}
