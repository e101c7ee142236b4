"""Computes all figures of a recording once; commands print them and pages draw them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from vramscope.allocator.levels import unmappable_bytes
from vramscope.allocator.state_index import state_from_nearest
from vramscope.analysis import find
from vramscope.analysis.annotations import annotations
from vramscope.analysis.categories import Categories, categories
from vramscope.analysis.findings import collect, with_modules
from vramscope.analysis.forecast import Outlook, forecast
from vramscope.analysis.identity import identity_of
from vramscope.analysis.leaks.holders import holder_name, recorded_holdings
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.lines import LiveBytes, live_bytes
from vramscope.analysis.own_peaks import own_peaks
from vramscope.analysis.peak import Peak, PeakPoint, peak_of, point_at
from vramscope.analysis.private_pools import PoolKind, private_pools
from vramscope.analysis.recorded_settings import recorded_settings
from vramscope.analysis.sampled_peaks import SampledPeaks, sampled_peaks
from vramscope.analysis.shared_results import shared_results
from vramscope.analysis.step_peaks import IntervalPeaks, StepPeaks, peaks_by_samples, step_peaks
from vramscope.analysis.timeline import named_instant, timeline
from vramscope.analysis.verdicts import Verdicts, is_exact, verdicts
from vramscope.analysis.verdicts.missing import missing_parts
from vramscope.analysis.waterfall import Waterfall, waterfall
from vramscope.model.codes import QUANTITIES, NoteCode
from vramscope.model.counters import Counters
from vramscope.model.finding import Finding
from vramscope.model.marks import MarkKind, Phase, Steps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action
from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_bytes

_NO_LEVELS = ("time_ns", "event", "reserved_drift_bytes")


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The most allocated bytes during one step, and during each of its phases."""

    index: int | None
    """The user-visible number of the step; None for everything outside of steps."""
    allocated_bytes: int | None
    """The peak in bytes; None where the step contains no sample."""
    phases: Mapping[str, int]
    is_exact: bool = True
    """False where only samples are known: then the peak was at least this much."""
    has_detail: bool = True
    """False where the step has no events: the size cap removed them, or they were not recorded."""


@dataclass(frozen=True, slots=True)
class PrivatePool:
    """The memory of one private pool, of a CUDA graph or a MemPool, at one instant."""

    id: tuple[int, int]
    """torch's id of the pool."""
    reserved_bytes: int
    allocated_bytes: int
    kind: PoolKind = PoolKind.UNKNOWN
    place: str = ""
    """The line of code that made the pool, ``file:line``; '' if unknown."""


class Instant(NamedTuple):
    """What was allocated at one instant."""

    recording: Recording
    allocated: PeakPoint
    reserved_bytes: int
    peak_bytes: int
    """The most that was allocated at any instant."""
    live: tuple[LiveBytes, ...]
    categories: Mapping[str, int] | None
    """Bytes by category; None where nothing is known."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one rank on one device."""

    recording: Recording
    end: Mapping[str, int]
    """Bytes at the end, by quantity."""
    peak: Mapping[str, PeakPoint]
    """The maximum of each quantity, including events that the size cap removed."""
    identity: Mapping[str, int]
    """The parts of the reserved bytes at the peak of allocated bytes; empty where the source has none."""
    returnable_bytes: int
    """Bytes of the free pieces then that ``empty_cache()`` returns all the same, in expandable segments."""
    private_pools: tuple[PrivatePool, ...]
    """Each private pool in use at the peak of allocated bytes, the largest first."""
    live: tuple[LiveBytes, ...]
    """Live bytes at the peak of allocated bytes, as far as there are events, largest first."""
    annotated: Mapping[str, tuple[int, int]]
    """Blocks and bytes at that instant by the text that the program put on them, the most bytes first."""
    steps: tuple[StepPeak, ...]
    outside: StepPeak | None
    """The peak outside of every step: model setup, evaluation; None without steps, and without events."""
    categories: Mapping[str, int] | None
    """Bytes by category at the peak of allocated bytes; None where nothing is known."""
    category_peaks: Mapping[str, int] | None
    """The own peak of each category, at any instant."""
    findings: tuple[Finding, ...]
    """The findings of all analyses, the most severe first, without the peak, which has fields of its own."""
    samples: Mapping[str, int]
    """The maximum of each quantity that counters sampled."""
    pinned: Instant | None
    """Pinned host memory when most of it was in use; None where no events of it are known."""
    waterfall: Waterfall
    """The distribution of all bytes of the device, at each sample."""
    sampled: SampledPeaks | None
    """Bounds of the peaks from samples, for recordings without events."""
    verdicts: Verdicts
    """What the recording lacks, and the verdicts that this leaves."""
    outlook: Outlook
    """When the limit of the device is reached, as far as that can be known."""

    @property
    def starts_late(self) -> bool:
        """Whether memory was in use before the first event."""
        return len(self.recording.initial.segments) > 0

    @property
    def gaps(self) -> int:
        """The number of gaps in which events are missing."""
        return sum(note.code == NoteCode.GAP for note in self.recording.notes)


def at_instant(recording: Recording, word: str) -> Instant:
    """Return what was allocated at the ``peak``, at the ``end``, or after a number of events.

    Raises UsageError for another word, and for an instant outside of the recording.
    """
    with shared_results():
        totals, known = timeline(recording), categories(recording, named_instant(recording, word))
        now = point_at(recording, totals, "allocated", known.instant)
        reserved, peak = int(totals.reserved_bytes[known.instant]), int(totals.allocated_bytes.max())
        by_category = known.totals if known.is_known else None
        return Instant(recording, now, reserved, peak, _live(recording, known), by_category)


def pinned_words(recording: Recording, found: Instant) -> tuple[str, str]:
    """Return what is said of the pinned host memory *found* at its peak: a title, and what torch held."""
    is_shared = any(note.code == NoteCode.SHARED_HISTORY for note in recording.notes)
    has_gap = is_shared or MarkKind.GAP in found.recording.marks.kind
    bound = "" if is_exact(missing_parts(recording)) and not has_gap else "at least "
    of = "pinned host memory in use at its peak, by the line that pinned it"
    counted = "torch keeps what is freed, and what cudaHostRegister pinned counts as well"
    held = f"{format_bytes(found.reserved_bytes)} were pinned then: {counted}"
    return f"{bound}{format_bytes(found.peak_bytes)} of {of}", held


def live_lines(recording: Recording, instant: int) -> tuple[LiveBytes, ...]:
    """Return what was allocated at *instant* by stack, category and module, with who keeps it."""
    return _live(recording, categories(recording, instant))


def _live(recording: Recording, known: Categories) -> tuple[LiveBytes, ...]:
    holdings = recorded_holdings(recording, known.allocations)
    names = {row: holder_name(each) for row, each in holdings.items()}
    return live_bytes(recording, known.allocations, known.assigned, known.instant, names)


def summarize(recording: Recording) -> Summary:
    """All figures of *recording*; takes seconds per million events."""
    with shared_results():
        end, high = _end_and_peak(recording)
        known = categories(recording, high.allocated.instant)
        state = state_from_nearest(recording, high.allocated.instant)
        by_name = own_peaks(recording, by="category").by_name if known.is_known else {}
        sampled = None if has_allocator(recording) else sampled_peaks(recording)
        peaks = step_peaks(recording) if sampled is None else peaks_by_samples(recording)
        judged = verdicts(recording)  # before the findings: both need the leaks, which are kept from here on
        return Summary(
            recording=recording,
            end=end,
            peak={quantity: high.highest(quantity) for quantity in QUANTITIES},
            identity=identity_of(state).parts if recording.has_layout else {},
            returnable_bytes=int(unmappable_bytes(state, recorded_settings(recording, state)).sum()),
            private_pools=_private_pools(recording, high.allocated.instant),
            live=_live(recording, known),
            annotated=_annotated(recording, high.allocated.instant),
            steps=() if sampled and not len(sampled.per_step) else _steps(recording, peaks),
            outside=_outside(recording, peaks) if sampled is None else None,
            categories=known.totals if known.is_known else None,
            category_peaks={name: own for name, (_, own) in by_name.items()} if known.is_known else None,
            findings=tuple(with_modules(recording, collect(partial(_answer, recording)))),
            samples=_samples(recording.counters),
            pinned=at_instant(recording.pinned, "peak") if recording.pinned else None,
            waterfall=waterfall(recording),
            sampled=sampled,
            verdicts=judged,
            outlook=forecast(recording),
        )


def _end_and_peak(recording: Recording) -> tuple[dict[str, int], Peak]:
    """Compute both at once: the timeline, 40 MB per million events, is released before further analyses."""
    totals = timeline(recording)
    end = {quantity: int(getattr(totals, f"{quantity}_bytes")[-1]) for quantity in QUANTITIES}
    return end, peak_of(recording, totals)


def has_allocator(recording: Recording) -> bool:
    """Whether the source contains allocator data: a log of the driver does not, and zeros would mislead."""
    if recording.source == "counters":
        return False
    # Of messages that are cut only the failures are known.
    has_events = bool((recording.trace.action != Action.OOM).any())
    return has_events or bool(len(recording.initial.segments)) or not len(recording.counters)


def _annotated(recording: Recording, instant: int) -> Mapping[str, tuple[int, int]]:
    found = annotations(recording)
    if not len(found):
        return {}
    blocks = lifetimes(recording)
    is_live = blocks.allocated_at(instant)[found.row] & (found.event <= instant)
    pairs = np.unique(np.stack((found.text[is_live], found.row[is_live])), axis=1)
    by_text = {
        found.texts[text]: (len(rows := pairs[1][pairs[0] == text]), int(blocks.block_size[rows].sum()))
        for text in np.unique(pairs[0]).tolist()
    }
    return dict(sorted(by_text.items(), key=lambda each: -each[1][1]))


def _private_pools(recording: Recording, instant: int) -> tuple[PrivatePool, ...]:
    found = []
    for pool in private_pools(recording):
        allocated, reserved = pool.levels.at(instant)
        if reserved:
            found.append(PrivatePool(pool.name.id, reserved, allocated, pool.name.kind, pool.name.place))
    return tuple(sorted(found, key=lambda each: -each.reserved_bytes))


def _samples(counters: Counters) -> dict[str, int]:
    """The maximum of each column by name; a column of −1 only is unknown and left out."""
    most = {name: int(column.max(initial=-1)) for name, column in counters.columns()}
    return {name: value for name, value in most.items() if value >= 0 and name not in _NO_LEVELS}


def phase_word(phase: Phase | int) -> str:
    """The machine-readable name of a phase, such as ``zero_grad``; text for people has no underscore."""
    return Phase(phase).name.lower()


def _outside(recording: Recording, found: StepPeaks) -> StepPeak | None:
    """The intervals before, between and after the steps, taken together."""
    if not len(found.outside) or not len(recording.steps):
        return None
    rows = found.per_phase.rows(found.per_phase.step < 0)
    named = zip(rows.phase.tolist(), rows.allocated_bytes.tolist(), strict=True)
    return StepPeak(
        None,
        int(found.outside.allocated_bytes.max()),
        {phase_word(phase): n_bytes for phase, n_bytes in named},
    )


def _steps(recording: Recording, found: StepPeaks) -> tuple[StepPeak, ...]:
    past = _listed(recording.past.steps, found.past_per_step, found.past_per_phase)
    past = tuple(replace(step, has_detail=False) for step in past)
    here, steps = _listed(recording.steps, found.per_step, found.per_phase), recording.steps
    is_bare = unrecorded(recording).overlap(steps.start_ns, steps.end_ns)
    return (*past, *(replace(s, has_detail=not bare) for s, bare in zip(here, is_bare.tolist(), strict=True)))


def _listed(steps: Steps, per_step: IntervalPeaks, rows: IntervalPeaks) -> tuple[StepPeak, ...]:
    phases: list[dict[str, int]] = [{} for _ in range(len(per_step))]
    for step, phase, n_bytes in zip(
        rows.step.tolist(), rows.phase.tolist(), rows.allocated_bytes.tolist(), strict=True
    ):
        if step >= 0:
            phases[step][phase_word(phase)] = n_bytes
    index, is_exact = steps.index.tolist(), (~per_step.is_lower_bound).tolist()
    peaks = (None if n_bytes < 0 else n_bytes for n_bytes in per_step.allocated_bytes.tolist())
    return tuple(StepPeak(*row) for row in zip(index, peaks, phases, is_exact, strict=True))


def _answer(recording: Recording, name: str) -> Any:
    analysis = find(name)
    assert analysis is not None  # noqa: S101 - for the type checker: `collect` asks registered ones only
    return analysis.run(recording)
