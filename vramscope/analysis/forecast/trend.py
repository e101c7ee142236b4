"""The trend of the peaks of steps, and the steps at which it may reach a limit.

A trend is given only where the peaks rise steadily and still at their end, and have not fallen back before.
The latest step allows for a growth that slows down as much as its own halves do, the earliest for one that
speeds up, and for the highest peak above the trend so far.
"""

import math
from dataclasses import dataclass

import numpy as np

from vramscope.analysis.leaks.growth import LEAST_LEVELS, growth, median_slope
from vramscope.model.table import Array

_MOST_BLOCKS = 48
_LEAST_ROWS_OF_BLOCKS = 4
_WARM_UP = 2
"""Steps in which optimizer states and caches are allocated."""
_ERRORS = 2.0
"""Standard errors on each side of a rate."""
_MOST_FALL = 0.5
"""The largest fall, as a part of what was gained, that is noise; beyond it something was cleared."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How the peaks of steps go on after the last one."""

    bytes_per_step: float
    error_bytes_per_step: float
    level_bytes: float
    """The trend at the last step, to which the spikes add."""
    spike_bytes: float
    """How far the highest peak lies above the trend."""
    usual_spike_bytes: float
    """How far one peak in ten lies above it."""
    low_spike_bytes: float
    """How far nine peaks in ten lie above it, or below it where negative: memory that rises every few steps
    only is below its trend before it rises again."""
    slows: float
    """The least ratio of the rate of the later half to that of the earlier one, at most 1."""
    hastens: float
    """The largest ratio of these rates, at least 1."""
    half_steps: float
    """Steps of one half."""
    is_growing: bool

    def earliest(self, bytes_left: float) -> float:
        """Return the fewest further steps until a peak is *bytes_left* above the trend of the last step."""
        rate = self.bytes_per_step * self.hastens + _ERRORS * self.error_bytes_per_step
        left, bend = max(bytes_left - self.spike_bytes, 0.0), rate * (self.hastens - 1) / self.half_steps
        if rate <= 0:
            return math.inf if left else 0.0
        return (math.sqrt(rate * rate + 2 * bend * left) - rate) / bend if bend > 1e-9 * rate else left / rate

    def likely(self, bytes_left: float) -> float:
        """Return the further steps after which about one peak in ten is higher by *bytes_left*."""
        return max(bytes_left - self.usual_spike_bytes, 0.0) / self.bytes_per_step

    def latest(self, bytes_left: float) -> float:
        """Return the most further steps until the trend has risen by *bytes_left*; inf if it may never."""
        rate = self.bytes_per_step * self.slows - _ERRORS * self.error_bytes_per_step
        if rate <= 0:
            return math.inf
        decay, left = -math.log(self.slows) / self.half_steps, max(bytes_left - self.low_spike_bytes, 0.0)
        if decay * left >= rate:
            return math.inf
        return -math.log1p(-decay * left / rate) / decay if decay > 0 else left / rate


def trend(step: Array, peak_bytes: Array, level_bytes: Array | None = None) -> Trend | None:
    """Return the trend of the peaks of steps, in order; None where there are too few of them.

    Parameters
    ----------
    step, peak_bytes
        Number and peak of each step. The last one may still go on: it counts as a spike only.
    level_bytes
        What each step leaves allocated, which then has the trend, as peaks vary with the batch; None where
        that is unknown, or does not grow.
    """
    x, y = step[_WARM_UP:].astype("f8"), peak_bytes[_WARM_UP:].astype("f8")
    if len(x) <= LEAST_LEVELS:
        return None
    rests = y if level_bytes is None else level_bytes[_WARM_UP:].astype("f8")
    at, level = _blocks(x[:-1], rests[:-1])
    above = y - np.interp(x, at, level)
    fall = float((np.maximum.accumulate(level) - level).max())
    has_fallen = fall > _MOST_FALL * max(float(level[-1] - level[len(level) // 2]), 1.0)
    grows = None if has_fallen else growth(level)
    first = len(level) - max(LEAST_LEVELS, len(level) // 2)
    at, level = at[first:], level[first:]
    rate = median_slope(at, level)
    base = float(np.median(level - rate * at))
    error = _error(at, level - rate * at - base)
    middle = len(at) // 2
    halves = slice(middle + 1), slice(middle, None)
    early, late = (median_slope(at[half], level[half]) for half in halves)
    # A half has half the points and half the length.
    doubt = _ERRORS * error * 2 * math.sqrt(2)
    above = np.where(x >= at[0], y - rate * x - base, above)
    usual = above[x >= at[0]][:-1]
    return Trend(
        bytes_per_step=rate,
        error_bytes_per_step=error,
        level_bytes=base + rate * float(x[-1]),
        spike_bytes=max(float(above.max()), 0.0),
        usual_spike_bytes=max(float(np.quantile(usual, 0.9)), 0.0),
        low_spike_bytes=float(np.quantile(usual, 0.1)),
        slows=_ratio(late - doubt, early + doubt, (1e-9, 1.0)),
        hastens=_ratio(late, early, (1.0, 2.0)) if late > early + doubt else 1.0,
        half_steps=max(float(at[-1] - at[0]) / 2, 1.0),
        is_growing=grows is not None and rate > 0,
    )


def _blocks(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the medians of neighboring steps, which batches of another shape and evaluations leave alone."""
    is_long = len(x) >= _LEAST_ROWS_OF_BLOCKS * 2 * LEAST_LEVELS
    size = max(-(-len(x) // _MOST_BLOCKS), _LEAST_ROWS_OF_BLOCKS) if is_long else 1
    n_blocks = len(x) // size
    begin = len(x) - n_blocks * size
    shape = (n_blocks, size)
    return np.median(x[begin:].reshape(shape), axis=1), np.median(y[begin:].reshape(shape), axis=1)


def _error(x: Array, rest: Array) -> float:
    """Return the standard error of a slope whose points lie *rest* beside it."""
    spread = max(1.4826 * float(np.median(np.abs(rest))), 0.5 * float(rest.std()))
    return spread / (float(x.std()) * math.sqrt(len(x)))


def _ratio(late: float, early: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return low if late <= 0 else high if early <= 0 else min(max(late / early, low), high)
