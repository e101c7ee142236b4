"""Compares the memory of ranks at one common moment or in the same step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.step_peaks import step_peaks
from vramscope.analysis.timeline import Totals, timeline
from vramscope.errors import UsageError
from vramscope.model.codes import QUANTITIES
from vramscope.model.recording import Recording
from vramscope.model.table import Bool, Int64, Table

NONE = -1
"""Marks an unknown value."""

_LEVELS = tuple(f"{quantity}_bytes" for quantity in QUANTITIES)


@dataclass(frozen=True, slots=True)
class RankBytes(Table):
    """One row per recording (a rank on a device), in the given order.

    Aligned by time, ``allocated_bytes`` sums up to what all ranks held at that moment. Aligned by step, each
    row is at a moment of its own. Own peaks always are, so their sum means nothing.
    """

    rank: Int64
    device: Int64
    instant: Int64
    """Instant of this recording, for use with every other analysis; −1 where there is none."""
    time_ns: Int64
    """Time of the last event before the instant, in nanoseconds of Unix time."""
    is_within: Bool
    """Whether the process was recorded at the moment; otherwise the row shows its nearer end. All devices of
    a rank are recorded together: a device whose last event came earlier still holds its memory.
    """
    requested_bytes: Int64
    allocated_bytes: Int64
    active_bytes: Int64
    reserved_bytes: Int64
    own_peak_bytes: Int64
    """The most allocated bytes of this row: in the window, in the step, or in all retained events."""
    own_instant: Int64
    aligned: str = "time"
    """How the rows are aligned: ``time`` or ``step``."""
    moment_ns: int = 0
    """The common moment of all rows, in nanoseconds, where they are aligned by time and have a clock."""

    @property
    def total_bytes(self) -> int:
        """Allocated bytes of all rows whose bytes are known."""
        return int(self.allocated_bytes[self.allocated_bytes != NONE].sum())

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``rank 0``; with the device where a rank has several."""
        several = len(set(self.rank.tolist())) < len(self)
        rows = zip(self.rank.tolist(), self.device.tolist(), strict=True)
        return tuple(f"rank {rank}, device {device}" if several else f"rank {rank}" for rank, device in rows)


def by_rank(
    recording: Recording,
    others: Sequence[Recording] = (),
    time_ns: int | None = None,
    step: int | None = None,
    window: tuple[int, int] | None = None,
) -> RankBytes:
    """Memory of each rank at one common moment, or at its own peak in one step.

    Without *time_ns*, *step* and *window* the moment is when all ranks together held most. Events of the same
    nanosecond are applied in the order of the recordings. Clocks of several hosts are not adjusted
    (``rank_comparison.clocks.on_one_clock`` does that).

    Parameters
    ----------
    others
        The other recordings of its run.
    time_ns
        The moment, in nanoseconds of Unix time.
    step
        Compare each rank at its own peak in the step with this number.
    window
        Search the moment within these nanoseconds of Unix time, both ends included.

    Returns
    -------
    RankBytes
        One row per recording, in bytes.

    Raises
    ------
    UsageError
        If no recording has the moment or step, if a clock is missing, or if more than one of time_ns, step
        and window is given.
    """
    if (time_ns, step, window).count(None) < 2:
        raise UsageError("by_rank: one of time_ns, step and window")
    recordings = (recording, *others)
    if step is not None:
        return _by_step(recordings, step)
    if others or time_ns is not None or window is not None:
        _check_clocks(recordings)
    timelines = [_rank_timeline(each, window) for each in recordings]
    asked = (time_ns, time_ns) if time_ns is not None else window
    if asked is not None and not any(_reaches(member, *asked) for member in timelines):
        raise UsageError("by_rank: none of the recordings reaches to that time")
    return _by_time(timelines, time_ns, window[0] if window is not None else 0)


# ------------------------------------------------------------------------------------------ by time


class _RankTimeline(NamedTuple):
    """One recording and its range of instants to search: *first* to *last*, both included."""

    recording: Recording
    totals: Totals
    times: NDArray[Any]
    """Times of the events, made non-decreasing."""
    first: int
    last: int


def _check_clocks(recordings: Sequence[Recording]) -> None:
    for recording in recordings:
        if len(recording.trace) and not recording.trace.has_clock:
            name = f"rank {recording.process.rank}, device {recording.device.index}"
            raise UsageError(f"by_rank: {name} has no clock (torch before 2.2): ask for a step")


def _rank_timeline(recording: Recording, window: tuple[int, int] | None) -> _RankTimeline:
    times = np.maximum.accumulate(recording.trace.time_ns)
    first, last = 0, len(times)
    if window is not None:
        # The window starts in the state before its first nanosecond.
        first = int(np.searchsorted(times, window[0], side="left"))
        last = max(first, int(np.searchsorted(times, window[1], side="right")))
    return _RankTimeline(recording, timeline(recording), times, first, last)


def _reaches(member: _RankTimeline, start: int, end: int) -> bool:
    times = member.totals.time_ns
    return bool(times[0] <= end and start <= times.max())


def _by_time(timelines: Sequence[_RankTimeline], moment_ns: int | None, earliest_ns: int) -> RankBytes:
    if moment_ns is None:
        instants, at_ns = _fullest(timelines)
        moment_ns = max(at_ns, earliest_ns)
    else:
        instants = [int(np.searchsorted(member.times, moment_ns, side="right")) for member in timelines]
    spans = _spans(timelines)
    rows = [
        _row(member, instant, spans[member.recording.process.rank], moment_ns)
        for member, instant in zip(timelines, instants, strict=True)
    ]
    return _table(rows, aligned="time", moment_ns=moment_ns)


def _fullest(timelines: Sequence[_RankTimeline]) -> tuple[list[int], int]:
    """The instant of each recording at which all together first held most, and the time of that moment."""
    times = np.concatenate([member.times[member.first : member.last] for member in timelines])
    owner = np.repeat(np.arange(len(timelines)), [member.last - member.first for member in timelines])
    change = np.concatenate(
        [np.diff(member.totals.allocated_bytes[member.first : member.last + 1]) for member in timelines]
    )
    order = np.argsort(times, kind="stable")
    total = np.append(0, np.cumsum(change[order]))
    happened = order[: int(total.argmax())]
    passed = np.bincount(owner[happened], minlength=len(timelines)).tolist()
    began = min(_time_of(member, member.first) for member in timelines)
    instants = [member.first + n for member, n in zip(timelines, passed, strict=True)]
    return instants, int(times[happened[-1]]) if len(happened) else began


def _time_of(member: _RankTimeline, instant: int) -> int:
    return int(member.times[instant - 1]) if instant else int(member.totals.time_ns[0])


def _spans(timelines: Sequence[_RankTimeline]) -> dict[int, tuple[int, int]]:
    """The first and last nanosecond of any device, by rank."""
    found: dict[int, tuple[int, int]] = {}
    for member in timelines:
        rank, times = member.recording.process.rank, member.totals.time_ns
        first, last = found.get(rank, (int(times[0]), int(times.max())))
        found[rank] = min(first, int(times[0])), max(last, int(times.max()))
    return found


def _row(member: _RankTimeline, instant: int, span: tuple[int, int], moment_ns: int) -> dict[str, int]:
    peak = member.first + int(member.totals.allocated_bytes[member.first : member.last + 1].argmax())
    return {
        **_identity(member.recording),
        **_levels(member.totals, instant),
        "time_ns": _time_of(member, instant),
        "is_within": span[0] <= moment_ns <= span[1],
        "own_peak_bytes": int(member.totals.allocated_bytes[peak]),
        "own_instant": peak,
    }


# ------------------------------------------------------------------------------------------ by step


def _by_step(recordings: Sequence[Recording], step: int) -> RankBytes:
    rows = [_row_of_step(recording, step) for recording in recordings]
    if all(row["own_peak_bytes"] == NONE for row in rows):
        raise UsageError(f"by_rank: none of the recordings has a step {step}")
    return _table(rows, aligned="step", moment_ns=0)


def _row_of_step(recording: Recording, step: int) -> dict[str, int]:
    """The row at the recording's own peak in the step; of a step that the size cap removed only the peak."""
    past = np.flatnonzero(recording.past.steps.index == step)
    here = np.flatnonzero(recording.steps.index == step)
    unknown = {**_identity(recording), **dict.fromkeys(RankBytes.DTYPES.keys() - {"rank", "device"}, NONE)}
    unknown["is_within"] = False
    if len(past):
        most = int(step_peaks(recording).past_per_step.allocated_bytes[past[0]])
        return {**unknown, "allocated_bytes": most, "own_peak_bytes": most}
    if not len(here):
        return unknown
    totals, n_events = timeline(recording), len(recording.trace)
    start = min(int(recording.steps.start_event[here[0]]), n_events)
    end = min(int(recording.steps.end_event[here[0]]), n_events)
    instant = start + int(totals.allocated_bytes[start : end + 1].argmax())
    return {
        **_identity(recording),
        **_levels(totals, instant),
        "time_ns": int(totals.time_ns[instant]),
        "is_within": True,
        "own_peak_bytes": int(totals.allocated_bytes[instant]),
        "own_instant": instant,
    }


def _identity(recording: Recording) -> dict[str, int]:
    return {"rank": recording.process.rank, "device": recording.device.index}


def _levels(totals: Totals, instant: int) -> dict[str, int]:
    return {"instant": instant, **{name: int(getattr(totals, name)[instant]) for name in _LEVELS}}


def _table(rows: Sequence[dict[str, int]], **rest: Any) -> RankBytes:
    return RankBytes.of(**{name: [row[name] for row in rows] for name in RankBytes.DTYPES}, **rest)


ANALYSIS = Analysis(
    "by_rank", "Which rank holds how much, at one moment of all of them, or in the same step?", by_rank
)
