"""The map of blocks in segments: reserved memory end to end, wrapped into rows of equal bytes.

Area is proportional to bytes everywhere, so a hole is as large as it looks. One row per segment would not
work: a segment of 2 GiB makes a hundred of 20 MiB invisible.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.snapshot import BlockState, Snapshot

from .drawing.theme import base_layout

EMPTY = -1
FIRST_FREE = -10
"""Id of block k, where no tensor uses it: ``FIRST_FREE - k``."""
ROWS = 26
_GAP_PIXELS = 4
"""A segment of at least this many pixels ends with an empty one, to set it off from the next."""


def block_ids(state: Snapshot, rows: NDArray[Any], address: NDArray[Any]) -> NDArray[Any]:
    """Return the id of each block: the allocation in it, else FIRST_FREE − k.

    *rows* and *address* are those of the live allocations in the lifetimes.
    """
    blocks = state.blocks
    ids = FIRST_FREE - np.arange(len(blocks))
    if not len(rows):
        return ids
    order = np.argsort(address, kind="stable")
    at = np.minimum(np.searchsorted(address[order], blocks.address), len(rows) - 1)
    fits = (address[order][at] == blocks.address) & (blocks.state == BlockState.ALLOCATED)
    return np.where(fits, rows[order[at]], ids)


def is_whole(state: Snapshot) -> NDArray[Any]:
    """Return which blocks are in a wholly free segment."""
    busy = np.bincount(state.blocks.segment[state.blocks.in_use], minlength=len(state.segments)) > 0
    return ~busy[state.blocks.segment]


def strip(state: Snapshot, ids: NDArray[Any], width: int, rows: int = ROWS) -> NDArray[Any]:
    """Return the id at each pixel, shape (rows, width), from the lowest address on."""
    total = state.reserved_bytes
    n_pixels = width * rows
    if not total or not len(ids):
        return np.full((rows, width), EMPTY)
    middle = (np.arange(n_pixels) + 0.5) * (total / n_pixels)
    block = np.searchsorted(np.cumsum(state.blocks.size), middle, side="right")
    painted = np.append(ids, EMPTY)[np.minimum(block, len(ids))]
    ends = np.cumsum(state.segments.size)
    is_wide = state.segments.size * n_pixels >= total * _GAP_PIXELS
    last = np.ceil(ends[is_wide] * (n_pixels / total) - 0.5).astype("i8") - 1
    painted[np.clip(last, 0, n_pixels - 1)] = EMPTY
    return painted.reshape(rows, width)


def picture(groups: NDArray[Any], colors: Sequence[str]) -> dict[str, Any]:
    """Return the map as a figure, for where no script paints it.

    *groups* has the group of each pixel, shape (rows, width), below 0 for none.
    """
    n = len(colors)
    # Two stops for each color: an even band of the scale, not a blend.
    scale = [[edge / n, color] for i, color in enumerate(colors) for edge in (i, i + 1)]
    drawn = {
        "type": "heatmap", "z": [[int(v) if v >= 0 else None for v in row] for row in groups.tolist()],
        "zmin": -0.5, "zmax": n - 0.5, "colorscale": scale, "showscale": False, "hoverinfo": "skip",
        "ygap": 1,
    }  # fmt: skip
    axis = {"visible": False, "fixedrange": True}
    return {"data": [drawn], "layout": base_layout(xaxis=axis, yaxis=axis | {"autorange": "reversed"})}
