"""What is left of the part of a recording whose events a size cap took.

Its instants count from the first event that was ever recorded, not from the first that is still there.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from numpy.typing import NDArray

from vramscope.model.marks import Marks, Phases, Steps
from vramscope.model.table import Table


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
