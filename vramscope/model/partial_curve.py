"""The curve of allocated memory while a file is still being read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PartialCurve:
    """Change of allocated memory over the events of a file that are read so far, in the order of the file.

    It begins at 0: how much was live before the first event is known only once the file is read. Events that
    are rare of their kind may be missing, so the curve is an estimate without bounds, for a first look.
    """

    n_events: int
    """Events that the curve has."""
    low_bytes: NDArray[Any]
    """Lowest change since the first event in each part of some thousand events, shape (parts,)."""
    high_bytes: NDArray[Any]
    """Highest change since the first event in the same parts, shape (parts,)."""

    def joined(self, n_parts: int) -> "PartialCurve":
        """Return the curve in at most *n_parts* parts, each the lowest and highest of several."""
        n = len(self.low_bytes)
        if n <= n_parts:
            return self
        starts = np.arange(n_parts) * n // n_parts
        return PartialCurve(
            self.n_events,
            np.minimum.reduceat(self.low_bytes, starts),
            np.maximum.reduceat(self.high_bytes, starts),
        )


Watch = Callable[[PartialCurve], None]
"""Receives the curve again and again while a file is read, on the thread that reads it."""
