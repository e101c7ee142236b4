"""Finds the steps at which memory grows if it grows only every few steps, as with every evaluation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.leaks.growth import LEAST_LEVELS

_LEAST_RISE_BYTES = 16 << 10
"""Least rise; the recorder uses the same before it looks for holders."""
_MOST_UNEVEN = 1.5
"""Ratio of the longest to the shortest distance of two rises: 1.0 for an evaluation every n steps, a little
more if epochs differ in length. New maxima of a random level are twice as far apart each time."""
LEAST_RISES = 3


def rounds(level: NDArray[Any]) -> NDArray[Any]:
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


def are_enough(found: NDArray[Any]) -> bool:
    """Return whether these are enough levels for an answer."""
    return len(found) >= LEAST_LEVELS
