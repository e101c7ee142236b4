"""The stretches and moments of the axis where something is missing or doubtful."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.leaks.all_steps import levels_by_counters
from vramscope.analysis.sampled_peaks import peaks_between
from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind
from vramscope.model.recording import Recording
from vramscope.steps.unrecorded import unrecorded

from .drawing.series import EVENTS, Series
from .drawing.window import Window
from .track import MOST_STEPS, position_of

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

_BARE = "no events were recorded here: torch counted the peak of each step and the level at its end"
_COUNTED = ("x", "end", "level", "y", "reserved")
"""``x`` is where the step starts, ``y`` its peak: what every curve has."""

Doubt = tuple[float, float, str]
"""Position, end and text; a moment ends where it begins."""


def noted(recording: Recording, series: Series) -> list[Doubt]:
    """Return what is missing or doubtful, for the marks on the axis; parts that overlap stay apart."""
    bare = [(*edges, _BARE) for edges in _bare(recording, series, Window(*series.extent)).tolist()]
    several = _thinned(recording, series), bare, _of_notes(recording, series)
    return [*(doubt for each in several for doubt in each), *_gaps(recording, series)]


def _bare(recording: Recording, series: Series, shown: Window) -> NDArray[Any]:
    """Return the edges of the longest stretches without events: a line through one is no level."""
    found, last = unrecorded(recording), len(series.position) - 1
    both = series.position[np.clip(np.stack([found.start_event, found.end_event], axis=1), 0, last)]
    both = both[(both[:, 1] >= shown.start) & (both[:, 0] <= shown.end)]
    return both[np.sort(np.argsort(both[:, 0] - both[:, 1], kind="stable")[:MOST_GAPS])]


def counted(recording: Recording, series: Series, shown: Window) -> dict[str, NDArray[Any]]:
    """Return the stretches without events, and of each of their steps what torch counted, −1 where unknown.

    Of more than MOST_STEPS it is the most in each column of the view; on an axis of events they have no room.
    """
    bare, steps = unrecorded(recording), recording.steps
    if not len(bare) or series.axis == EVENTS:
        return {}
    start, end, (number, n_bytes) = series.steps.start, series.steps.end, levels_by_counters(recording)
    level = np.full(len(steps), -1)
    level[np.searchsorted(steps.index, number)] = n_bytes
    most, _ = peaks_between(recording.counters, steps.start_ns, steps.end_ns)
    there = bare.overlap(steps.start_ns, steps.end_ns) & (end >= shown.start) & (start <= shown.end)
    column = np.floor((start - shown.start) / (shown.end - shown.start) * MOST_STEPS)[there]
    column = column if len(column) > MOST_STEPS else np.arange(len(column))
    first = np.flatnonzero(np.diff(column, prepend=-np.inf))
    values = zip(_COUNTED, (start, end, level, most["allocated"], most["reserved"]), strict=True)
    found = {f"counted.{name}": np.maximum.reduceat(each[there], first) for name, each in values}
    found |= zip(("bare.from", "bare.to"), _bare(recording, series, shown).T, strict=True)
    return {name: each.astype("f8") for name, each in found.items()}


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
