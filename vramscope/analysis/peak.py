"""When was most memory in use, and how much was it?"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.step_and_phase import (
    number_of_step,
    phase_words,
    place,
)
from vramscope.analysis.timeline import Totals, timeline
from vramscope.model.codes import FindingKind, Severity
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.past import Past
from vramscope.model.recording import Recording
from vramscope.units import format_bytes


@dataclass(frozen=True, slots=True)
class High:
    """The maximum of one quantity, and where it was reached first."""

    n_bytes: int
    instant: int
    """−1 where a size cap took the events (``Recording.past``)."""
    time_ns: int
    """0 without a clock, and where the events were taken."""
    step: int | None
    """None outside of every step."""
    phase: Phase | None
    """None outside of every phase."""
    phase_words: str = ""
    """The phase in words, an annotation by its own name; '' outside of every phase."""

    @property
    def where(self) -> str:
        """``step 3 backward``; '' outside of both."""
        return " ".join(filter(None, ["" if self.step is None else f"step {self.step}", self.phase_words]))


@dataclass(frozen=True, slots=True)
class Peak:
    """Each quantity's own maximum: they need not fall on the same instant."""

    requested: High
    allocated: High
    active: High
    reserved: High
    past: Mapping[str, High] = field(default_factory=dict)
    """By quantity, those before the trace, where a size cap took events."""

    def highest(self, quantity: str) -> High:
        """Of the whole recording; of the events that are there where these reached as much."""
        here: High = getattr(self, quantity)
        before = self.past.get(quantity, here)
        return before if before.n_bytes > here.n_bytes else here


def peak(recording: Recording) -> Peak:
    """The maxima over all instants, that before the first event included."""
    return peak_of(recording, timeline(recording))


def peak_of(recording: Recording, totals: Totals) -> Peak:
    """The same where the timeline is known."""

    def high(quantity: str) -> High:
        values = getattr(totals, quantity)
        instant = int(values.argmax())
        step, phase = place(recording, instant)
        words = phase_words(recording, instant)
        return High(int(values[instant]), instant, int(totals.time_ns[instant]), step, phase, words)

    here = high("requested"), high("allocated"), high("active"), high("reserved")
    return Peak(*here, past_highs(recording.past))


def past_highs(past: Past) -> dict[str, High]:
    """The maxima by quantity before the trace; empty where no size cap took events."""
    event = np.concatenate([past.settled.start_event, past.peaks.event])
    found = {}
    for quantity in ("requested", "allocated", "active", "reserved") if len(event) else ():
        most = np.concatenate([getattr(past.settled, quantity), getattr(past.peaks, quantity)])
        row = int(most.argmax())
        found[quantity] = High(int(most[row]), -1, 0, number_of_step(past.steps, int(event[row])), None)
    return found


def findings(found: Peak) -> list[Finding]:
    """The peak in one sentence."""
    top = found.highest("allocated")
    if not top.n_bytes:
        return []
    step = "" if top.step is None else f" at step {top.step}"
    phase = f" in {top.phase_words}" if top.phase_words else ""
    claim = f"peak {format_bytes(top.n_bytes)} allocated{step}{phase}"
    evidence = {"instant": top.instant, "reserved_bytes": found.reserved.n_bytes}
    return [Finding(FindingKind.PEAK, Severity.INFO, claim, n_bytes=top.n_bytes, evidence=evidence)]


ANALYSIS = Analysis("peak", "When was most memory in use, and how much was it?", peak, findings)
