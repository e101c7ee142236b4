"""The axis of one step by module: each module gets equal room in each phase, however many events it has."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.shapes import TensorShape
from vramscope.model.marks import ROOT_MODULE, Category, Phase, Phases
from vramscope.units import format_bytes, format_name

from .drawing.theme import PHASE_COLOR

MOST_COLUMNS = 160
MOST_MODULES, ENOUGH_MODULES = 60, 12
_OF_PARAMETERS = (Category.GRADIENT, Category.OPTIMIZER_STATE)


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
        name = "model itself" if each.name == ROOT_MODULE else each.name
        name = name if len(name) <= 18 else f"…{name[-17:].lstrip('.')}"
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


def highest(levels: Sequence[tuple[Category, NDArray[Any]]]) -> dict[Category, str]:
    """Return in words the most bytes of each category, and how many times the parameters they are."""
    most = {category: int(level.max(initial=0)) for category, level in levels}
    said = {category: format_bytes(n_bytes) for category, n_bytes in most.items()}
    parameters = most.get(Category.PARAMETER, 0)
    for category in _OF_PARAMETERS if parameters else ():
        times = round(most.get(category, 0) / parameters)
        if times and abs(most[category] - times * parameters) < 0.02 * most[category]:
            sign = "=" if most[category] == times * parameters else "≈"
            said[category] += f" {sign} {f'{times} × ' if times > 1 else ''}parameters"
    return said


_SEEN = {Category.INPUT: "the largest", Category.ACTIVATION: "the output"}
"""Categories of tensors whose shapes are recorded, and which of them is named."""


def of_tensor(category: Category, shape: TensorShape | None, most_bytes: int) -> str:
    """Return the bytes of the largest tensor as a product; '' for one that is no part to speak of."""
    return "" if shape is None or 100 * shape.n_bytes < most_bytes else f"{_SEEN[category]} {shape.words}"


_NUMBERED = re.compile(r"(.*?)(\d+)(?=\.|$| )")


def of_blocks(found: Sequence[ModuleColumn], edges: NDArray[Any], activations: NDArray[Any]) -> str:
    """Return what each of a row of like blocks adds to the activations: ``6 × 288 MiB in blocks.*``.

    '' where forward has no such row, or its blocks differ by more than a fiftieth.
    """
    at = np.minimum(edges - edges[0], len(activations) - 1)
    rows: dict[str, dict[str, int]] = {}
    for each, change in zip(found, np.diff(activations[at]).tolist(), strict=True):
        block = _NUMBERED.match(each.name)
        if each.phase == Phase.FORWARD and block:
            row = rows.setdefault(f"{block[1]}*", {})
            row[block[2]] = row.get(block[2], 0) + change
    name, row = max(rows.items(), key=lambda one: sum(one[1].values()), default=("", {}))
    each_bytes = sorted(row.values())
    if len(row) < 2 or not each_bytes[0] >= 0.98 * each_bytes[-1] > 0:
        return ""
    return f"{len(row)} × {format_bytes(each_bytes[len(row) // 2])} in {name}"
