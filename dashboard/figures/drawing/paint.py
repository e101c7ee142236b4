"""Colors of the bands, a group per allocation with its name and color."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vramscope.analysis.by_module import Owners
from vramscope.analysis.folding import Folded
from vramscope.analysis.lifetimes import Allocations
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.package_data import rows
from vramscope.steps.innermost import phases_of
from vramscope.units import format_name

from .names import place
from .series import has_clock
from .theme import BLUE, CATEGORY_COLOR, GRAY, GREEN, ORANGE, PHASE_COLOR, PURPLE, SKY, VERMILION, YELLOW

WAYS = ("category", "phase", "module", "line", "age")
"""What a band can be colored by."""
_LINES = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW, "#6A51A3", "#8C6D31", "#3B8686", "#A05195")
_AGES = [(int(limit), name, color) for limit, name, color in rows(__file__, "theme.tsv", "age")]
_NEVER = ("not freed", "#26456E")
_EVENT_AGES = ("under 10 events", "under 100", "under 1,000", "under 10,000", "under 100,000", "longer")


@dataclass(frozen=True, slots=True, eq=False)
class Paint:
    """``group`` by row of the lifetimes; ``names`` and ``colors`` by group."""

    group: Array
    names: tuple[str, ...]
    colors: tuple[str, ...]


def by_category(category: Array) -> Paint:
    """Return the groups by category."""
    names = tuple(format_name(each) for each in Category)
    return Paint(category.astype("u1"), names, tuple(CATEGORY_COLOR[each] for each in Category))


def by_phase(recording: Recording, found: Allocations) -> Paint:
    """Return the groups by phase at the allocation; pre-existing memory has no phase."""
    row = phases_of(recording.phases, len(recording.trace))
    of_event = np.append(recording.phases.phase, np.uint8(Phase.OTHER))[row]
    phase = np.full(len(found), int(Phase.OTHER), "u1")
    known = found.alloc_event >= 0
    phase[known] = of_event[found.alloc_event[known]]
    names = tuple(format_name(each) for each in Phase)
    return Paint(phase, ("no phase", *names[1:]), tuple(PHASE_COLOR[each] for each in Phase))


def by_line(code: Folded, found: Allocations) -> Paint:
    """Return the groups by line: those that allocated most bytes have a hue each, the others are gray."""

    def name(row: int) -> str:
        frame = code.stacks.frame(row)
        return f"{frame.function[:60]} {place(frame)[:40]}"

    return _by_most(code.place[found.stack_id], found, name, "other lines")


def by_module(owners: Owners, found: Allocations) -> Paint:
    """Return the groups by module: those with most bytes have a hue each, the others are gray."""
    return _by_most(owners.module, found, lambda row: owners.paths[row][:100], "other, or no module")


def _by_most(own: Array, found: Allocations, name: Callable[[int], str], others: str) -> Paint:
    """Return a group for each row in *own* that has most of the bytes, and one for 0 and the *others*."""
    total = np.bincount(own, weights=found.block_size, minlength=1)
    total[0] = 0
    best = [int(row) for row in np.argsort(-total)[: len(_LINES)] if total[row] > 0]
    group_of = np.zeros(len(total), "u1")
    group_of[best] = np.arange(1, len(best) + 1)
    return Paint(group_of[own], (others, *map(name, best)), (GRAY, *_LINES[: len(best)]))


def by_age(recording: Recording, found: Allocations) -> Paint:
    """Return the groups by lifetime: in time, or in events where there is no clock."""
    freed = found.free_event >= 0
    if has_clock(recording):
        lived = found.free_ns - found.alloc_ns
        limits = [limit for limit, _, _ in _AGES]
        names = [name for _, name, _ in _AGES]
    else:
        lived = found.free_event - found.alloc_event
        limits = [10, 100, 1000, 10_000, 100_000, 1 << 62]
        names = list(_EVENT_AGES)
    group = np.searchsorted(np.array(limits), lived, side="right").astype("u1")
    group[found.alloc_event < 0] = len(limits) - 1
    group[~freed] = len(limits)
    return Paint(group, (*names, _NEVER[0]), (*(color for _, _, color in _AGES), _NEVER[1]))
