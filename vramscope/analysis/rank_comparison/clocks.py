"""Aligns the clocks of hosts by the ends of steps, which ranks that train together reach together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vramscope.model.rank_summary import RankSummary, StepRows
from vramscope.model.recording import Recording
from vramscope.model.table import Array

_FEWEST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all hosts, relative to that of the first rank's host."""

    reference: str = ""
    offset_ns: Mapping[str, int] = field(default_factory=dict)
    """The lead of each host's clock, in nanoseconds."""
    error_ns: Mapping[str, int] = field(default_factory=dict)
    """The error of each offset: 95 % of the steps agree with it to within this."""
    n_steps: int = 0
    """The fewest steps that two hosts have in common."""
    unaligned: tuple[str, ...] = ()
    """Hosts that have too few steps in common with the reference."""


def clocks_of(summaries: Sequence[RankSummary]) -> Clocks:
    """Align the clocks of all hosts.

    There are no offsets where all ranks are on one host.
    """
    by_host: dict[str, list[StepRows]] = {}
    for summary in summaries:
        steps = next((device.steps for device in summary.devices if len(device.steps)), StepRows.of())
        by_host.setdefault(summary.process.host, []).append(steps)
    return _clocks(by_host)


def on_one_clock(recordings: Sequence[Recording]) -> tuple[tuple[Recording, ...], Clocks]:
    """Move the events of all recordings to the clock of the first one's host.

    Recordings of one run, ascending by rank. Only events are moved; those of hosts that cannot be aligned
    stay.
    """
    by_host: dict[str, list[StepRows]] = {}
    for recording in recordings:
        steps = recording.steps
        unknown = np.full(len(steps), -1)
        rows = StepRows.of_steps(steps, unknown, unknown)
        by_host.setdefault(recording.process.host, []).append(rows)
    clocks = _clocks(by_host)
    return tuple(_moved(each, clocks.offset_ns.get(each.process.host, 0)) for each in recordings), clocks


def _moved(recording: Recording, offset_ns: int) -> Recording:
    if not offset_ns or not recording.trace.has_clock:
        return recording
    initial = recording.initial
    return replace(
        recording,
        trace=replace(recording.trace, time_ns=recording.trace.time_ns - offset_ns),
        initial=replace(initial, time_ns=initial.time_ns - offset_ns) if initial.time_ns else initial,
    )


def _clocks(by_host: Mapping[str, Sequence[StepRows]]) -> Clocks:
    if len(by_host) < 2:
        return Clocks(next(iter(by_host), ""))
    size = max(int(steps.n_steps.max(initial=1)) for found in by_host.values() for steps in found)
    ends = {host: _ends(found, size) for host, found in by_host.items()}
    reference = next(iter(ends))
    offset, error, unaligned, common = {reference: 0}, {reference: 0}, [], []
    for host, (steps, times) in ends.items():
        if host == reference:
            continue
        _, here, there = np.intersect1d(steps, ends[reference][0], assume_unique=True, return_indices=True)
        if len(here) < _FEWEST_STEPS:
            unaligned.append(host)
            continue
        apart = times[here] - ends[reference][1][there]
        offset[host] = int(np.median(apart))
        error[host] = int(np.quantile(np.abs(apart - offset[host]), 0.95))
        common.append(len(here))
    return Clocks(reference, offset, error, min(common, default=0), tuple(unaligned))


def _ends(found: Sequence[StepRows], size: int) -> tuple[Array, Array]:
    """The numbers of the steps that the ranks of one host end, and the median time at which they end each."""
    rows = [steps.grouped(size) for steps in found]
    step, end_ns, n_steps = (
        np.concatenate([getattr(each, name) for each in rows]) for name in ("step", "end_ns", "n_steps")
    )
    # The last group of a rank that ended early does not end with a step that all share.
    is_known = (n_steps == size) & (end_ns > 0)
    step, end_ns = step[is_known], end_ns[is_known]
    order = np.lexsort((end_ns, step))
    numbers, first, count = np.unique(step[order], return_index=True, return_counts=True)
    return numbers, end_ns[order[first + count // 2]]
