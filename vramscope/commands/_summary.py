"""What one would tell a colleague about a recording: the figures, before anybody words them."""

from collections.abc import Mapping
from dataclasses import dataclass

from vramscope.analysis import analyses
from vramscope.analysis.by_stack import by_stack
from vramscope.analysis.categories import categories
from vramscope.analysis.identity import identity
from vramscope.analysis.peak import High, peak
from vramscope.analysis.step_peaks import step_peaks
from vramscope.analysis.timeline import timeline
from vramscope.commands._lines import Line, lines
from vramscope.model.counters import Counters
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording

QUANTITIES = ("requested", "allocated", "active", "reserved")


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
    """What the reserved bytes consist of when most is allocated; empty where the source does not tell."""
    lines: tuple[Line, ...]
    """What was live when most was allocated, largest first."""
    steps: tuple[StepPeak, ...]
    categories: Mapping[str, int] | None
    """Bytes by category when most is allocated; None where nothing is known."""
    findings: tuple[Finding, ...]
    """What the analyses say unasked, but for the peak: that is told anyway."""
    samples: Mapping[str, int]
    """The most that counters said of each quantity, where they said anything."""

    @property
    def starts_late(self) -> bool:
        """Whether memory was in use before the first event."""
        return len(self.recording.initial.segments) > 0

    @property
    def gaps(self) -> int:
        """How many stretches of events are missing."""
        return sum(note.code == "gap" for note in self.recording.notes)


def summarize(recording: Recording) -> Summary:
    """Ask every question once."""
    totals, high = timeline(recording), peak(recording)
    held = by_stack(recording, high.allocated.instant)
    known = categories(recording, high.allocated.instant)
    return Summary(
        recording=recording,
        end={quantity: int(getattr(totals, quantity)[-1]) for quantity in QUANTITIES},
        peak={quantity: getattr(high, quantity) for quantity in QUANTITIES},
        identity=_identity(recording, high.allocated.instant),
        lines=tuple(lines(recording.stacks, held.stack_id, held.bytes, held.count)),
        steps=_steps(recording),
        categories=known.totals if known.is_known else None,
        findings=_findings(recording),
        samples=_samples(recording.counters),
    )


def _identity(recording: Recording, instant: int) -> Mapping[str, int]:
    if any(note.code == "no_layout" for note in recording.notes):
        return {}
    return identity(recording, instant).parts


def _samples(counters: Counters) -> dict[str, int]:
    """By the column's name; −1 means that it could not be had."""
    most = {name: int(column.max(initial=-1)) for name, column in counters.columns()}
    return {name: value for name, value in most.items() if value >= 0 and name not in ("time_ns", "event")}


def phase_word(phase: Phase | int) -> str:
    """``zero_grad``: the word for machines; people read it without the underscore."""
    return Phase(phase).name.lower()


def _steps(recording: Recording) -> tuple[StepPeak, ...]:
    found = step_peaks(recording)
    phases: list[dict[str, int]] = [{} for _ in range(len(found.per_step))]
    rows = found.per_phase
    for step, phase, n_bytes in zip(
        rows.step.tolist(), rows.phase.tolist(), rows.allocated.tolist(), strict=True
    ):
        if step >= 0:
            phases[step][phase_word(phase)] = n_bytes
    index, peaks = recording.steps.index.tolist(), found.per_step.allocated.tolist()
    return tuple(StepPeak(*row) for row in zip(index, peaks, phases, strict=True))


def _findings(recording: Recording) -> tuple[Finding, ...]:
    return tuple(
        finding
        for analysis in analyses().values()
        if analysis.findings is not None and analysis.name != "peak"
        for finding in analysis.findings(analysis.run(recording))
    )
