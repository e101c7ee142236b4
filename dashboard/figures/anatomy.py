"""The axis of one step by module: each module gets equal room in each phase, however many events it has."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Category, Phase, Phases
from vramscope.units import format_bytes, format_name

from .drawing.theme import PHASE_COLOR

MOST_COLUMNS = 160
MOST_MODULES, ENOUGH_MODULES = 60, 12
_LEAST_SHARE = 0.06
"""Share of the highest level from which an area has room for its name."""
_OF_PARAMETERS = (Category.GRADIENT, Category.OPTIMIZER_STATE)
_ON = {"bgcolor": "rgba(255,255,255,.8)", "font": {"color": "#1F2933"}}
"""The look of a name on an area in Plotly; our own charts draw an outline."""


class ModuleColumn(NamedTuple):
    """One module in one phase, or a phase in which no module is known."""

    name: str
    phase: Phase
    start: int
    """Its first instant."""


def columns(
    phases: Phases, start: int, end: int, born: NDArray[Any], modules: Sequence[str]
) -> list[ModuleColumn]:
    """Return the columns of the step between two instants; none where there are too many, or no phases.

    *phases* are those of the step; *born* has the ascending events of its allocations, *modules* their
    modules, '' where unknown. A module begins with its first allocation in a phase.
    """
    outer = phases.rows(phases.depth == 0)
    found: list[ModuleColumn] = []
    edges = np.clip([start, *outer.start_event[1:].tolist(), end], start, end).tolist()
    for i, code in enumerate(outer.phase.tolist()):
        first, last = np.searchsorted(born, edges[i : i + 2])
        begins: dict[str, int] = {}
        for name, event in zip(modules[first:last], born[first:last].tolist(), strict=True):
            if name:
                begins.setdefault(name, event)
        names = list(begins) or [format_name(Phase(code))]
        found += map(ModuleColumn, names, [Phase(code)] * len(names), [edges[i], *list(begins.values())[1:]])
    ends = [*(each.start for each in found[1:]), end + 1]
    found = [each for each, until in zip(found, ends, strict=True) if each.start < until]
    return found if len(found) <= MOST_COLUMNS else []


def axis(found: Sequence[ModuleColumn], edges: NDArray[Any], allocated: NDArray[Any]) -> dict[str, Any]:
    """Return the axis: under each column its name and by how much it changed what is *allocated*."""
    at = np.minimum(edges - edges[0], len(allocated) - 1)
    texts = []
    for each, change in zip(found, np.diff(allocated[at]).tolist(), strict=True):
        sign = "+" if change > 0 else "−" if change else ""
        name = each.name if len(each.name) <= 18 else f"…{each.name[-17:].lstrip('.')}"
        texts.append(f"{name} {sign}{format_bytes(abs(change))}")
    return {"tickprefix": "", "fixedrange": True, "range": [0, len(found)], "ticktext": texts,
            "tickvals": [i + 0.5 for i in range(len(found))], "tickangle": -60}  # fmt: skip


def bands(found: Sequence[ModuleColumn]) -> list[dict[str, Any]]:
    """Return the phases as bands along the foot of the picture, over their columns."""
    shapes, x = [], 0
    for phase, mine in groupby(each.phase for each in found):
        until = x + len(list(mine))
        # A single column has no room for the name, which the axis has then.
        label = {"text": format_name(phase) if until > x + 1 else "", "font": {"color": "#fff"}}
        shapes.append(
            {"type": "rect", "xref": "x", "yref": "paper", "x0": x, "x1": until, "y0": -0.05, "y1": 0,
             "fillcolor": PHASE_COLOR[phase], "line": {"width": 0}, "label": label}
        )  # fmt: skip
        x = until
    return shapes


def labels(levels: Sequence[tuple[Category, NDArray[Any]]], x: NDArray[Any]) -> list[dict[str, Any]]:
    """Return the names of the areas that have room, each with its highest bytes of all instants.

    *levels* are stacked in that order, *x* are the positions of the instants.
    """
    below, top = np.zeros(len(x), "i8"), np.sum([level for _, level in levels], axis=0).max()
    parameters = max((int(level.max()) for each, level in levels if each == Category.PARAMETER), default=0)
    found: list[dict[str, Any]] = []
    taken: list[tuple[float, float]] = []
    for category, level in levels:
        most = int(level.max())
        times = round(most / parameters) if parameters and category in _OF_PARAMETERS else 0
        is_near = times > 0 and abs(most - times * parameters) < 0.02 * most
        many = f"{times} × parameters" if times > 1 else "parameters"
        formula = f" {'=' if most == times * parameters else '≈'} {many}" if is_near else ""
        if most > _LEAST_SHARE * top:
            text = f"{format_name(category)} {format_bytes(most)}{formula}"
            middle = below + level // 2
            at = _clear_place(level, middle / top, x / max(x[-1], 1), taken)
            taken.append((float(x[at] / max(x[-1], 1)), float(middle[at] / top)))
            y = int(middle[at])
            side = ("left", "center", "right")[int(2.99 * x[at] / max(x[-1], 1))]
            found.append({"text": text, "x": float(x[at]), "y": y, "showarrow": False, "xanchor": side} | _ON)
        below = below + level
    return found


def _clear_place(
    level: NDArray[Any], middle: NDArray[Any], x: NDArray[Any], taken: Sequence[tuple[float, float]]
) -> int:
    """Return the instant at which an area is high and its name clear of the *taken* places, in shares."""
    high = np.flatnonzero(level >= 0.5 * level.max())
    high = high[np.argsort(-level[high], kind="stable")]
    for at in high.tolist():
        if all(abs(x[at] - left) > 0.3 or abs(middle[at] - down) > 0.05 for left, down in taken):
            return int(at)
    return int(high[0])
