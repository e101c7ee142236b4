"""Compares the memory of ranks at the moment when all of them together held most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import asking
from vramscope.analysis.timeline import Totals, timeline
from vramscope.errors import UsageError
from vramscope.model.codes import QUANTITIES
from vramscope.model.recording import Recording
from vramscope.model.table import Bool, Int64, Table


@dataclass(frozen=True, slots=True)
class RankBytes(Table):
    """One row per recording (a rank on a device), in the given order.

    ``allocated_bytes`` sums up to what all ranks held at that moment. Own peaks are at moments of their own,
    so their sum means nothing.
    """

    rank: Int64
    device: Int64
    instant: Int64
    """Instant of this recording, for use with every other analysis."""
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
    """The most allocated bytes of this row, in all retained events."""
    own_instant: Int64
    moment_ns: int = 0
    """The common moment of all rows, in nanoseconds, where they have a clock."""

    @property
    def total_bytes(self) -> int:
        """Allocated bytes of all rows."""
        return int(self.allocated_bytes.sum())

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``rank 0``; with the device where a rank has several."""
        several = len(set(self.rank.tolist())) < len(self)
        rows = zip(self.rank.tolist(), self.device.tolist(), strict=True)
        return tuple(f"rank {rank}, device {device}" if several else f"rank {rank}" for rank, device in rows)


def by_rank(recording: Recording, others: Sequence[Recording] = ()) -> RankBytes:
    """Memory of each rank at the first moment when all ranks together held most.

    Events of the same nanosecond are applied in the order of the recordings. Clocks of several hosts are not
    adjusted (``rank_comparison.clocks.on_one_clock`` does that).

    Parameters
    ----------
    others
        The other recordings of its run.

    Raises
    ------
    UsageError
        If a clock is missing.
    """
    if others:
        _check_clocks((recording, *others))
    timelines = [
        _RankTimeline(each, timeline(each), np.maximum.accumulate(each.trace.time_ns))
        for each in (recording, *others)
    ]
    instants, moment_ns = _fullest(timelines)
    spans = _spans(timelines)
    rows = [
        _row(member, instant, spans[member.recording.process.rank], moment_ns)
        for member, instant in zip(timelines, instants, strict=True)
    ]
    columns = {name: [row[name] for row in rows] for name in RankBytes.DTYPES}
    return RankBytes.of(**columns, moment_ns=moment_ns)


class _RankTimeline(NamedTuple):
    recording: Recording
    totals: Totals
    times: NDArray[np.int64]
    """Times of the events, made non-decreasing."""


def _check_clocks(recordings: Sequence[Recording]) -> None:
    for recording in recordings:
        if len(recording.trace) and not recording.trace.has_clock:
            name = f"rank {recording.process.rank}, device {recording.device.index}"
            raise UsageError(f"by_rank: {name} has no clock (torch before 2.2)")


def _fullest(timelines: Sequence[_RankTimeline]) -> tuple[list[int], int]:
    """The instant of each recording at which all together first held most, and the time of that moment."""
    times = np.concatenate([member.times for member in timelines])
    owner = np.repeat(np.arange(len(timelines)), [len(member.times) for member in timelines])
    change = np.concatenate([np.diff(member.totals.allocated_bytes) for member in timelines])
    order = np.argsort(times, kind="stable")
    total = np.append(0, np.cumsum(change[order]))
    happened = order[: int(total.argmax())]
    instants = np.bincount(owner[happened], minlength=len(timelines)).tolist()
    began_ns = min(int(member.totals.time_ns[0]) for member in timelines)
    return instants, int(times[happened[-1]]) if len(happened) else began_ns


def _spans(timelines: Sequence[_RankTimeline]) -> dict[int, tuple[int, int]]:
    """The first and last nanosecond of any device, by rank."""
    found: dict[int, tuple[int, int]] = {}
    for member in timelines:
        rank, times = member.recording.process.rank, member.totals.time_ns
        first, last = found.get(rank, (int(times[0]), int(times.max())))
        found[rank] = min(first, int(times[0])), max(last, int(times.max()))
    return found


def _row(member: _RankTimeline, instant: int, span: tuple[int, int], moment_ns: int) -> dict[str, int]:
    totals, own_instant = member.totals, int(member.totals.allocated_bytes.argmax())
    return {
        "rank": member.recording.process.rank,
        "device": member.recording.device.index,
        "instant": instant,
        "time_ns": int(member.times[instant - 1]) if instant else int(totals.time_ns[0]),
        "is_within": span[0] <= moment_ns <= span[1],
        **{f"{name}_bytes": int(getattr(totals, f"{name}_bytes")[instant]) for name in QUANTITIES},
        "own_peak_bytes": int(totals.allocated_bytes[own_instant]),
        "own_instant": own_instant,
    }


ANALYSIS = asking("Which rank holds how much when all together hold most?", by_rank)
