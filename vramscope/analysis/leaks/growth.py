"""Decides whether a series of levels, one per step, grows steadily and still at its end.

Warm-up, plateaus, sawteeth and levels that only vary do not grow; nor does a series that grows ever more
slowly (a cache of masks up to the longest).

Memory that rises only every few steps, as with every evaluation, is looked at in the steps where it does.
"""

from dataclasses import dataclass

import numpy as np

from vramscope.model.table import Array

LEAST_LEVELS = 7
"""Levels needed for an answer; the first third of a short series is warm-up and does not count."""
_MOST_LEVELS = 160

# Measured on the second half (or the last 7 levels) of every line of tests/leaks that gains bytes: 98 lines
# that leak, in 10 steps, and 38 loops that do not, in 30. Of the latter three have a line that gains: a deque
# that fills up, a batch that grows, and one that varies. The bounds lie between, nearer to what varies, as
# leaks of real programs come with noise (tests/unit/analysis/test_leaks.py).
MOST_DOWN = 0.35
"""Ratio of bytes that a level falls to bytes that it rises. Leaks: 0.0; what only varies: 0.75."""
LEAST_TAU = 0.7
"""Least value of Kendall's tau. Leaks: 1.0; what only varies: 0.24."""
LEAST_LATE_RATE = 0.5
"""Ratio of the second half's rate to the first half's. Leaks: 0.99 and more; a cache that fills up ever more
slowly, as 1 - exp(-step / 60): 0.44 after 200 steps, 0.29 after 300."""
_LEAST_RISES = 4
_LEAST_RISE = 0.2
"""Share of the median rise: a smaller rise is rounding."""
_MOST_PAUSE = 1.5
"""Steps since the last rise, in median distances of two rises: a longer pause means that growth has ended."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a series grows."""

    bytes_per_step: float
    """Growth per step: the Theil-Sen slope, the median over all pairs of levels."""
    confidence: float
    """Kendall's tau of the levels compared, 0 to 1: 1 if no level ever fell."""
    first: int
    """Index of the first level compared."""


def window(n_levels: int) -> int:
    """Return the index of the first level to compare.

    It is the start of the second half; in a short series, the end of the warm-up.
    """
    return max(0, n_levels - max(LEAST_LEVELS, n_levels // 2))


def growth(level: Array) -> Growth | None:
    """Return how *level* grows; None if it does not grow, or is too short for an answer."""
    if len(level) < LEAST_LEVELS:
        return None
    first = window(len(level))
    stride = -(-(len(level) - first) // _MOST_LEVELS)
    tail = level[first:][::-1][::stride][::-1].astype("f8")
    change = np.diff(tail)
    up, down = change[change > 0].sum(), -change[change < 0].sum()
    if up <= 0 or down > MOST_DOWN * up or not _is_steady(tail, change):
        return None
    rows, columns = np.triu_indices(len(tail), 1)
    pair = tail[columns] - tail[rows]
    tau = float(np.sign(pair).sum() / max(np.count_nonzero(pair), 1))
    if tau < LEAST_TAU:
        return None
    slope = float(np.median(pair / (columns - rows))) / stride
    return Growth(slope, tau, first) if slope > 0 else None


def median_slope(x: Array, y: Array) -> float:
    """Return the median slope of all pairs of points."""
    rows, columns = np.triu_indices(len(x), 1)
    return float(np.median((y[columns] - y[rows]) / (x[columns] - x[rows])))


def _is_steady(tail: Array, change: Array) -> bool:
    """Return whether the level rises repeatedly, up to its end, and not much more slowly late than early."""
    rises = np.flatnonzero(change > _LEAST_RISE * np.median(change[change > 0]))
    if len(rises) < _LEAST_RISES:
        return False
    gap = float(np.median(np.diff(rises)))
    still = len(change) - 1 - int(rises[-1]) < max(2.0, _MOST_PAUSE * gap)
    middle = len(tail) // 2
    early, late = tail[middle] - tail[0], tail[-1] - tail[middle]
    return bool(still and late > LEAST_LATE_RATE * early * (len(tail) - 1 - middle) / middle)


_LEAST_RISE_BYTES = 16 << 10
"""Least rise; the recorder uses the same before it looks for holders."""
_MOST_UNEVEN = 1.5
"""Ratio of the longest to the shortest distance of two rises: 1.0 for an evaluation every n steps, a little
more if epochs differ in length. New maxima of a random level are twice as far apart each time."""
LEAST_RISES = 3


def rounds(level: Array) -> Array:
    """Return the steps (indices of *level*) after each rise, and the step before the first one.

    Empty if the rises are irregular, or if anything grows between them.
    """
    change = np.diff(level)
    rises = np.flatnonzero(change >= _LEAST_RISE_BYTES)
    if len(rises) < LEAST_RISES:
        return rises[:0]
    gap = np.diff(rises)
    # The first rise may belong to the warm-up.
    if gap.max() > _MOST_UNEVEN * gap.min() and len(rises) > LEAST_RISES:
        rises, gap = rises[1:], gap[1:]
    is_even = gap.min() > 1 and gap.max() <= _MOST_UNEVEN * gap.min()
    # The growth has ended as soon as one rise is missing.
    still = len(change) - rises[-1] <= _MOST_UNEVEN * gap.max() + 1
    stays = np.abs(np.delete(change[rises[0] :], rises - rises[0])).max(initial=0) < _LEAST_RISE_BYTES
    if not (is_even and still and stays):
        return rises[:0]
    return np.r_[rises[0], rises + 1]


def are_enough(found: Array) -> bool:
    """Return whether these are enough levels for an answer."""
    return len(found) >= LEAST_LEVELS
