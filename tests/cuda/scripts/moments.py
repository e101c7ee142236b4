"""Where in a trace was torch asked? Found by the allocator's own counts, by no clock and no mark."""

import numpy as np

from vramscope.model.marks import Phase
from vramscope.model.trace import Action

QUANTITIES = ("allocated", "active", "reserved", "requested")
COUNTED = (
    Action.ALLOC,
    Action.FREE_REQUESTED,
    Action.FREE_COMPLETED,
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
)


def rows_of(recording):
    """The four quantities at every instant."""
    totals = recording.timeline()
    return np.stack([getattr(totals, f"{quantity}_bytes") for quantity in QUANTITIES], axis=1)


def phases_of(recording):
    """``"3 backward"`` → its greatest allocated bytes; for the phases that workloads know of."""
    found = recording.step_peaks().per_phase
    rows = zip(found.step.tolist(), found.phase.tolist(), found.allocated_bytes.tolist(), strict=True)
    others = (Phase.OTHER, Phase.LOSS, Phase.DATA, Phase.EVAL)
    return {
        f"{step} {Phase(phase).name.lower()}": peak
        for step, phase, peak in rows
        if phase not in others and step >= 0
    }


def counted(trace):
    """How many events of each counted kind came before every instant: one column a kind."""
    kinds = [np.cumsum(trace.action == action) for action in COUNTED]
    return np.concatenate([np.zeros((1, len(COUNTED)), dtype="i8"), np.stack(kinds, axis=1)])


def instants(columns, trace, wanted):
    """Every instant with these counts at which the allocator can be asked: never between a segment and the
    allocation that it was made for, as both happen under one lock."""
    # Mapping parts of an expandable segment counts as no segment.
    n_known = len(COUNTED) if (trace.action == Action.SEGMENT_ALLOC).any() else 3
    low, high = (np.searchsorted(columns[:, 0], wanted[0], side=side) for side in ("left", "right"))
    found = low + np.flatnonzero((columns[low:high, :n_known] == wanted[:n_known]).all(axis=1))
    makes = np.isin(trace.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    return [int(k) for k in found if k == 0 or not makes[k - 1]]


def moments(recording, run, noted):
    """The instants of points *noted* in a *run*: several where nothing that is counted lies between."""
    trace = recording.trace
    columns, first = counted(trace), np.array(run["first"]["counts"])
    return [(point, instants(columns, trace, np.array(point["counts"]) - first)) for point in noted]
