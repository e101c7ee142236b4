"""What is there to say about a recording? Every figure once; commands print them, pages draw them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vramscope.allocator.state_index.checkpoints import (
    state_from_nearest,
)
from vramscope.analysis import find
from vramscope.analysis.categories import categories
from vramscope.analysis.findings import collect, with_modules
from vramscope.analysis.identity import identity_of
from vramscope.analysis.lines import LiveBytes, live_bytes
from vramscope.analysis.own_peaks import own_peaks
from vramscope.analysis.peak import High, Peak, peak_of
from vramscope.analysis.sampled_peaks import SampledPeaks, sampled_peaks
from vramscope.analysis.shared_results import together
from vramscope.analysis.step_peaks import IntervalPeaks, StepPeaks, step_peaks
from vramscope.analysis.timeline import timeline
from vramscope.analysis.waterfall import Waterfall, waterfall
from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase, Steps
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot

_NO_LEVELS = ("time_ns", "event", "reserved_drift_bytes")
QUANTITIES = ("requested", "allocated", "active", "reserved")


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The most that was allocated during one step, and during each phase in it."""

    index: int | None
    """By which people know the step; None for all that lies outside of every step."""
    allocated_bytes: int | None
    """None where nothing was sampled in it."""
    phases: Mapping[str, int]
    is_exact: bool = True
    """False where only samples are known: then the peak was at least so much."""
    has_detail: bool = True
    """Else a size cap took its events."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one rank on one device."""

    recording: Recording
    end: Mapping[str, int]
    """Bytes by quantity."""
    peak: Mapping[str, High]
    """Each the maximum of its own quantity; also of events that a size cap took."""
    identity: Mapping[str, int]
    """What the reserved bytes consist of when most is allocated; empty where the source does not tell."""
    private_pools: tuple[tuple[tuple[int, int], int, int], ...]
    """Of each private pool in use when most was allocated: torch's id, reserved and allocated bytes."""
    live: tuple[LiveBytes, ...]
    """What was live when most was allocated, as far as there are events, largest first."""
    steps: tuple[StepPeak, ...]
    outside: StepPeak | None
    """The most outside of every step: model setup, evaluation; None without steps, and without events."""
    categories: Mapping[str, int] | None
    """Bytes by category when most is allocated; None where nothing is known."""
    category_peaks: Mapping[str, int] | None
    """The most that each category held by itself, at any instant."""
    findings: tuple[Finding, ...]
    """What the analyses find, the gravest first; without the peak, which has fields of its own."""
    samples: Mapping[str, int]
    """The most that counters said of each quantity, where they said anything."""
    waterfall: Waterfall
    """Where all bytes of the device were, at each sample."""
    sampled: SampledPeaks | None
    """Where there are no events: what samples alone say of peaks."""

    @property
    def starts_late(self) -> bool:
        """Whether memory was in use before the first event."""
        return len(self.recording.initial.segments) > 0

    @property
    def gaps(self) -> int:
        """How many stretches of events are missing."""
        return sum(note.code == NoteCode.GAP for note in self.recording.notes)


def summarize(recording: Recording) -> Summary:
    """All figures of *recording*; seconds per million events."""
    with together():
        return _summary(recording)


def _summary(recording: Recording) -> Summary:
    end, high = _end_and_peak(recording)
    known = categories(recording, high.allocated.instant)
    state = state_from_nearest(recording, high.allocated.instant)
    fall = waterfall(recording)
    sampled = None if has_allocator(recording) else sampled_peaks(recording)
    peaks = step_peaks(recording)

    def ask(name: str) -> Any:
        return fall if name == "waterfall" else _answer(recording, name)

    return Summary(
        recording=recording,
        end=end,
        peak={quantity: high.highest(quantity) for quantity in QUANTITIES},
        identity=_identity(recording, state),
        private_pools=_private_pools(recording, state),
        live=live_bytes(recording, known.allocations, known.assigned, known.instant),
        steps=_steps(recording, peaks) if sampled is None else _sampled_steps(recording, sampled),
        outside=_outside(recording, peaks) if sampled is None else None,
        categories=known.totals if known.is_known else None,
        category_peaks=_category_peaks(recording) if known.is_known else None,
        findings=tuple(with_modules(recording, collect(ask))),
        samples=_samples(recording.counters),
        waterfall=fall,
        sampled=sampled,
    )


def _end_and_peak(recording: Recording) -> tuple[dict[str, int], Peak]:
    """The timeline, 40 MB per million events, is let go before other questions are asked."""
    totals = timeline(recording)
    end = {quantity: int(getattr(totals, quantity)[-1]) for quantity in QUANTITIES}
    return end, peak_of(recording, totals)


def _category_peaks(recording: Recording) -> dict[str, int]:
    return {name: own for name, (_, own) in own_peaks(recording, by="category").by_name.items()}


def has_allocator(recording: Recording) -> bool:
    """Whether anything says what the allocator did: a log of the driver does not, and zeros would mislead."""
    if recording.source == "counters":
        return False
    return bool(len(recording.trace) or len(recording.initial.segments) or not len(recording.counters))


def _identity(recording: Recording, state: Snapshot) -> Mapping[str, int]:
    if any(note.code == NoteCode.NO_LAYOUT for note in recording.notes):
        return {}
    return identity_of(state).parts


def _private_pools(recording: Recording, state: Snapshot) -> tuple[tuple[tuple[int, int], int, int], ...]:
    segments, blocks = state.segments, state.blocks
    in_use = blocks.state == BlockState.ALLOCATED
    found = []
    for pool in np.unique(segments.pool).tolist():
        if recording.pools[pool] != (0, 0):
            mine = segments.pool == pool
            allocated = int(blocks.size[in_use & mine[blocks.segment]].sum())
            found.append((recording.pools[pool], int(segments.size[mine].sum()), allocated))
    return tuple(sorted(found, key=lambda row: -row[1]))


def _samples(counters: Counters) -> dict[str, int]:
    """By the column's name; −1 means that it could not be had."""
    most = {name: int(column.max(initial=-1)) for name, column in counters.columns()}
    return {name: value for name, value in most.items() if value >= 0 and name not in _NO_LEVELS}


def phase_word(phase: Phase | int) -> str:
    """``zero_grad``: the word for machines; people read it without the underscore."""
    return Phase(phase).name.lower()


def _outside(recording: Recording, found: StepPeaks) -> StepPeak | None:
    """The stretches before, between and after the steps, taken together."""
    if not len(found.outside) or not len(recording.steps):
        return None
    rows = found.per_phase.rows(found.per_phase.step < 0)
    named = zip(rows.phase.tolist(), rows.allocated.tolist(), strict=True)
    return StepPeak(
        None, int(found.outside.allocated.max()), {phase_word(phase): n_bytes for phase, n_bytes in named}
    )


def _steps(recording: Recording, found: StepPeaks) -> tuple[StepPeak, ...]:
    past = _listed(recording.past.steps, found.past_per_step, found.past_per_phase)
    past = tuple(replace(step, has_detail=False) for step in past)
    return (*past, *_listed(recording.steps, found.per_step, found.per_phase))


def _listed(steps: Steps, per_step: IntervalPeaks, rows: IntervalPeaks) -> tuple[StepPeak, ...]:
    phases: list[dict[str, int]] = [{} for _ in range(len(per_step))]
    for step, phase, n_bytes in zip(
        rows.step.tolist(), rows.phase.tolist(), rows.allocated.tolist(), strict=True
    ):
        if step >= 0:
            phases[step][phase_word(phase)] = n_bytes
    index, peaks = steps.index.tolist(), per_step.allocated.tolist()
    return tuple(StepPeak(*row) for row in zip(index, peaks, phases, strict=True))


def _sampled_steps(recording: Recording, found: SampledPeaks) -> tuple[StepPeak, ...]:
    """At least so much; of a phase that came several times in a step, the most of any."""
    if not len(found.per_step):
        return ()
    steps, rows = recording.phases, found.per_phase
    phases: list[dict[str, int]] = [{} for _ in range(len(found.per_step))]
    for step, phase, n_bytes in zip(
        steps.step.tolist(), steps.phase.tolist(), rows.allocated.tolist(), strict=True
    ):
        if step >= 0 and n_bytes >= 0:
            word = phase_word(phase)
            phases[step][word] = max(n_bytes, phases[step].get(word, 0))
    peaks = (None if n_bytes < 0 else n_bytes for n_bytes in found.per_step.allocated.tolist())
    rest = (recording.steps.index.tolist(), peaks, phases, found.per_step.is_exact.tolist())
    return tuple(StepPeak(*row) for row in zip(*rest, strict=True))


def _answer(recording: Recording, name: str) -> Any:
    analysis = find(name)
    assert analysis is not None  # noqa: S101 - for the type checker: `collect` asks registered ones only
    return analysis.run(recording)
