"""What was allocated at one instant?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.timeline import instant_of
from vramscope.model.recording import Recording


def live_set(recording: Recording, instant: int | None = None) -> NDArray[Any]:
    """Rows of ``lifetimes`` that served tensors at *instant* (the peak where None), largest block first."""
    return live_rows(lifetimes(recording), instant_of(recording, instant))


def live_rows(allocations: Allocations, instant: int) -> NDArray[Any]:
    """The same for somebody who has the lifetimes already."""
    rows = np.flatnonzero(allocations.allocated_at(instant))
    return rows[np.argsort(-allocations.block_size[rows], kind="stable")]


ANALYSIS = Analysis("live_set", "What was allocated at one instant?", live_set)
