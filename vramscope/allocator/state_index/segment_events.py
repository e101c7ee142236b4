"""Selects the segment events that still determine the current segments.

A segment that appeared and was freed leaves no effect. The relevant part of any number of events is about as
long as the list of segments, and leads to the same segments as all events: ``layout.segments_after``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.snapshot import Segments
from vramscope.model.trace import Action, Trace


def relevant_segment_events(trace: Trace, rows: NDArray[Any], before: Segments) -> NDArray[Any]:
    """The segment events of *rows* that still determine the segments after them.

    *before* are the segments before the first of *rows*, which are in order.
    """
    action = trace.action[rows]
    is_cuda = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_FREE)
    mapped = (action == Action.SEGMENT_MAP) | (action == Action.SEGMENT_UNMAP)
    found = np.concatenate([_last(trace, rows[is_cuda], before), _not_undone(trace, rows[mapped])])
    found.sort()
    return found


def _last(trace: Trace, rows: NDArray[Any], before: Segments) -> NDArray[Any]:
    """Events of cudaMalloc segments: the last one at each address, unless it frees a segment that appeared
    among the rows.
    """
    last = rows[::-1][np.unique(trace.address[rows][::-1], return_index=True)[1]]
    is_there = trace.action[last] == Action.SEGMENT_ALLOC
    return last[is_there | np.isin(trace.address[last], before.address)]


def _not_undone(trace: Trace, rows: NDArray[Any]) -> NDArray[Any]:
    """Events of expandable memory: maps and unmaps of the same range that do not cancel out.

    The first event that begins or ends at an address always stays: it gives the stream and pool of that
    memory.
    """
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
    # Unmaps come first within a group: |net| of them stay where they are more, else the last maps.
    first = np.flatnonzero(is_new)
    place = np.arange(len(order)) - first[group]
    size = np.diff(np.append(first, len(order)))[group]
    is_left = np.where(net[group] < 0, place < -net[group], place >= size - net[group])
    stays[order[is_left]] = True
    return rows[stays]
