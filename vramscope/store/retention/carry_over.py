"""What stays of events that are taken? Peaks between marks, the state behind them, and what that needs.

Exact: whatever is asked of later events finds the state and the labels that it would have found.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.levels import levels
from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.model.marks import Labels, MarkKind, Marks
from vramscope.model.past import StretchPeaks
from vramscope.model.quantities import QUANTITIES
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.trace import Action, Trace

_BOUNDARIES = (
    MarkKind.PHASE_BEGIN,
    MarkKind.PHASE_END,
    MarkKind.STEP,
    MarkKind.ENTER,
    MarkKind.EXIT,
    MarkKind.MARK,
)
"""Where steps and phases may begin and end, by whatever rule."""

_ONLY_DETAIL = (MarkKind.MODULE, MarkKind.GC)
"""They explain allocations that are not known any more."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Of one device, behind the last event that was taken."""

    state: Snapshot = field(default_factory=Snapshot)
    """Its ``event`` counts from the first event ever: so many were taken."""
    labels: Labels = field(default_factory=Labels.of)
    """Of blocks that live then, told at that instant."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a part says of one device; instants as they are written."""

    trace: Trace
    marks: Marks
    labels: Labels


def take(before: Leftover, part: Part, following: Part) -> tuple[Leftover, StretchPeaks, Marks]:
    """What is left of *part* behind *before*: the state then, peaks, and the marks that tell the course.

    *following* is the part behind it: marks and labels may be written a little later than their events.
    """
    first, n_events = before.state.event, len(part.trace)
    initial = replace(before.state, event=0)
    state = state_at(part.trace, initial, n_events, Settings())
    state = replace(state, event=first + n_events, time_ns=state.time_ns or before.state.time_ns)
    labels = _labels(before, part, following, state)
    edges = [_boundaries(each.marks) - first for each in (part, following)]
    peaks = _peaks(part.trace, initial, np.concatenate(edges))
    marks = _course(part.marks, state.event)
    return Leftover(state, labels), replace(peaks, event=peaks.event + first), marks


def _boundaries(marks: Marks) -> NDArray[Any]:
    return marks.event[np.isin(marks.kind, _BOUNDARIES)]


def _peaks(trace: Trace, initial: Snapshot, edges: NDArray[Any]) -> StretchPeaks:
    """Where two marks or more are at one instant, a stretch of its own tells the level there."""
    n_events = len(trace)
    edges = np.append(edges[(edges >= 0) & (edges <= n_events)], 0)
    distinct, count = np.unique(edges, return_counts=True)
    start = np.repeat(distinct, np.minimum(count, 2))
    end = np.append(start[1:], n_events)
    pairs = np.stack([start, end + 1], axis=1).ravel()
    columns = {
        name: np.maximum.reduceat(np.append(level, 0), pairs)[::2]
        for name, level in zip(QUANTITIES, levels(trace, initial)[:4], strict=True)
    }
    return StretchPeaks(event=start.astype("i8"), **columns)


def _course(marks: Marks, end: int) -> Marks:
    """Without what only explains allocations; but which module runs at the end is told there."""
    modules = np.flatnonzero((marks.kind == MarkKind.MODULE) & (marks.event <= end))[-1:]
    kept = np.flatnonzero(~np.isin(marks.kind, _ONLY_DETAIL))
    found = marks.rows(np.concatenate([kept, modules]))
    event = found.event.copy()
    event[len(kept) :] = end
    return replace(found, event=event)


def _labels(before: Leftover, part: Part, following: Part, state: Snapshot) -> Labels:
    """Those of blocks that live at the end; of several that say the same of a block, the last."""
    late = following.labels.rows(following.labels.event < state.event)
    labels = _joined(before.labels, part.labels, late)
    last = _last_handed_out(part.trace, before.state.event)
    handed_out = _looked_up(last, labels.address)
    in_use = state.blocks.address[state.blocks.state != BlockState.INACTIVE]
    is_ahead = labels.event > state.event
    kept = labels.rows(is_ahead | ((handed_out < labels.event) & np.isin(labels.address, in_use)))
    said = np.stack([kept.address.astype("i8"), kept.category.astype("i8"), kept.name.astype("i8")])
    _, newest = np.unique(said[:, ::-1], axis=1, return_index=True)
    kept = kept.rows(np.sort(len(kept) - 1 - newest))
    return replace(kept, event=np.maximum(kept.event, state.event))


def _last_handed_out(trace: Trace, first: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Addresses, and the event that handed out each of them last."""
    events = np.flatnonzero((trace.action == Action.ALLOC) & (trace.block_size > 0))[::-1]
    address, at = np.unique(trace.address[events], return_index=True)
    return address, events[at] + first


def _looked_up(known: tuple[NDArray[Any], NDArray[Any]], address: NDArray[Any]) -> NDArray[Any]:
    """The event of each address, −1 for those that are not known."""
    addresses, events = known
    if not len(addresses):
        return np.full(len(address), -1)
    at = np.minimum(np.searchsorted(addresses, address), len(addresses) - 1)
    return np.where(addresses[at] == address, events[at], -1)


def _joined(*tables: Labels) -> Labels:
    """One behind the other, with names of their own."""
    names = {"": 0}
    for table in tables:
        for name in table.names:
            names.setdefault(name, len(names))
    columns = {
        column: np.concatenate([getattr(table, column) for table in tables]) for column in Labels.DTYPES
    }
    renamed = [np.array([names[name] for name in table.names], "i4")[table.name] for table in tables]
    return Labels(**columns | {"name": np.concatenate(renamed)}, names=tuple(names))
