"""Finds the stretches of a recording without events, between the steps that ``record(every=…)`` keeps."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import MarkKind, Marks
from vramscope.model.recording import Recording
from vramscope.model.table import Array, Int64, Table, rows_within


@dataclass(frozen=True, slots=True)
class Unrecorded(Table):
    """One row per stretch without events, in order."""

    start_event: Int64
    """The first of the events that stand for the stretch: they lead from the state before to that after."""
    end_event: Int64
    """The first event that was recorded after it."""
    start_ns: Int64
    end_ns: Int64

    def overlap(self, start_ns: Array, end_ns: Array) -> NDArray[np.bool_]:
        """Whether each interval of time has a part in any stretch."""
        if not len(self):
            return np.zeros(len(start_ns), "?")
        row = np.searchsorted(self.end_ns, start_ns, side="right")
        return (row < len(self)) & (np.append(self.start_ns, 0)[row] < end_ns)

    def stand_in(self, events: Array) -> NDArray[np.bool_]:
        """Whether each event stands for what happened in a stretch."""
        return rows_within(self.start_event, self.end_event, events) >= 0


def unrecorded(recording: Recording) -> Unrecorded:
    """Return the stretches without events; one that is open lasts until the end of the recording.

    Instants are those of the recording; of what the size cap removed they are negative.
    """
    old, new = (each.rows(each.kind == MarkKind.EVENTS) for each in (recording.past.marks, recording.marks))
    marks = Marks.joined(replace(old, event=old.event - recording.past.n_events, names=("",)), new)
    if not len(marks):
        return Unrecorded.of()
    off, on = (marks.rows(marks.value == value) for value in (0, 1))
    on = on.rows(slice(int(marks.value[0]), None))  # the size cap may have removed where the first began
    last = np.array([np.iinfo("i8").max])
    return Unrecorded.of(
        start_event=off.event,
        end_event=np.append(on.event, len(recording.trace))[: len(off)],
        start_ns=off.time_ns,
        end_ns=np.append(on.time_ns, last)[: len(off)],
    )
