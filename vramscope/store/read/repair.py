"""Which rows point to something that is not there? They are made harmless, and counted.

A cut or damaged file, a follower that is ahead of the writer, and a newer writer's words all look like this.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from vramscope.model.counters import Counters
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Phase
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import Stacks
from vramscope.model.table import Table

AnyTable = TypeVar("AnyTable", bound=Table)


def keep_known(table: AnyTable, limits: Mapping[str, int], instead: int = 0) -> tuple[AnyTable, int]:
    """*table* with *instead* where a column of *limits* is negative or reaches its limit; how often."""
    changed, n_strays = {}, 0
    for name, limit in limits.items():
        column = getattr(table, name)
        if len(column) and (column.min() < 0 or column.max() >= limit):
            stray = (column < 0) | (column >= limit)
            changed[name] = np.where(stray, column.dtype.type(instead), column)
            n_strays += int(stray.sum())
    return (replace(table, **changed) if changed else table), n_strays  # type: ignore[type-var]


def keep_known_state(state: Snapshot, limits: Mapping[str, int]) -> tuple[Snapshot, int]:
    """The same for the ``stack_id`` and ``pool`` of a state's segments and blocks."""
    segments, in_segments = keep_known(state.segments, limits)
    blocks, in_blocks = keep_known(state.blocks, {"stack_id": limits["stack_id"]})
    return replace(state, segments=segments, blocks=blocks), in_segments + in_blocks


def keep_known_parents(stacks: Stacks) -> tuple[Stacks, int]:
    """A parent precedes its child; anything else would send a reader round in circles."""
    parent = stacks.parent
    stray = (parent < 0) | (parent >= np.maximum(np.arange(len(parent)), 1))
    if not stray.any():
        return stacks, 0
    return replace(stacks, parent=np.where(stray, parent.dtype.type(0), parent)), int(stray.sum())


def marks_within(marks: Marks, n_events: int) -> Marks:
    """Marks of events that are not there (yet) stand at the end; a newer minor's words become the nearest."""
    marks, _ = keep_known(marks, {"kind": max(MarkKind) + 1}, instead=MarkKind.MARK)
    marks, _ = keep_known(marks, {"phase": max(Phase) + 1}, instead=Phase.OTHER)
    return replace(marks, event=np.clip(marks.event, 0, n_events)) if len(marks) else marks


def labels_within(labels: Labels, n_events: int) -> Labels:
    """A label is about the block live at its instant; without that instant it would name another block."""
    known, _ = keep_known(labels, {"category": max(Category) + 1}, instead=Category.UNKNOWN)
    beyond = (known.event > n_events) | (known.event < 0)
    return known.rows(~beyond) if beyond.any() else known


def counters_within(counters: Counters, n_events: int) -> Counters:
    """Samples keep −1 for an unknown instant."""
    if not len(counters):
        return counters
    return replace(counters, event=np.clip(counters.event, -1, n_events))
