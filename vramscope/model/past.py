"""What remains of the part of a recording whose events were removed by the size cap.

Instants of this part count from the first event ever recorded, not from the first retained event.
"""

from dataclasses import dataclass, field

import numpy as np

from vramscope.model.marks import Marks, Phases, Steps
from vramscope.model.table import Array, Bool, Int64, Table

NONE = -1
"""Marks an unknown value."""


def most_of(values: Array, first: Array, end: Array) -> Array:
    """The greatest of the rows [first, end) of *values* for each pair; NONE for an empty range."""
    if not len(first):
        return values[:0]
    # One extra row, so that a range may end after the last row.
    pairs = np.stack([first, np.maximum(first, end)], axis=1).ravel()
    most = np.maximum.reduceat(np.append(values, NONE), pairs)[::2]
    return np.where(end > first, most, NONE)


@dataclass(frozen=True, slots=True)
class StretchPeaks(Table):
    """The maximum of each quantity between two neighboring marks, both instants included.

    A row ends where the next one begins, the last one at ``Past.n_events``. Steps and phases begin and end
    at marks, so their peaks follow from these rows, whatever rule finds the steps.
    """

    event: Int64
    """The instant at which the row begins."""
    requested: Int64
    allocated: Int64
    active: Int64
    reserved: Int64

    def between(self, start: Array, end: Array, n_events: int) -> dict[str, Array]:
        """The maximum of each quantity over the instants *start* to *end*, both included.

        *start* and *end* must be those of marks; the last row ends at *n_events*. Bytes by quantity are −1
        where no row lies in between.
        """
        if not len(self):
            return {name: np.full(len(start), NONE) for name in self.DTYPES if name != "event"}
        first = np.searchsorted(self.event, start)
        after_last = np.searchsorted(np.append(self.event[1:], n_events), end, side="right")
        return {
            name: most_of(values, first, after_last) for name, values in self.columns() if name != "event"
        }


@dataclass(frozen=True, slots=True)
class SummarizedSteps(Table):
    """The oldest steps, one row each in order: with their peaks, without marks and phases."""

    start_event: Int64
    end_event: Int64
    start_ns: Int64
    end_ns: Int64
    is_joined: Bool
    """Whether the next step begins where this one ends."""
    requested: Int64
    allocated: Int64
    active: Int64
    reserved: Int64


@dataclass(frozen=True, slots=True)
class Past:
    """Marks, steps, phases and peaks of the removed events; which allocations these were is unknown."""

    n_events: int = 0
    """Number of removed events: instant 0 of the trace is this instant of the whole recording."""
    marks: Marks = field(default_factory=Marks.of)
    steps: Steps = field(default_factory=Steps.of)
    """All steps that began before ``n_events``; the last one may reach into the trace."""
    phases: Phases = field(default_factory=Phases.of)
    """Phases of these steps, and those outside of steps."""
    peaks: StretchPeaks = field(default_factory=StretchPeaks.of)
    """Peaks between the marks after the summarized steps."""
    summarized: SummarizedSteps = field(default_factory=SummarizedSteps.of)
    """The first rows of ``steps``."""
