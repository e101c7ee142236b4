"""Counts repeated calls of ``empty_cache()`` and the driver calls that they cost."""

from dataclasses import dataclass

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.churn import GAINS, LOSSES
from vramscope.analysis.folding import heaviest_line
from vramscope.analysis.stack_functions import passes_through
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame

_LEAST_CALLS = 3
"""Fewest calls that count as a loop: one before and one after an evaluation do not."""


@dataclass(frozen=True, slots=True)
class EmptyCache:
    """Calls that returned memory to the driver, and what was allocated from it again."""

    n_calls: int = 0
    """Calls that released at least one segment; a call that finds nothing to release leaves no event."""
    released_bytes: int = 0
    """Bytes that all of them returned to the driver."""
    n_releases: int = 0
    """Driver calls that returned them."""
    regained_bytes: int = 0
    """Bytes allocated from the driver again before the next call, up to what each call had released."""
    n_regains: int = 0
    """Driver calls (cudaMalloc, or mappings) that allocated them."""
    frame: Frame | None = None
    """The line that released most; None if no stack was recorded."""


def empty_cache(recording: Recording) -> EmptyCache:
    """Count calls of ``empty_cache()``, found by the stacks of the releases.

    A recording without stacks has none.
    """
    trace = recording.trace
    stacks = recording.stacks
    # torch.cuda.graph calls it as well, before each capture: that call is none of the program's.
    of_capture = passes_through(stacks, "__enter__", "torch/cuda/graphs.py")
    of_call = (passes_through(stacks, "empty_cache") & ~of_capture)[trace.stack_id]
    releases = np.flatnonzero(of_call & np.isin(trace.action, LOSSES))
    if not len(releases):
        return EmptyCache()
    # One call releases segment after segment, with nothing in between.
    last = np.append(np.diff(releases) > 1, True)
    call = np.append(0, np.cumsum(last)[:-1])
    released = np.zeros(int(call[-1]) + 1, "i8")
    np.add.at(released, call, trace.size[releases])
    gains = np.flatnonzero(np.isin(trace.action, GAINS))
    after = np.searchsorted(releases[last], gains) - 1
    gains, after = gains[after >= 0], after[after >= 0]
    total = np.cumsum(trace.size[gains])
    begins = np.searchsorted(after, np.arange(len(released)))
    before = np.append(0, total)[begins]
    sofar = total - before[after]
    is_regained = sofar - trace.size[gains] < released[after]
    regained = np.zeros(len(released), "i8")
    np.add.at(regained, after, trace.size[gains])
    return EmptyCache(
        n_calls=len(released),
        released_bytes=int(released.sum()),
        n_releases=len(releases),
        regained_bytes=int(np.minimum(regained, released).sum()),
        n_regains=int(np.count_nonzero(is_regained)),
        frame=heaviest_line(stacks, trace.stack_id[releases], trace.size[releases]),
    )


def findings(found: EmptyCache) -> list[Finding]:
    """Return a finding if it is called repeatedly and the memory is allocated again."""
    if found.n_calls < _LEAST_CALLS or not found.n_regains:
        return []
    evidence = {
        "calls": found.n_calls,
        "released_bytes": found.released_bytes,
        "driver_releases": found.n_releases,
        "driver_allocations": found.n_regains,
    }
    return [worded(FindingKind.EMPTY_CACHE, found.regained_bytes, found.frame, evidence)]


ANALYSIS = Analysis(
    "empty_cache", "Is empty_cache() called again and again, and what does it cost?", empty_cache, findings
)
