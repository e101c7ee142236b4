"""Finds each group's own peak: the most that it held at once, at any time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.by_module import owners_of
from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import BEFORE, Allocations, levels_by_group, lifetimes
from vramscope.analysis.lines import code_lines
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.timeline import instant_of
from vramscope.errors import UsageError
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array, Int64, Table, sums_of
from vramscope.steps.innermost import phases_of

_BEFORE = "before the recording"
_NONE = "none"

_Groups = tuple[Array, tuple[str, ...]]
"""The group of each allocation as an index into the names."""


@dataclass(frozen=True, slots=True)
class OwnPeaks(Table):
    """One row per group that held anything, the largest own peak first.

    The two columns answer two questions. *At the peak*: what a group held when all of them together held
    most; these sum up to that peak, and one of them has to shrink to lower it. *Own peak*: the most
    that the group ever held; these are at instants of their own, so their sum means nothing.
    """

    group: Int64
    """Index into ``names``."""
    at_peak_bytes: Int64
    """Bytes at ``instant``; 0 where the group held nothing then."""
    own_peak_bytes: Int64
    """Bytes at ``own_instant``."""
    own_instant: Int64
    """The first instant at which the group held that much."""
    names: tuple[str, ...] = ()
    by: str = ""
    instant: int = 0
    """The first instant at which all groups together held most."""

    @property
    def by_name(self) -> dict[str, tuple[int, int]]:
        """Bytes at the peak and bytes of the own peak, by group name."""
        columns = self.group.tolist(), self.at_peak_bytes.tolist(), self.own_peak_bytes.tolist()
        return {self.names[group]: (at_peak, own) for group, at_peak, own in zip(*columns, strict=True)}


def own_peaks(recording: Recording, by: str = "phase") -> OwnPeaks:
    """The own peak of each group of allocations.

    Parameters
    ----------
    by
        The property that forms groups: ``phase``, ``step``, ``category``, ``module`` or ``line``.

    Raises
    ------
    UsageError
        For an unknown property.
    """
    if by not in BY:
        raise UsageError(f"own peaks by {by!r}: known are {', '.join(BY)}")
    found, instant = lifetimes(recording), instant_of(recording, None)
    rows = np.flatnonzero(found.free_event != BEFORE)
    group, names = BY[by](recording, found, rows)
    found = found.rows(rows)
    own_peak, own_instant = _highest(found, group, len(names))
    live = found.allocated_at(instant)
    order = np.argsort(-own_peak, kind="stable")
    order = order[own_peak[order] > 0]
    return OwnPeaks(
        group=order,
        at_peak_bytes=sums_of(group[live], found.block_size[live], len(names))[order],
        own_peak_bytes=own_peak[order],
        own_instant=own_instant[order],
        names=names,
        by=by,
        instant=instant,
    )


def _highest(found: Allocations, group: Array, n_groups: int) -> tuple[Array, Array]:
    """The most bytes of each group, and the first instant at which it held them."""
    owner, at, level = levels_by_group(found, group, n_groups)
    most = np.maximum.reduceat(level, np.searchsorted(owner, np.arange(n_groups)))
    instant, top = np.zeros(n_groups, "i8"), np.flatnonzero(level == most[owner])[::-1]
    instant[owner[top]] = at[top]  # backwards, so that the first is written last
    return most, instant


def _phase(recording: Recording, found: Allocations, rows: Array) -> _Groups:
    """Groups by the innermost phase of the allocation."""
    names = (*(phase.name.lower() for phase in Phase), _NONE, _BEFORE)
    born = found.alloc_event[rows]
    row = np.append(phases_of(recording.phases, len(recording.trace)), -1)[born]
    place = {phase: i for i, phase in enumerate(Phase)}
    of = [place[Phase(value)] for value in recording.phases.phase.tolist()]
    index = np.array([*of, len(Phase)])[row]  # the last entry is for −1: outside of every phase
    index[born < 0] = len(Phase) + 1
    return index, names


def _step(recording: Recording, found: Allocations, rows: Array) -> _Groups:
    """Groups by the step of the allocation."""
    born = found.alloc_event[rows]
    step = steps_of(recording.steps, born)
    names = (_BEFORE, _NONE, *(f"step {index}" for index in recording.steps.index.tolist()))
    return np.where(born < 0, 0, step + 2), names


def _category(recording: Recording, found: Allocations, rows: Array) -> _Groups:
    category = assign(recording, found).category[rows].astype("i8")
    return category, tuple(Category(i).name.lower() for i in range(len(Category)))


def _module(recording: Recording, found: Allocations, rows: Array) -> _Groups:
    owners = owners_of(recording, found, assign(recording, found))
    return owners.module[rows].astype("i8"), tuple(path or _NONE for path in owners.paths)


def _line(recording: Recording, found: Allocations, rows: Array) -> _Groups:
    """Groups by the program's own line and the library function that it calls."""
    known = code_lines(recording.stacks)
    return known.of_stack[found.stack_id[rows]], known.names


BY: dict[str, Callable[[Recording, Allocations, Array], _Groups]] = {
    "phase": _phase,
    "step": _step,
    "category": _category,
    "module": _module,
    "line": _line,
}
"""The properties that form groups."""

ANALYSIS = asking("What is the most that each group of allocations held at once, at any time?", own_peaks)
