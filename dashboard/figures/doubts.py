"""The stretches and moments of the axis where something is missing or doubtful."""

from collections.abc import Iterator

import numpy as np

from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind
from vramscope.model.recording import Recording
from vramscope.steps.unrecorded import unrecorded

from .drawing.series import Series
from .track import position_of

MOST_GAPS = 200
"""Most gaps that are sent: those with the most missing events, then the longest."""
_FROM_EVENT = (
    NoteCode.ACTIVE_ABOVE_RESERVED,
    NoteCode.ALLOCATED_ABOVE_ACTIVE,
    NoteCode.COUNTERS_DIFFER,
    NoteCode.NEGATIVE_TOTAL,
)
"""Notes whose value is the event from which they hold."""
_AT_START = (NoteCode.STARTS_LATE,)
_AT_END = (NoteCode.TRUNCATED, NoteCode.DIED, NoteCode.CUT_FILE, NoteCode.DAMAGED)

Doubt = tuple[float, float, str]
"""Position, end and text; a moment ends where it begins."""


def noted(recording: Recording, series: Series) -> list[Doubt]:
    """Return what is missing or doubtful, for the marks on the axis; parts that overlap stay apart."""
    several = _thinned(recording, series), _unrecorded(recording, series), _of_notes(recording, series)
    return [*(doubt for each in several for doubt in each), *_gaps(recording, series)]


def _unrecorded(recording: Recording, series: Series) -> Iterator[Doubt]:
    """Yield the stretches that ``every=`` leaves out, the longest: the line through one is no level."""
    found, last = unrecorded(recording), len(series.position) - 1
    start, end = (series.position[np.clip(at, 0, last)] for at in (found.start_event, found.end_event))
    text = "no events were recorded here: torch counted the peaks of steps alone"
    for i in np.sort(np.argsort(start - end, kind="stable")[:MOST_GAPS]).tolist():
        yield float(start[i]), float(end[i]), text


def _thinned(recording: Recording, series: Series) -> Iterator[Doubt]:
    if len(recording.past.steps):
        yield (series.extent[0], float(series.position[0]), "the allocations of these steps were thinned out")


def _of_notes(recording: Recording, series: Series) -> Iterator[Doubt]:
    first, last = float(series.position[0]), series.extent[1]
    for note in recording.notes:
        x = position_of(series, note.value + 1)
        if note.code in _FROM_EVENT and x is not None:
            yield x, last, note.text[:200]
        elif note.code in _AT_START:
            yield first, first, note.text[:200]
        elif note.code in _AT_END:
            yield last, last, note.text[:200]


def _gaps(recording: Recording, series: Series) -> Iterator[Doubt]:
    """Yield the gaps: each begins with the last instant that is known and ends with the mark."""
    marks = recording.marks.rows(recording.marks.kind == MarkKind.GAP)
    end = series.position[np.minimum(marks.event, len(series.position) - 1)]
    start = series.position[np.maximum(np.searchsorted(series.position, end) - 1, 0)]
    kept = np.lexsort((start - end, -marks.value))[:MOST_GAPS]
    for i in np.sort(kept).tolist():
        n_lost = int(marks.value[i])
        what = f"{n_lost:,} events are missing" if n_lost > 0 else "nothing was recorded"
        text = f"{what} here: what happened in all is shown as one moment"
        yield float(start[i]), float(end[i]), text
