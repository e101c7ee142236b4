"""Computes the peaks of intervals that reach into the removed part of a recording."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.timeline import Totals
from vramscope.model.past import Past, most_of


def past_peaks(past: Past, totals: Totals, start: NDArray[Any], end: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The maximum of each quantity over the instants *start* to *end*, both included.

    Instants count from the first event ever, and must be those of marks, where the stored peaks begin and
    end; −1 where they are not.
    """
    low, high = (np.clip(at - past.n_events, 0, len(totals)) for at in (start, end + 1))
    return {
        name: np.maximum(before, most_of(getattr(totals, name), low, high))
        for name, before in past.peaks.between(start, end, past.n_events).items()
    }
