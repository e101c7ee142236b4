"""Lists the allocations that were live at one instant."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.timeline import instant_of
from vramscope.model.recording import Recording


def live_set(recording: Recording, instant: int | None = None) -> NDArray[Any]:
    """Rows of ``lifetimes`` that were live at one instant, largest block first.

    Parameters
    ----------
    instant
        Number of events before the moment; None means the peak of allocated bytes.

    Returns
    -------
    NDArray[Any]
        Indices into the rows of ``recording.lifetimes()``, int64.

    Raises
    ------
    UsageError
        If the instant lies outside of the recording.
    """
    return live_rows(lifetimes(recording), instant_of(recording, instant))


def live_rows(allocations: Allocations, instant: int) -> NDArray[Any]:
    """The same rows from lifetimes that are known already."""
    rows = allocations.rows_at(instant)
    return rows[np.argsort(-allocations.block_size[rows], kind="stable")]


ANALYSIS = Analysis("live_set", "What was allocated at one instant?", live_set)
