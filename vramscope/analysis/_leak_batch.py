"""Does each step allocate more than the one before, block for block? Then it is given more to do."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis._leak_growth import growth
from vramscope.analysis._leak_levels import Levels
from vramscope.analysis._place import phases_of
from vramscope.model.marks import Phase

_LEAST_SHARE = 0.5


def growing_batch(levels: Levels) -> NDArray[Any] | None:
    """The places whose blocks grow, in the order they come in a step; None where no batch grows.

    The same number of blocks in every step, and most bytes in blocks that become larger.
    """
    at, found = levels.at, levels.found
    if not len(levels.recording.phases):
        return None  # who cannot tell backward from forward cannot tell a batch from a gradient
    n_turns, n_places = len(at) - 1, len(levels.places)
    turn = np.searchsorted(at, found.alloc_event, side="right") - 1
    rows = np.flatnonzero((turn >= 0) & (turn < n_turns))
    volume, number = np.zeros((n_places, n_turns), "i8"), np.zeros((n_places, n_turns), "i8")
    np.add.at(volume, (levels.place[rows], turn[rows]), found.block_size[rows])
    np.add.at(number, (levels.place[rows], turn[rows]), 1)
    total = volume.sum(axis=0)
    if growth(total) is None or growth(number.sum(axis=0)) is not None:
        return None
    busy = np.flatnonzero(volume[:, -1] > 0)
    grows = np.array([growth(volume[i]) is not None and _is_level(number[i]) for i in busy], bool)
    if volume[busy[grows], -1].sum() < _LEAST_SHARE * total[-1]:
        return None
    last = rows[turn[rows] == n_turns - 1]
    last = last[np.isin(levels.place[last], busy[grows])]
    if _is_of_backward(levels, last):
        return None
    _, first = np.unique(levels.place[last], return_index=True)
    places: NDArray[Any] = levels.place[last[np.sort(first)]]
    return places


def _is_level(number: NDArray[Any]) -> bool:
    return growth(number) is None


def _is_of_backward(levels: Levels, rows: NDArray[Any]) -> bool:
    """Work grows from its input on; what only backward allocates more of is a gradient."""
    recording, event = levels.recording, levels.found.alloc_event[rows]
    row = phases_of(recording.phases, len(recording.trace))[event]
    phase = np.append(recording.phases.phase, Phase.OTHER)[row]
    later = np.isin(phase, (Phase.BACKWARD, Phase.OPTIMIZER))
    size = levels.found.block_size[rows]
    return bool(size[later].sum() > 0.9 * size.sum())
