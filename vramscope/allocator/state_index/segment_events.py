"""Which events of segments still matter, the further the trace goes on?

A segment that came and went is as if it had never been. What is left of any number of events is about as many
as there are segments, and leads to the same segments as all of them: ``layout.segments_after``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.snapshot import Segments
from vramscope.model.trace import Action, Trace


def still_telling(trace: Trace, rows: NDArray[Any], before: Segments) -> NDArray[Any]:
    """Of the *rows* of *trace*, in order, those without which the segments after them would not be known;
    *before*: those before the first row."""
    action = trace.action[rows]
    is_cuda = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_FREE)
    mapped = (action == Action.SEGMENT_MAP) | (action == Action.SEGMENT_UNMAP)
    found = np.concatenate([_last(trace, rows[is_cuda], before), _not_undone(trace, rows[mapped])])
    found.sort()
    return found


def _last(trace: Trace, rows: NDArray[Any], before: Segments) -> NDArray[Any]:
    """By cudaMalloc: the last event at each address, unless it ends what began among the rows."""
    last = rows[::-1][np.unique(trace.address[rows][::-1], return_index=True)[1]]
    is_there = trace.action[last] == Action.SEGMENT_ALLOC
    found: NDArray[Any] = last[is_there | np.isin(trace.address[last], before.address)]
    return found


def _not_undone(trace: Trace, rows: NDArray[Any]) -> NDArray[Any]:
    """Of expandable memory: maps and unmaps of the same range that do not cancel out. The first that begins
    or ends at an address stays anyway: it tells whose memory that is."""
    start, end = trace.address[rows], trace.address[rows] + trace.size[rows].astype("u8")
    stays = np.zeros(len(rows), dtype="?")
    for edge in (start, end):
        stays[np.unique(edge, return_index=True)[1]] = True
    sign = np.where(trace.action[rows] == Action.SEGMENT_MAP, 1, -1)
    order = np.lexsort((sign, end, start))
    order = order[~stays[order]]
    is_new = np.ones(len(order), dtype="?")
    is_new[1:] = (np.diff(start[order]) != 0) | (np.diff(end[order]) != 0)
    group = np.cumsum(is_new) - 1
    net = np.bincount(group, weights=sign[order]).astype("i8")
    # Unmaps come first within a group: |net| of them where these are more, else the last so many maps.
    first = np.flatnonzero(is_new)
    place = np.arange(len(order)) - first[group]
    size = np.diff(np.append(first, len(order)))[group]
    is_left = np.where(net[group] < 0, place < -net[group], place >= size - net[group])
    stays[order[is_left]] = True
    found: NDArray[Any] = rows[stays]
    return found
