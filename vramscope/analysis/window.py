"""What happened between two instants? A recording of its own, to which every other question can be put."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.state_index.checkpoints import (
    state_from_nearest,
)
from vramscope.analysis import Analysis
from vramscope.errors import UsageError
from vramscope.model.marks import Labels, Note, Phases
from vramscope.model.recording import Recording
from vramscope.model.trace import Action


def window(recording: Recording, start_event: int = 0, end_event: int | None = None) -> Recording:
    """The events ``[start_event, end_event)`` after the exact state at their start.

    Instants count from *start_event*. Columns are parts of the whole's; of a trace that is mapped from a file
    (``conversion_cache``), only what the window and the way from the checkpoint before it need is read.
    Raises UsageError where there is no such interval.
    """
    n_events = len(recording.trace)
    end_event = n_events if end_event is None else end_event
    if not 0 <= start_event <= end_event <= n_events:
        raise UsageError(f"no events [{start_event}, {end_event}): the recording has {n_events}")
    steps, kept = _clipped(recording.steps, start_event, end_event)
    final = recording.final if end_event == n_events else None
    return replace(
        recording,
        trace=recording.trace.rows(slice(start_event, end_event)),
        initial=replace(state_from_nearest(recording, start_event), event=0),
        final=replace(final, event=end_event - start_event) if final else None,
        checkpoints=tuple(
            replace(state, event=state.event - start_event)
            for state in recording.checkpoints
            if start_event < state.event < end_event
        ),
        marks=_shifted(recording.marks, start_event, end_event),
        counters=_shifted(recording.counters, start_event, end_event),
        labels=_labels(recording, start_event, end_event),
        steps=steps,
        phases=_phases(recording.phases, kept, start_event, end_event),
        notes=(*recording.notes, _note(start_event, end_event, n_events)),
    )


def _note(start: int, end: int, n_events: int) -> Note:
    return Note("window", f"only events {start} to {end} of {n_events} are shown", end - start)


def _shifted(table: Any, start: int, end: int) -> Any:
    """Rows whose instant is in the window."""
    rows = table.rows((table.event >= start) & (table.event <= end))
    return replace(rows, event=rows.event - start)


def _clipped(table: Any, start: int, end: int) -> tuple[Any, NDArray[Any]]:
    """Intervals that reach into the window, cut at its ends; and which they were."""
    reaches = (table.start_event < end) & (table.end_event > start)
    kept = np.flatnonzero(reaches | ((table.start_event >= start) & (table.end_event <= end)))
    rows = table.rows(kept)
    return (
        replace(
            rows,
            start_event=np.maximum(rows.start_event, start) - start,
            end_event=np.minimum(rows.end_event, end) - start,
        ),
        kept,
    )


def _phases(phases: Phases, kept_steps: NDArray[Any], start: int, end: int) -> Phases:
    """Their steps are rows of the steps that are left."""
    rows, _ = _clipped(phases, start, end)
    place = np.searchsorted(kept_steps, rows.step)
    is_kept = np.isin(rows.step, kept_steps)
    found: Phases = replace(rows, step=np.where(is_kept, place, -1))
    return found


def _labels(recording: Recording, start: int, end: int) -> Labels:
    """What was known of blocks in the window; of one from before it, at its first instant."""
    labels = recording.labels
    if not len(labels):
        return labels
    early = np.flatnonzero(labels.event < start)
    again = _last_handed_out(recording, start, labels.address[early]) >= labels.event[early]
    # Of a block that is gone by now, a label says nothing: nothing lives at its address, or another block.
    early = early[~again]
    inside = np.flatnonzero((labels.event >= start) & (labels.event <= end))
    rows = labels.rows(np.concatenate([early, inside]))
    return replace(rows, event=np.maximum(rows.event - start, 0))


def _last_handed_out(recording: Recording, before: int, address: NDArray[Any]) -> NDArray[Any]:
    """The last event before *before* that handed out each address; −1 where none did."""
    trace = recording.trace
    events = np.flatnonzero(trace.action[:before] == Action.ALLOC)
    distinct, last = np.unique(trace.address[events][::-1], return_index=True)
    at = np.searchsorted(distinct, address)
    known = np.append(events[::-1][last], -1)
    is_there = np.isin(address, distinct)
    return np.where(is_there, known[np.minimum(at, len(distinct))], -1)


ANALYSIS = Analysis("window", "What happened between two instants, as a recording of its own?", window)
