"""Finds the maximum of each quantity, and when it was reached."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.step_and_phase import number_of_step, phase_words, step_and_phase_at
from vramscope.analysis.timeline import Totals, timeline
from vramscope.model.codes import QUANTITIES, FindingKind, Severity
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.past import Past
from vramscope.model.recording import Recording
from vramscope.model.table import first_greatest
from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_bytes


@dataclass(frozen=True, slots=True)
class PeakPoint:
    """The maximum of one quantity, and where it was first reached."""

    n_bytes: int
    instant: int
    """The instant; −1 where the size cap removed the events (``Recording.past``), or none were recorded."""
    time_ns: int
    """The time in nanoseconds; 0 without a clock, and where the events were removed."""
    step: int | None
    """The step number; None outside of every step."""
    phase: Phase | None
    """The phase; None outside of every phase."""
    phase_words: str = ""
    """The phase in words, an annotation by its own name; '' outside of every phase."""

    @property
    def where(self) -> str:
        """Step and phase in words, ``step 3 backward``; '' outside of both."""
        return " ".join(filter(None, ["" if self.step is None else f"step {self.step}", self.phase_words]))


@dataclass(frozen=True, slots=True)
class Peak:
    """The maximum of each quantity; the maxima need not fall on the same instant."""

    requested: PeakPoint
    allocated: PeakPoint
    active: PeakPoint
    reserved: PeakPoint
    past: Mapping[str, PeakPoint] = field(default_factory=dict)
    """The maxima without events, by quantity: the size cap removed these, or the steps get none."""

    def highest(self, quantity: str) -> PeakPoint:
        """The maximum with the part that has no events; on a tie the earlier, or the one with events."""
        here: PeakPoint = getattr(self, quantity)
        bare = self.past.get(quantity, here)
        is_first = bare.n_bytes == here.n_bytes and 0 < bare.time_ns < here.time_ns
        return bare if bare.n_bytes > here.n_bytes or is_first else here

    @property
    def above_events(self) -> str:
        """How far a step without events peaked above the highest one with events; '' where none did."""
        here, top = self.allocated, self.highest("allocated")
        if top.step is None or here.step is None or top.n_bytes <= here.n_bytes:
            return ""
        return f"{format_bytes(top.n_bytes - here.n_bytes)} above step {here.step}, the highest with events"


def peak(recording: Recording) -> Peak:
    """The maximum of each quantity over all instants, including the one before the first event."""
    return peak_of(recording, timeline(recording))


def peak_of(recording: Recording, totals: Totals) -> Peak:
    """The same result from a timeline that is known already."""

    def high(quantity: str) -> PeakPoint:
        most = first_greatest(getattr(totals, f"{quantity}_bytes"))
        return point_at(recording, totals, quantity, most)

    here = high("requested"), high("allocated"), high("active"), high("reserved")
    return Peak(*here, bare_highs(recording))


def bare_highs(recording: Recording) -> dict[str, PeakPoint]:
    """The maxima by quantity of all that has no events; empty where everything has."""
    found = past_highs(recording.past)
    for quantity, high in _counted_highs(recording).items():
        if quantity not in found or found[quantity].n_bytes < high.n_bytes:
            found[quantity] = high
    return found


def _counted_highs(recording: Recording) -> dict[str, PeakPoint]:
    """The maxima by torch's counters, where some steps have no events."""
    counters, steps = recording.counters, recording.steps
    bare = unrecorded(recording)
    before = np.append(0, counters.time_ns)[:-1]
    counters = counters.rows(bare.overlap(before, counters.time_ns) & (counters.allocated_highest_bytes >= 0))
    found = {}
    for quantity in QUANTITIES if len(counters) else ():
        most = getattr(counters, f"{quantity}_highest_bytes")
        row = int(most.argmax())
        # A sample ends the interval that it tells of.
        time_ns = int(counters.time_ns[row])
        inside = np.flatnonzero((steps.start_ns < time_ns) & (time_ns <= steps.end_ns))
        number = int(steps.index[inside[0]]) if len(inside) else None
        found[quantity] = PeakPoint(int(most[row]), -1, time_ns, number, None)
    return found


def point_at(recording: Recording, totals: Totals, quantity: str, instant: int) -> PeakPoint:
    """Return how much of a quantity there was at an instant, and its step and phase."""
    n_bytes, time_ns = getattr(totals, f"{quantity}_bytes")[instant], totals.time_ns[instant]
    where = *step_and_phase_at(recording, instant), phase_words(recording, instant)
    return PeakPoint(int(n_bytes), instant, int(time_ns), *where)


def past_highs(past: Past) -> dict[str, PeakPoint]:
    """The maxima by quantity before the trace; empty where the size cap removed no events."""
    event = np.concatenate([past.summarized.start_event, past.peaks.event])
    found = {}
    for quantity in QUANTITIES if len(event) else ():
        most = np.concatenate([getattr(past.summarized, quantity), getattr(past.peaks, quantity)])
        row = int(most.argmax())
        found[quantity] = PeakPoint(int(most[row]), -1, 0, number_of_step(past.steps, int(event[row])), None)
    return found


def findings(found: Peak) -> list[Finding]:
    """The peak in one sentence."""
    top = found.highest("allocated")
    if not top.n_bytes:
        return []
    step = "" if top.step is None else f" at step {top.step}"
    phase = f" in {top.phase_words}" if top.phase_words else ""
    above = found.above_events and f", {found.above_events}"
    claim = f"peak {format_bytes(top.n_bytes)} allocated{step}{phase}{above}"
    evidence = {"instant": top.instant, "reserved_bytes": found.reserved.n_bytes}
    return [Finding(FindingKind.PEAK, Severity.INFO, claim, n_bytes=top.n_bytes, evidence=evidence)]


ANALYSIS = asking("When was most memory in use, and how much was it?", peak, findings)
