"""The most that was in use in intervals that reach before the trace: of events that a size cap took."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.timeline import Totals
from vramscope.model.past import Past, StretchPeaks

UNKNOWN = -1


def past_peaks(past: Past, totals: Totals, start: NDArray[Any], end: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The maximum of each quantity over the instants *start* to *end*, both included, counted from the first
    event ever. They begin and end at marks, as the stretches do of which it is known; −1 where they do not.
    """
    ends = np.append(past.peaks.event[1:], past.n_events)
    first = np.searchsorted(past.peaks.event, start)
    behind = np.searchsorted(ends, end, side="right")
    low, high = (np.clip(at - past.n_events, 0, len(totals)) for at in (start, end + 1))
    names = [name for name in StretchPeaks.DTYPES if name != "event"]
    return {
        name: np.maximum(
            _most(getattr(past.peaks, name), first, behind), _most(getattr(totals, name), low, high)
        )
        for name in names
    }


def _most(values: NDArray[Any], first: NDArray[Any], behind: NDArray[Any]) -> NDArray[Any]:
    """The greatest of the rows [first, behind) for each pair; UNKNOWN where there is none."""
    if not len(first):
        return values[:0]
    # One row more, so that a range may end behind the last.
    pairs = np.stack([first, np.maximum(first, behind)], axis=1).ravel()
    most = np.maximum.reduceat(np.append(values, UNKNOWN), pairs)[::2]
    return np.where(behind > first, most, UNKNOWN)
