"""Measures whether pinned host memory grows while the program trains."""

from dataclasses import replace

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording

_LEAST_BYTES = 64 << 20
_LEAST_RISES = 5


def pinned_growth(recording: Recording) -> list[Finding]:
    """Find pinned memory in use that only ever rises, from the end of the first step to that of the last."""
    counters, steps = recording.counters, recording.steps
    if not len(steps) or not recording.trace.has_clock:
        return []
    ends = recording.trace.time_ns[np.minimum(steps.end_event[[0, -1]], len(recording.trace) - 1)]
    is_within = (counters.time_ns >= ends[0]) & (counters.time_ns <= ends[1])
    rows = counters.rows((counters.host_pinned_active_bytes >= 0) & is_within)
    level = rows.host_pinned_active_bytes
    if len(level) < 2:
        return []
    change = np.diff(level)
    # A ring of buffers fills up and then lies still.
    is_done = (change < 0).any() or not (change[-max(len(change) // 4, 1) :] > 0).any()
    grown = int(level[-1] - level[0])
    if is_done or np.count_nonzero(change > 0) < _LEAST_RISES or grown < _LEAST_BYTES:
        return []
    held = int(rows.host_pinned_bytes[-1])
    claimed = worded(FindingKind.PINNED_GROWTH, grown, steps=len(steps), held_bytes=held)
    return [replace(claimed, bytes_per_step=grown // len(steps))]


ANALYSIS = Analysis("pinned_growth", "Does pinned host memory grow from step to step?", pinned_growth, list)
