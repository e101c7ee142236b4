"""Between which two events of the trace did a mark fall, when the events come only later?

A mark brings the time and the number of allocations that the allocator had made by then. The number places
it between two allocations for certain; the time, on the allocator's own clock but cut to microseconds, places
it among the few frees and segments between those two.
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
    """The instant of *trace* for each mark, in order.

    *n_allocations* is the allocator's count at the end of the trace, *counts* what it was at each mark
    (UNCOUNTED where it was not asked). Counted from the end, so a trace that lost its beginning is fine.
    """
    at = np.flatnonzero(trace.action == Action.ALLOC)
    before = np.array(counts, dtype="i8") - (n_allocations - len(at))
    edges = np.concatenate([[-1], at, [len(trace)]])
    # A count that cannot be (the program reset the statistics): the time alone decides.
    known = (np.array(counts, dtype="i8") != UNCOUNTED) & (before <= len(at))
    index = np.clip(before, 0, len(at))
    low = np.where(known, edges[index] + 1, 0)
    high = np.where(known, edges[index + 1], len(trace))
    by_time = np.searchsorted(trace.time_ns, np.array(times_ns, dtype="i8"), side="right")
    return np.maximum.accumulate(np.clip(by_time, low, high)) if len(low) else low
