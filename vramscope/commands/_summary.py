"""What one would tell a colleague about a recording: the figures, before anybody words them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from vramscope.analysis import analyses
from vramscope.analysis.by_stack import by_stack
from vramscope.analysis.categories import categories
from vramscope.analysis.identity import identity
from vramscope.analysis.peak import peak
from vramscope.analysis.steps import steps
from vramscope.analysis.timeline import timeline
from vramscope.commands._lines import Line, lines
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

QUANTITIES = ("requested", "allocated", "active", "reserved")


@dataclass(frozen=True, slots=True)
class High:
    """The maximum of one quantity, and when it was."""

    n_bytes: int
    instant: int
    time_ns: int
    step: int | None
    phase: str | None


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The most that was allocated during one step, and during each phase in it."""

    index: int
    allocated_bytes: int
    phases: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """One rank on one device."""

    recording: Recording
    end: Mapping[str, int]
    """Bytes by quantity."""
    peak: Mapping[str, High]
    """Each the maximum of its own quantity."""
    identity: Mapping[str, int]
    """What reserved bytes consist of when most is allocated."""
    lines: tuple[Line, ...]
    """What was live when most was allocated, largest first."""
    steps: tuple[StepPeak, ...]
    categories: Mapping[str, int] | None
    """Bytes by category when most is allocated; None where nothing is known."""
    findings: tuple[Finding, ...]

    @property
    def starts_late(self) -> bool:
        """Whether memory was in use before the first event."""
        return len(self.recording.initial.blocks) > 0

    @property
    def gaps(self) -> int:
        """How many stretches of events are missing."""
        return sum(note.code == "gap" for note in self.recording.notes)
