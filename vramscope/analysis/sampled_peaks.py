"""Bounds the peak of each step and phase from samples alone.

The peak is at least the largest sample. It is exact where the interval begins and ends at samples that have
torch's peak since the one before, or where torch's own peak rose in it.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from vramscope.analysis import asking
from vramscope.model.codes import QUANTITIES
from vramscope.model.counters import UNKNOWN, Counters
from vramscope.model.past import most_of
from vramscope.model.recording import Recording
from vramscope.model.table import Array, Bool, Int64, Table


@dataclass(frozen=True, slots=True)
class SampledIntervals(Table):
    """One row per step or phase, in bytes; −1 where it contains no sample."""

    allocated_bytes: Int64
    """A lower bound of the peak of allocated bytes."""
    reserved_bytes: Int64
    """A lower bound of the peak of reserved bytes."""
    at_most_bytes: Int64
    """An upper bound of the peak: torch's own peak until then; −1 where the program resets it."""
    is_exact: Bool
    """Whether ``allocated_bytes`` is the peak: torch's own of the interval is known, rose or is a sample."""
    n_samples: Int64


@dataclass(frozen=True, slots=True)
class SampledPeaks:
    """Peaks per step, per phase and of the whole recording."""

    per_step: SampledIntervals = field(default_factory=SampledIntervals.of)
    """Row i belongs to row i of ``Recording.steps``."""
    per_phase: SampledIntervals = field(default_factory=SampledIntervals.of)
    """Row i belongs to row i of ``Recording.phases``."""
    allocated_bytes: int = UNKNOWN
    """The most allocated bytes since the recording began; a lower bound unless ``is_exact``."""
    reserved_bytes: int = UNKNOWN
    is_exact: bool = False
    is_reset: bool = False
    """Whether the program resets torch's peaks itself: then every number is a lower bound."""


def sampled_peaks(recording: Recording) -> SampledPeaks:
    """Bound the peaks of recordings without events; with events, ``step_peaks`` is exact."""
    counters = recording.counters
    if recording.source == "log":
        # Take torch's own peaks for levels: a log has rounded ones, often alone and since nobody knows
        # when.
        counters = replace(
            counters,
            allocated_bytes=np.maximum(counters.allocated_bytes, counters.allocated_peak_bytes),
            reserved_bytes=np.maximum(counters.reserved_bytes, counters.reserved_peak_bytes),
            allocated_peak_bytes=np.full(len(counters), UNKNOWN),
            reserved_peak_bytes=np.full(len(counters), UNKNOWN),
        )
    counters = counters.rows((counters.allocated_bytes >= 0) | (counters.reserved_bytes >= 0))
    if not len(counters):
        return SampledPeaks()
    tops = counters.allocated_peak_bytes
    is_reset = bool((np.diff(tops) < 0).any())
    whole = _intervals(counters, counters.time_ns[:1], counters.time_ns[-1:], is_reset=is_reset)
    steps, phases = recording.steps, recording.phases
    return SampledPeaks(
        per_step=_intervals(counters, steps.start_ns, steps.end_ns, is_reset=is_reset),
        per_phase=_intervals(counters, phases.start_ns, phases.end_ns, is_reset=is_reset),
        allocated_bytes=int(whole.allocated_bytes[0]),
        reserved_bytes=int(whole.reserved_bytes[0]),
        is_exact=bool(whole.is_exact[0]) and recording.source != "log",
        is_reset=is_reset,
    )


def _intervals(counters: Counters, start_ns: Array, end_ns: Array, *, is_reset: bool) -> SampledIntervals:
    """Peaks over intervals, both ends included: the recorder reads the counters exactly there."""
    at, to, has_any, is_between = _ends(counters, start_ns, end_ns)
    tops, _ = all_tops = counters.allocated_peak_bytes, counters.reserved_peak_bytes
    most, is_known = _most(counters, (at, to, has_any, is_between), ("allocated", "reserved"))
    # A peak that rose between two samples of the interval belongs to the interval.
    risen = np.minimum(at + 1, to), to, at < to
    # torch's peaks where they are higher than at the previous sample.
    higher = (np.where(np.diff(each, prepend=each[:1]) > 0, each, UNKNOWN) for each in all_tops)
    highest = np.where(is_known, UNKNOWN, [_highest(peaks, *risen) for peaks in higher])
    allocated, reserved = np.maximum([most["allocated"], most["reserved"]], highest)
    may_tell = has_any & is_between & (tops[at] >= 0) & (not is_reset)
    return SampledIntervals.of(
        allocated_bytes=np.where(has_any, allocated, UNKNOWN),
        reserved_bytes=np.where(has_any, reserved, UNKNOWN),
        at_most_bytes=np.where(is_known, allocated, np.where(may_tell, tops[to], UNKNOWN)),
        is_exact=is_known | (may_tell & (allocated == tops[to])),
        n_samples=np.where(has_any, to - at + 1, 0),
    )


def peaks_between(counters: Counters, start_ns: Array, end_ns: Array) -> tuple[dict[str, Array], Array]:
    """The maximum of each quantity over intervals between marks, −1 where unknown, and where it is exact."""
    counters = counters.rows(counters.allocated_bytes >= 0)
    if not len(counters):
        return {name: np.full(len(start_ns), UNKNOWN) for name in QUANTITIES}, np.zeros(len(start_ns), "?")
    return _most(counters, _ends(counters, start_ns, end_ns), QUANTITIES)


def _ends(counters: Counters, start_ns: Array, end_ns: Array) -> tuple[Array, ...]:
    """First and last sample of each interval, whether there is any, and whether both are at its ends."""
    first = np.searchsorted(counters.time_ns, start_ns, side="left")
    last = np.searchsorted(counters.time_ns, end_ns, side="right") - 1
    has_any = last >= first
    # Empty intervals get an arbitrary row, and become unknown afterwards.
    at = np.minimum(first, len(counters) - 1)
    to = np.maximum(np.where(has_any, last, at), at)
    return at, to, has_any, (counters.time_ns[at] == start_ns) & (counters.time_ns[to] == end_ns)


def _most(
    counters: Counters, ends: tuple[Array, ...], quantities: tuple[str, ...]
) -> tuple[dict[str, Array], Array]:
    """The most of levels, and of peaks since the samples before, by quantity, and where that is exact.

    Between two such samples no other counts: a background thread that had to wait stamped it late.
    """
    at, to, has_any, is_between = ends
    is_cut = counters.allocated_highest_bytes >= 0
    is_exact = has_any & is_between & is_cut[at] & is_cut[to]
    cuts = np.flatnonzero(is_cut)
    # The first cut of an interval tells of what was before it as well.
    later = np.append(cuts, len(counters))[np.searchsorted(cuts, at)] + 1
    found = {}
    for name in quantities:
        level = _highest(getattr(counters, f"{name}_bytes"), at, to, ~is_exact | (later > to))
        highest = getattr(counters, f"{name}_highest_bytes")
        most = np.maximum(level, _highest(highest, np.minimum(later, to), to, later <= to))
        found[name] = np.where(has_any, most, UNKNOWN)
    return found, is_exact


def _highest(values: Array, first: Array, last: Array, wanted: Array | None = None) -> Array:
    """The maximum of the rows *first* to *last*, both included; −1 where not *wanted*."""
    return most_of(values, first, last + 1 if wanted is None else np.where(wanted, last + 1, first))


ANALYSIS = asking("What do samples alone show of each step's and phase's peak?", sampled_peaks)
