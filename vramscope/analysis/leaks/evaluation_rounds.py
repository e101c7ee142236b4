"""At which steps does memory grow that grows only now and then, as with every evaluation?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.leaks.growth import LEAST_LEVELS

_LEAST_RISE_BYTES = 16 << 10
"""What capture takes for a rise as well, before it looks for holders."""
_MOST_UNEVEN = 1.5
"""The longest distance of two rises over the shortest: 1.0 for an evaluation every so many steps, a little
more where epochs differ in length. Records of a random level are twice as far apart each."""
LEAST_RISES_TOLD = 3


def rounds(level: NDArray[Any]) -> NDArray[Any]:
    """Steps (indices of *level*) after each rise, and the one before the first; empty where none are regular.

    Between two rises the level stays: nothing else grows.
    """
    change = np.diff(level)
    rises = np.flatnonzero(change >= _LEAST_RISE_BYTES)
    if len(rises) < LEAST_RISES_TOLD:
        return rises[:0]
    gap = np.diff(rises)
    # The first may be of the warm-up.
    if gap.max() > _MOST_UNEVEN * gap.min() and len(rises) > LEAST_RISES_TOLD:
        rises, gap = rises[1:], gap[1:]
    is_even = gap.min() > 1 and gap.max() <= _MOST_UNEVEN * gap.min()
    # Over as soon as it has missed a turn.
    still = len(change) - rises[-1] <= _MOST_UNEVEN * gap.max() + 1
    stays = np.abs(np.delete(change[rises[0] :], rises - rises[0])).max(initial=0) < _LEAST_RISE_BYTES
    if not (is_even and still and stays):
        return rises[:0]
    found: NDArray[Any] = np.r_[rises[0], rises + 1]
    return found


def are_enough(found: NDArray[Any]) -> bool:
    """Whether these are as many levels as an answer takes."""
    return len(found) >= LEAST_LEVELS
