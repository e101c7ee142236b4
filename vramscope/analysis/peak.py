"""When was most memory in use, and how much was it?"""

from dataclasses import dataclass

from vramscope.analysis import Analysis
from vramscope.analysis._place import place
from vramscope.analysis.timeline import timeline
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.units import format_bytes


@dataclass(frozen=True, slots=True)
class High:
    """The maximum of one quantity, and where it was reached first."""

    n_bytes: int
    instant: int
    time_ns: int
    """0 without a clock."""
    step: int | None
    """None outside of every step."""
    phase: Phase | None
    """None outside of every phase."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Each quantity's own maximum: they need not fall on the same instant."""

    requested: High
    allocated: High
    active: High
    reserved: High


def peak(recording: Recording) -> Peak:
    """The maxima over all instants, that before the first event included."""
    totals = timeline(recording)

    def high(quantity: str) -> High:
        values = getattr(totals, quantity)
        instant = int(values.argmax())
        step, phase = place(recording, instant)
        return High(int(values[instant]), instant, int(totals.time_ns[instant]), step, phase)

    return Peak(high("requested"), high("allocated"), high("active"), high("reserved"))


def findings(found: Peak) -> list[Finding]:
    """The peak in one sentence."""
    top = found.allocated
    if not top.n_bytes:
        return []
    step = "" if top.step is None else f" at step {top.step}"
    phase = "" if top.phase is None else f" in {top.phase.name.lower().replace('_', ' ')}"
    claim = f"peak {format_bytes(top.n_bytes)} allocated{step}{phase}"
    evidence = {"instant": top.instant, "reserved_bytes": found.reserved.n_bytes}
    return [Finding("peak", "info", claim, n_bytes=top.n_bytes, evidence=evidence)]


ANALYSIS = Analysis("peak", "When was most memory in use, and how much was it?", peak, findings)
