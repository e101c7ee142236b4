"""Measures whether pinned host memory grows while the program trains."""

from dataclasses import replace

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording

_LEAST_BYTES = 64 << 20
_LEAST_RISES = 5


def pinned_growth(recording: Recording) -> list[Finding]:
    """Find pinned memory that only ever rises, from the end of the first step to that of the last.

    Compared is what is in use where torch counts it rightly (from 2.13), at most what torch holds: its cache
    keeps what is handed back for the next request, so that without a leak what it holds comes to rest.
    """
    counters, steps = recording.counters, recording.steps
    if not len(steps) or not recording.trace.has_clock:
        return []
    ends = recording.trace.time_ns[np.minimum(steps.end_event[[0, -1]], len(recording.trace) - 1)]
    is_within = (counters.time_ns >= ends[0]) & (counters.time_ns <= ends[1])
    rows = counters.rows((counters.host_pinned_bytes >= 0) & is_within)
    in_use, held = rows.host_pinned_active_bytes, rows.host_pinned_bytes
    level = np.where(in_use < 0, held, np.minimum(in_use, held))
    if len(level) < 2:
        return []
    change = np.diff(level)
    # A ring of buffers fills up and then lies still.
    is_done = (change < 0).any() or not (change[-max(len(change) // 4, 1) :] > 0).any()
    grown = int(level[-1] - level[0])
    if is_done or np.count_nonzero(change > 0) < _LEAST_RISES or grown < _LEAST_BYTES:
        return []
    claimed = worded(FindingKind.PINNED_GROWTH, grown, steps=len(steps), held_bytes=int(held[-1]))
    return [replace(claimed, bytes_per_step=grown // len(steps))]


ANALYSIS = asking("Does pinned host memory grow from step to step?", pinned_growth, list)
