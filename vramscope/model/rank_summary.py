"""The summary of one rank: what a comparison of thousands of ranks needs, in at most 200 kB."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from vramscope.model.device import Device, Process
from vramscope.model.finding import Finding
from vramscope.model.marks import Note, Steps
from vramscope.model.recording import Outcome
from vramscope.model.stacks import Frame
from vramscope.model.table import Array, Int64, Table


class LineBytes(NamedTuple):
    """Bytes that one line of the program allocated."""

    n_bytes: int
    n_blocks: int
    frames: tuple[Frame, ...]
    """The user's frames, innermost first, at most four; empty where no stack is known."""
    via: str
    """The library function that the line called; '' where it called none."""
    n_steps: int = 0
    """The number of different steps in which the blocks were allocated; 0 where that was not counted."""


@dataclass(frozen=True, slots=True)
class StepRows(Table):
    """One row per step, or per group of neighboring steps of a long run."""

    step: Int64
    """The number of the first step of the row."""
    n_steps: Int64
    """The number of steps in the row; in a group, ``step`` is a multiple of the group's size."""
    start_ns: Int64
    """Unix time at which the first step begins."""
    end_ns: Int64
    """Unix time at which the last step ends."""
    allocated: Int64
    """The maximum of allocated bytes; −1 where unknown."""
    reserved: Int64
    """The maximum of reserved bytes; −1 where unknown."""

    @classmethod
    def of_steps(cls, steps: Steps, allocated: Array, reserved: Array) -> "StepRows":
        """One row per step, with its maxima in bytes."""
        return cls.of(
            step=steps.index,
            n_steps=np.ones(len(steps)),
            start_ns=steps.start_ns,
            end_ns=steps.end_ns,
            allocated=allocated,
            reserved=reserved,
        )

    def grouped(self, size: int) -> "StepRows":
        """Join the rows of *size* neighboring steps, beginning at multiples of *size*: maxima stay exact."""
        if not len(self):
            return self
        group = self.step // size
        first = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
        if len(first) == len(self) and (group * size == self.step).all():
            return self
        return StepRows(
            step=group[first] * size,
            n_steps=np.add.reduceat(self.n_steps, first),
            start_ns=self.start_ns[first],
            end_ns=np.maximum.reduceat(self.end_ns, first),
            allocated=np.maximum.reduceat(self.allocated, first),
            reserved=np.maximum.reduceat(self.reserved, first),
        )


class PeakPlace(NamedTuple):
    """The maximum of one quantity, with its step and time."""

    n_bytes: int
    step: int | None
    time_ns: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The first allocation that failed."""

    step: int | None
    time_ns: int
    requested_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    lines: tuple[LineBytes, ...]
    """What was allocated at that moment, largest first."""


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """The figures of one rank on one device."""

    device: Device = field(default_factory=Device)
    source: str = "snapshot"
    n_events: int = 0
    """The number of events until now, those that the size cap removed included."""
    is_exact: bool = True
    """Whether peaks are exact; from samples alone they are lower bounds."""
    end: Mapping[str, int] = field(default_factory=dict)
    """Bytes at the end, by quantity."""
    peak: Mapping[str, PeakPlace] = field(default_factory=dict)
    lines: tuple[LineBytes, ...] = ()
    """What was allocated at the peak of allocated bytes, by line, largest first."""
    other_bytes: int = 0
    """Bytes allocated at that peak by lines that are not among ``lines``."""
    retained: tuple[LineBytes, ...] = ()
    """The part of ``lines`` that was allocated in earlier steps, after the first two: what grows, if
    anything does."""
    steps: StepRows = field(default_factory=StepRows.of)
    phases: Mapping[str, int] = field(default_factory=dict)
    """The maximum of allocated bytes in each phase, over all steps."""
    n_failed: int = 0
    """The number of allocations that failed."""
    failure: Failure | None = None
    samples: Mapping[str, int] = field(default_factory=dict)
    """The maximum of each quantity that counters sampled, in bytes."""
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] | None = None
    """What the analyses of the whole recording find; None where they were not asked."""

    def peak_bytes(self, quantity: str) -> int:
        """The peak of a quantity; 0 where it is not known."""
        return self.peak[quantity].n_bytes if quantity in self.peak else 0


@dataclass(frozen=True, slots=True)
class RankSummary:
    """The summary of one rank."""

    process: Process = field(default_factory=Process)
    outcome: Outcome = Outcome.FINISHED
    error: str = ""
    started_ns: int = 0
    ended_ns: int = 0
    """Unix time of the last thing recorded, in nanoseconds."""
    devices: tuple[DeviceSummary, ...] = ()
