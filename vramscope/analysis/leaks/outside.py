"""Measures growth of memory that no tensor holds: the allocator's cache, private pools, outside of torch."""

from typing import NamedTuple

import numpy as np

from vramscope.analysis.leaks.growth import growth
from vramscope.analysis.private_pools import of_pools, of_private, private_pools, used_pools
from vramscope.analysis.timeline import Totals, timeline
from vramscope.model.recording import Recording
from vramscope.model.table import Array

_LEAST_SAMPLES = 20


def cache_growth(recording: Recording, at: Array, stride: int, least: int) -> float:
    """Return the growth of reserved beyond active memory, in bytes per step; 0 if it does not grow.

    A cache grows in leaps, a segment at a time. The level is therefore compared at the same point of every
    step, not at the peak.
    """
    totals, at = _default_pool(recording, at)
    # While reserved memory stays the same, freed memory goes into the cache, as it should.
    cache = (totals.reserved_bytes - totals.active_bytes)[at]
    # A segment that is made and then filled leaves the cache as large as it was before.
    levels = (totals.reserved_bytes[at], cache, np.maximum.accumulate(cache))
    return min(_rate(level, stride, least) for level in levels)


def cache_growth_beyond_peaks(recording: Recording, at: Array, stride: int, least: int) -> float:
    """Return the growth of reserved memory beyond the peaks of a growing batch, in bytes per step.

    The cache of a batch that grows follows its peaks. It is fragmented only if it grows beyond the highest
    peak so far, and faster than that peak: what rounding and splitting add to a peak grows with it, but less
    than it. 0 if it does not.
    """
    totals, at = _default_pool(recording, at)
    peak = np.maximum.accumulate(totals.active_bytes[: at[-1] + 1])[at]
    beyond = _rate(totals.reserved_bytes[at] - peak, stride, least)
    rise = growth(peak)
    return beyond if rise is None or beyond > rise.bytes_per_step / stride else 0.0


class PoolGrowth(NamedTuple):
    """How private pools grow beyond their tensors."""

    bytes_per_step: float = 0.0
    n_pools: int = 0
    """The pools at the last step, if there are ever more of them."""


def private_pool_growth(recording: Recording, at: Array, stride: int, least: int) -> PoolGrowth:
    """Return the growth of what private pools reserve beyond their tensors."""
    private, index = of_private(recording)
    if private is None:
        return PoolGrowth()
    totals = timeline(private)
    kept = totals.reserved_bytes - totals.active_bytes
    rate = min(_rate(level[index[at]], stride, least) for level in (totals.reserved_bytes, kept))
    if not rate:
        return PoolGrowth()
    pools = private_pools(recording)
    number = np.array([sum(pool.levels.at(i)[1] > 0 for pool in pools) for i in at.tolist()])
    return PoolGrowth(rate, 0 if growth(number) is None else int(number[-1]))


def _default_pool(recording: Recording, at: Array) -> tuple[Totals, Array]:
    """Return the totals without private pools, whose memory no other request gets, and *at* in them."""
    pools = used_pools(recording)
    if not (pools > 0).any():
        return timeline(recording), at
    default, index = of_pools(recording, pools[pools <= 0])
    return timeline(default), index[at]


def outside_growth(recording: Recording, at: Array, stride: int, least: int) -> float:
    """Return the growth of the process outside of torch, in bytes per step, from the driver's counters.

    0 if it does not grow, or the driver was not asked.
    """
    samples = recording.counters
    known = np.flatnonzero((samples.process_used_bytes > 0) & (samples.reserved_bytes >= 0))
    if not len(known) or not recording.trace.has_clock:
        return 0.0
    outside = samples.process_used_bytes[known] - samples.reserved_bytes[known]
    moment = recording.trace.time_ns[np.clip(at - 1, 0, len(recording.trace) - 1)]
    # The first sample after each iteration: torch's counter and the driver's are of one moment.
    index = np.searchsorted(samples.time_ns[known], moment)
    seen = np.unique(index[index < len(known)])
    # Short steps have fewer samples than steps; in the first second libraries are still being loaded.
    if len(seen) < min(len(at) / 4, _LEAST_SAMPLES):
        return 0.0
    return _rate(outside[seen], stride * len(at) / len(seen), least)


def _rate(level: Array, steps_apart: float, least: int) -> float:
    found = growth(level)
    rate = 0.0 if found is None else found.bytes_per_step / steps_apart
    return rate if rate >= least else 0.0
