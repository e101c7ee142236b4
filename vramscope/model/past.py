"""What is left of the part of a recording whose events a size cap took.

Its instants count from the first event that was ever recorded, not from the first that is still there.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Marks, Phases, Steps
from vramscope.model.table import Table

NONE = -1
"""Where nothing is known."""


def most_of(values: NDArray[Any], first: NDArray[Any], behind: NDArray[Any]) -> NDArray[Any]:
    """The greatest of the rows [first, behind) of *values* for each pair; NONE where there is none."""
    if not len(first):
        return values[:0]
    # One row more, so that a range may end behind the last.
    pairs = np.stack([first, np.maximum(first, behind)], axis=1).ravel()
    most = np.maximum.reduceat(np.append(values, NONE), pairs)[::2]
    return np.where(behind > first, most, NONE)


@dataclass(frozen=True, slots=True)
class StretchPeaks(Table):
    """The most of each quantity between two neighbouring marks, both instants included.

    A row ends where the next one begins, the last one at ``Past.n_events``. Steps and phases begin and end
    at marks, so the peak of each of them follows from these, whatever rule finds them.
    """

    DTYPES: ClassVar = {
        "event": "i8",
        "requested": "i8",
        "allocated": "i8",
        "active": "i8",
        "reserved": "i8",
    }

    event: NDArray[Any]
    """The instant at which it begins."""
    requested: NDArray[Any]
    allocated: NDArray[Any]
    active: NDArray[Any]
    reserved: NDArray[Any]

    def between(self, start: NDArray[Any], end: NDArray[Any], n_events: int) -> dict[str, NDArray[Any]]:
        """The most of each quantity over the instants *start* to *end*, both included, which are those of
        marks; −1 where no row lies between. *n_events*: where the last row ends."""
        if not len(self):
            return {name: np.full(len(start), NONE) for name in self.DTYPES if name != "event"}
        first = np.searchsorted(self.event, start)
        behind = np.searchsorted(np.append(self.event[1:], n_events), end, side="right")
        return {name: most_of(values, first, behind) for name, values in self.columns() if name != "event"}


@dataclass(frozen=True, slots=True)
class SummarizedSteps(Table):
    """The oldest steps, whose marks went too: no phases, but each with its peak. One row a step, in order."""

    DTYPES: ClassVar = {
        "start_event": "i8",
        "end_event": "i8",
        "start_ns": "i8",
        "end_ns": "i8",
        "is_joined": "?",
        "requested": "i8",
        "allocated": "i8",
        "active": "i8",
        "reserved": "i8",
    }

    start_event: NDArray[Any]
    end_event: NDArray[Any]
    start_ns: NDArray[Any]
    end_ns: NDArray[Any]
    is_joined: NDArray[Any]
    """Whether the next step begins where this one ends."""
    requested: NDArray[Any]
    allocated: NDArray[Any]
    active: NDArray[Any]
    reserved: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Past:
    """The course of the program, and peaks. Not which allocations made them."""

    n_events: int = 0
    """So many events were taken: instant 0 of the trace is this instant of the whole."""
    marks: Marks = field(default_factory=Marks.of)
    steps: Steps = field(default_factory=Steps.of)
    """All that began before ``n_events``; the last may reach into the trace."""
    phases: Phases = field(default_factory=Phases.of)
    """Of these steps, and outside of steps."""
    peaks: StretchPeaks = field(default_factory=StretchPeaks.of)
    """Behind the settled steps."""
    settled: SummarizedSteps = field(default_factory=SummarizedSteps.of)
    """The first rows of ``steps``."""
