"""Cuts a part out of a recording as a recording of its own, which every analysis accepts."""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis import asking
from vramscope.analysis.pins import last_allocated
from vramscope.errors import UsageError
from vramscope.model.codes import NoteCode
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, Note, Phases
from vramscope.model.recording import Recording
from vramscope.model.table import Array

OfBlocks = TypeVar("OfBlocks", Labels, Holders)


def window(
    recording: Recording,
    start_event: int = 0,
    end_event: int | None = None,
    *,
    steps: tuple[int, int] | None = None,
    time_ns: tuple[int, int] | None = None,
) -> Recording:
    """A part of the recording as a recording of its own, which begins with the exact state at its start.

    Parameters
    ----------
    start_event, end_event
        The events ``[start_event, end_event)``; to the end of the recording where *end_event* is None.
    steps
        The steps ``[start, end)`` by their index, instead of events.
    time_ns
        The events of ``[start, end)`` in Unix nanoseconds, instead of event numbers.

    Returns
    -------
    Recording
        Its instants count from the first event of the window. Columns are views of the whole's; from a file
        that is mapped, only the window and the way from the checkpoint before it are read.

    Raises
    ------
    UsageError
        There is no such interval, more than one kind of interval is given, or the recording has no clock.
    """
    if steps is not None or time_ns is not None:
        if (start_event, end_event) != (0, None) or (steps is not None and time_ns is not None):
            raise UsageError("give events, steps or times, and only one of them")
        chosen = _of_steps(recording, *steps) if steps else _of_times(recording, *(time_ns or (0, 0)))
        start_event, end_event = chosen
    n_events = len(recording.trace)
    end_event = n_events if end_event is None else end_event
    if not 0 <= start_event <= end_event <= n_events:
        raise UsageError(f"no events [{start_event}, {end_event}): the recording has {n_events}")
    kept_steps, kept = _clipped(recording.steps, start_event, end_event)
    text = f"only events {start_event} to {end_event} of {n_events} are shown"
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
        labels=_of_blocks(recording, recording.labels, start_event, end_event),
        holders=_of_blocks(recording, recording.holders, start_event, end_event),
        pinned=None,
        steps=kept_steps,
        phases=_phases(recording.phases, kept, start_event, end_event),
        notes=(*recording.notes, Note(NoteCode.WINDOW, text, end_event - start_event)),
    )


def _of_steps(recording: Recording, start: int, end: int) -> tuple[int, int]:
    """The events of the steps with an index in ``[start, end)``."""
    rows = np.flatnonzero((recording.steps.index >= start) & (recording.steps.index < end))
    if not len(rows):
        index = recording.steps.index
        known = f"{index[0]} to {index[-1]}" if len(index) else "none"
        raise UsageError(f"no steps [{start}, {end}): the recording has {known}")
    return int(recording.steps.start_event[rows[0]]), int(recording.steps.end_event[rows[-1]])


def _of_times(recording: Recording, start_ns: int, end_ns: int) -> tuple[int, int]:
    """The events with a time in ``[start_ns, end_ns)``."""
    times = recording.trace.time_ns
    if not recording.trace.has_clock:
        raise UsageError("no window by time: the recording has no clock")
    if start_ns > end_ns:
        raise UsageError(f"no window [{start_ns}, {end_ns}) ns: it ends before it starts")
    start, end = np.searchsorted(times, [start_ns, end_ns])
    return int(start), int(end)


def _shifted(table: Any, start: int, end: int) -> Any:
    """Rows whose instant is in the window."""
    rows = table.rows((table.event >= start) & (table.event <= end))
    return replace(rows, event=rows.event - start)


def _clipped(table: Any, start: int, end: int) -> tuple[Any, Array]:
    """Intervals that reach into the window, clipped at its ends, and their original rows."""
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


def _phases(phases: Phases, kept_steps: Array, start: int, end: int) -> Phases:
    """Clipped phases, whose steps are rows of the remaining steps."""
    rows, _ = _clipped(phases, start, end)
    place = np.searchsorted(kept_steps, rows.step)
    is_kept = np.isin(rows.step, kept_steps)
    return replace(rows, step=np.where(is_kept, place, -1))


def _of_blocks(recording: Recording, table: OfBlocks, start: int, end: int) -> OfBlocks:
    """Rows about blocks in the window; a row from before the window moves to its first instant."""
    if not len(table):
        return table
    early = np.flatnonzero(table.event < start)
    again = last_allocated(recording.trace, table.address[early], start) >= table.event[early]
    # A row about a block that is gone by now means nothing: its address is free or holds another block.
    early = early[~again]
    inside = np.flatnonzero((table.event >= start) & (table.event <= end))
    rows = table.rows(np.concatenate([early, inside]))
    return replace(rows, event=np.maximum(rows.event - start, 0))


ANALYSIS = asking("What happened between two instants, as a recording of its own?", window)
