"""Places marks between the events of a trace that is read only later.

A mark carries its time and the allocator's allocation count. The count places it between two allocations
exactly. The time, on the allocator's own clock but truncated to microseconds, places it among the few frees
and segment events between those two.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.trace import Action, Trace

UNCOUNTED = -1


def instants(
    trace: Trace, n_allocations: int, counts: Sequence[int], times_ns: Sequence[int]
) -> NDArray[Any]:
    """Return the instant of *trace* for each mark, in order.

    Counts are compared from the end of the trace, so a trace that lost its beginning works too.

    *n_allocations* is the allocator's count at the end of the trace, *counts* that at each mark, UNCOUNTED if
    it was not read.
    """
    at = np.flatnonzero(trace.action == Action.ALLOC)
    before = np.array(counts, dtype="i8") - (n_allocations - len(at))
    edges = np.concatenate([[-1], at, [len(trace)]])
    # If a count is impossible (the program reset the statistics), the time alone decides.
    known = (np.array(counts, dtype="i8") != UNCOUNTED) & (before <= len(at))
    index = np.clip(before, 0, len(at))
    low = np.where(known, edges[index] + 1, 0)
    high = np.where(known, edges[index + 1], len(trace))
    by_time = np.searchsorted(trace.time_ns, np.array(times_ns, dtype="i8"), side="right")
    return np.maximum.accumulate(np.clip(by_time, low, high)) if len(low) else low
