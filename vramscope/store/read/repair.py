"""Neutralizes and counts rows that refer to missing rows.

Such rows come from a cut or damaged file, from a reader that is ahead of the writer, or from a newer writer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from vramscope.model.counters import Counters
from vramscope.model.holders import PREFIX, Holders, holding_of
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Phase
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import Stacks
from vramscope.model.table import Table

AnyTable = TypeVar("AnyTable", bound=Table)
Placed = TypeVar("Placed", Marks, Counters)


def keep_known(table: AnyTable, limits: Mapping[str, int], instead: int = 0) -> tuple[AnyTable, int]:
    """Replace values of the columns *limits* that are negative or reach their limit by *instead*.

    Returns the table and the number of replaced values.
    """
    changed, n_strays = {}, 0
    for name, limit in limits.items():
        column = getattr(table, name)
        if len(column) and (column.min() < 0 or column.max() >= limit):
            stray = (column < 0) | (column >= limit)
            changed[name] = np.where(stray, column.dtype.type(instead), column)
            n_strays += int(stray.sum())
    return (replace(table, **changed) if changed else table), n_strays  # type: ignore[type-var]


def keep_known_state(state: Snapshot, limits: Mapping[str, int]) -> tuple[Snapshot, int]:
    """Do the same for the ``stack_id`` and ``pool`` of a state's segments and blocks."""
    segments, in_segments = keep_known(state.segments, limits)
    blocks, in_blocks = keep_known(state.blocks, {"stack_id": limits["stack_id"]})
    return replace(state, segments=segments, blocks=blocks), in_segments + in_blocks


def keep_known_parents(stacks: Stacks) -> tuple[Stacks, int]:
    """Make a node whose parent does not precede it a root: such a parent could make an endless loop."""
    parent = stacks.parent
    stray = (parent < 0) | (parent >= np.maximum(np.arange(len(parent)), 1))
    if not stray.any():
        return stacks, 0
    return replace(stacks, parent=np.where(stray, parent.dtype.type(0), parent)), int(stray.sum())


def marks_within(marks: Marks, n_events: int) -> Marks:
    """Move marks of events that are missing (yet) to the end; unknown codes become the nearest known."""
    marks, _ = keep_known(marks, {"kind": max(MarkKind) + 1}, instead=MarkKind.MARK)
    marks, _ = keep_known(marks, {"phase": max(Phase) + 1}, instead=Phase.OTHER)
    return _within(marks, 0, n_events)


def labels_within(labels: Labels, n_events: int) -> Labels:
    """Drop labels of missing events.

    A label is about the block that is live at its instant; at another instant it would name another block.
    """
    known, _ = keep_known(labels, {"category": max(Category) + 1}, instead=Category.UNKNOWN)
    beyond = (known.event > n_events) | (known.event < 0)
    return known.rows(~beyond) if beyond.any() else known


def holders_within(holders: Holders, n_events: int) -> Holders:
    """Drop paths to blocks of missing events, and words before the first path begins."""
    is_known = (holders.event <= n_events) & (holders.event >= 0) & (np.cumsum(holders.position == 0) > 0)
    return holders if is_known.all() else holders.rows(is_known)


def holders_of_labels(labels: Labels) -> tuple[Labels, Holders]:
    """Return the labels without holders, and these: before 1.4 and 2.3 they were names of labels."""
    found = {at: holding_of(name) for at, name in enumerate(labels.names) if name.startswith(PREFIX)}
    rows = np.flatnonzero(np.isin(labels.name, list(found)))
    if not len(rows):
        return labels, Holders.of()
    places = zip(
        labels.event[rows].tolist(), labels.address[rows].tolist(), labels.name[rows].tolist(), strict=True
    )
    paths = [(event, address, known.words) for event, address, at in places if (known := found[at])]
    return labels.rows(np.delete(np.arange(len(labels)), rows)), Holders.of_paths(paths)


def counters_within(counters: Counters, n_events: int) -> Counters:
    """Move samples of missing events to the end; −1 stays the unknown instant."""
    return _within(counters, -1, n_events)


def _within(table: Placed, first: int, last: int) -> Placed:
    """Return *table* with its events clipped; the same table where none is beyond, which is nearly always."""
    if not len(table) or (table.event.min() >= first and table.event.max() <= last):
        return table
    return replace(table, event=np.clip(table.event, first, last))
