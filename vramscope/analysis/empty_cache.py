"""Counts repeated calls of ``empty_cache()`` and the driver calls that they cost."""

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.churn import GAINS, LOSSES
from vramscope.analysis.folding import heaviest_line, passes_through
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.table import sums_of

_LEAST_CALLS = 3
"""Fewest calls that count as a loop: one before and one after an evaluation do not."""


def empty_cache(recording: Recording) -> list[Finding]:
    """Find repeated calls of ``empty_cache()`` after which the memory is allocated again.

    Calls are known by the stacks of the releases; one that finds nothing to release leaves no event.
    """
    trace, stacks = recording.trace, recording.stacks
    # torch.cuda.graph calls it as well, before each capture: that call is none of the program's.
    of_capture = passes_through(stacks, "__enter__", "torch/cuda/graphs.py")
    of_call = (passes_through(stacks, "empty_cache") & ~of_capture)[trace.stack_id]
    releases = np.flatnonzero(of_call & np.isin(trace.action, LOSSES))
    if not len(releases):
        return []
    # One call releases segment after segment, with nothing in between.
    last = np.append(np.diff(releases) > 1, True)
    call = np.append(0, np.cumsum(last)[:-1])
    released = np.bincount(call, trace.size[releases]).astype("i8")
    gains = np.flatnonzero(np.isin(trace.action, GAINS))
    after = np.searchsorted(releases[last], gains) - 1
    gains, after = gains[after >= 0], after[after >= 0]
    total = np.cumsum(trace.size[gains])
    begins = np.searchsorted(after, np.arange(len(released)))
    before = np.append(0, total)[begins]
    sofar = total - before[after]
    is_regained = sofar - trace.size[gains] < released[after]
    regained = sums_of(after, trace.size[gains], len(released))
    n_calls, n_regains = len(released), int(np.count_nonzero(is_regained))
    if n_calls < _LEAST_CALLS or not n_regains:
        return []
    evidence = {
        "calls": n_calls,
        "released_bytes": int(released.sum()),
        "driver_releases": len(releases),
        "driver_allocations": n_regains,
    }
    frame = heaviest_line(stacks, trace.stack_id[releases], trace.size[releases])
    return [worded(FindingKind.EMPTY_CACHE, int(np.minimum(regained, released).sum()), frame, evidence)]


ANALYSIS = asking("Is empty_cache() called again and again, and what does it cost?", empty_cache, list)
