"""Which phase each event belongs to: the innermost one that is open on the thread that made the event.

Where a single thread has phases, every event between the marks of a phase belongs to it, whichever thread
made it. Where several threads have phases at once, time does not decide that, so the recorded threads of the
events do; an event that may belong to different phases belongs to none.
"""

import numpy as np

from vramscope.model.marks import ANY_THREAD, Phase, Phases
from vramscope.model.table import Array

_NONE, _SEVERAL = -1, -2
_MANY_EVENTS = 64
_DATA_PARALLEL = "DataParallel"
"""Class of the module that runs its replicas on threads of its own."""


def phases_of(phases: Phases, n_events: int) -> Array:
    """Row of ``Phases`` that each event belongs to; −1 outside, and where that is not known.

    A loop over phases, not over events.
    """
    if len(owners_of(phases)) > 1:
        edges, row = _several(phases, n_events)
        return np.repeat(np.maximum(row, _NONE).astype("i4"), np.diff(edges))
    innermost = np.full(n_events, _NONE, dtype="i4")
    # Outer phases first, equal ones in order: inner and later ones overwrite.
    for row in np.argsort(_rank(phases), kind="stable").tolist():
        innermost[phases.start_event[row] : phases.end_event[row]] = row
    return innermost


def innermost_phase(phases: Phases, event: int) -> int | None:
    """Row of ``Phases`` that one event belongs to; None outside, and where that is not known."""
    if len(owners_of(phases)) > 1:
        edges, of_interval = _several(phases, event + 1)
        row = int(of_interval[np.searchsorted(edges, event, side="right") - 1])
        return row if row >= 0 else None
    rows = np.flatnonzero((phases.start_event <= event) & (event < phases.end_event))
    return int(rows[np.argmax(_rank(phases)[rows])]) if len(rows) else None


def phases_at(phases: Phases, events: Array) -> Array:
    """Row of ``Phases`` that each of a few *events* belongs to; −1 outside, and where that is not known."""
    distinct = np.unique(events)
    # Each looks at all phases once: from some tens on, all events at once are faster.
    if len(distinct) > _MANY_EVENTS or len(owners_of(phases)) > 1:
        return phases_of(phases, int(events.max(initial=-1)) + 1)[events]
    found = {event: innermost_phase(phases, event) for event in distinct.tolist()}
    return np.array([_NONE if found[each] is None else found[each] for each in events.tolist()], "i4")


def of_several_threads(phases: Phases, n_events: int) -> Array:
    """Whether each event may belong to different phases of several threads, so that it belongs to none."""
    if len(owners_of(phases)) < 2:
        return np.zeros(n_events, dtype="?")
    edges, row = _several(phases, n_events)
    return np.repeat(row == _SEVERAL, np.diff(edges))


def train_at_once(phases: Phases) -> bool:
    """Whether a thread with a backward of its own has a phase while such a thread has another."""
    training = np.unique(phases.thread[(phases.phase == Phase.BACKWARD) & ~_is_region(phases)])
    mine = phases.rows(np.isin(phases.thread, training) & ~_is_region(phases))
    return any(
        (
            np.searchsorted(np.sort(ours.start_event), theirs.end_event, side="left")
            > np.searchsorted(np.sort(ours.end_event), theirs.start_event, side="right")
        ).any()
        for ours, theirs in (
            (mine.rows(mine.thread == each), mine.rows(mine.thread != each)) for each in training
        )
    )


def owners_of(phases: Phases) -> Array:
    """The threads that have phases, in order of their idents."""
    threads = phases.thread[~_is_region(phases)]
    # Nearly every run has one: it is asked at each refresh of a live one, and a sort takes ten times as long.
    return threads[:1].copy() if (threads == threads[:1]).all() else np.unique(threads)


def _several(phases: Phases, n_events: int) -> tuple[Array, Array]:
    """The innermost phases where several threads have some: one for all events between neighbouring marks.

    Returns where each interval begins, with the end of the last one, as instants; and its row of ``Phases``:
    ``_NONE`` outside of phases, ``_SEVERAL`` where different phases are possible.
    """
    made_by, ends = phases.made_by, (phases.start_event, phases.end_event)
    edges = np.unique(np.clip(np.concatenate([[0, n_events], made_by.start_event, *ends]), 0, n_events))
    owners, at = owners_of(phases), edges[:-1]
    own = _open_phases(phases, owners, edges, ~_is_region(phases))
    run = np.searchsorted(made_by.start_event, at, side="right")
    maker = np.append(ANY_THREAD, made_by.thread)[run]
    row = _agreed(phases, np.where(_may_be_of(phases, own, (owners, maker, at)), own, _NONE))
    # A region has no thread: it names what is in no phase while no thread is in one.
    (region,) = _open_phases(phases, np.zeros(1, "i8"), edges, _is_region(phases))
    return edges, np.where((own == _NONE).all(axis=0), region, row)


def _open_phases(phases: Phases, threads: Array, edges: Array, counts: Array) -> Array:
    """The innermost phase of each thread in each interval, of those that count; −1 outside of them."""
    found = np.full((len(threads), len(edges) - 1), _NONE, dtype="i8")
    start, end = (np.searchsorted(edges, each) for each in (phases.start_event, phases.end_event))
    of = np.searchsorted(threads, phases.thread)
    order = np.argsort(phases.depth, kind="stable")
    for row in order[counts[order]].tolist():
        found[of[row], start[row] : end[row]] = row
    return found


def _may_be_of(phases: Phases, own: Array, known: tuple[Array, Array, Array]) -> Array:
    """Whether the events of each interval may be of each thread's phase.

    The events of a named thread are its own. Of events without a name, a thread that has named itself made
    none; but autograd has threads of its own for a backward, and DataParallel for the replicas.
    """
    owners, maker, at = known
    has_helpers = (phases.phase == Phase.BACKWARD) | (np.array(phases.names) == _DATA_PARALLEL)[phases.name]
    firsts = [phases.made_by.start_event[phases.made_by.thread == each][:1] for each in owners]
    named_at = np.array([first.min(initial=np.iinfo("i8").max) for first in firsts])
    is_unnamed = at[None, :] < named_at[:, None]
    is_named: Array = np.isin(maker, owners)
    by_others = (maker == ANY_THREAD) | is_unnamed | np.append(has_helpers, False)[own]
    return np.where(is_named, maker == owners[:, None], by_others)


def _agreed(phases: Phases, rows: Array) -> Array:
    """The last of the possible phases of each interval where they are of one kind; else ``_SEVERAL``."""
    kind = phases.phase.astype("i8") + np.where(phases.phase == Phase.USER, 256 * phases.name.astype("i8"), 0)
    is_possible, last = rows >= 0, rows.max(axis=0, initial=_NONE)
    of_row = kind[np.maximum(rows, 0)]
    low = np.where(is_possible, of_row, np.iinfo("i8").max).min(axis=0)
    high = np.where(is_possible, of_row, _NONE).max(axis=0)
    return np.where(last < 0, _NONE, np.where(low == high, last, _SEVERAL))


def _is_region(phases: Phases) -> Array:
    """Whether each is a ``record_function`` region, which torch records without a thread."""
    return (phases.phase == Phase.USER) & (phases.thread == 0)


def _rank(phases: Phases) -> Array:
    """The depth, or −1 for regions: they only name lines, and DDP's whole forward is one."""
    return np.where(_is_region(phases), -1, phases.depth)
