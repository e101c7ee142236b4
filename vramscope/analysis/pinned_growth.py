"""Measures whether pinned host memory grows while the program trains."""

from dataclasses import dataclass, replace

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording

_LEAST_BYTES = 64 << 20
_LEAST_RISES = 5


@dataclass(frozen=True, slots=True)
class PinnedGrowth:
    """Pinned host memory in use, from the samples after the first step."""

    first_bytes: int = 0
    last_bytes: int = 0
    held_bytes: int = 0
    """What torch's host allocator holds at the end, cached blocks included."""
    n_rises: int = 0
    """Samples above those before them; 0 where the level ever fell, or rises no more at the end."""
    n_steps: int = 0


def pinned_growth(recording: Recording) -> PinnedGrowth:
    """Compare the samples of pinned memory in use, from the end of the first step to that of the last."""
    counters, steps = recording.counters, recording.steps
    if not len(steps) or not recording.trace.has_clock:
        return PinnedGrowth()
    ends = recording.trace.time_ns[np.minimum(steps.end_event[[0, -1]], len(recording.trace) - 1)]
    is_within = (counters.time_ns >= ends[0]) & (counters.time_ns <= ends[1])
    rows = counters.rows((counters.host_pinned_active_bytes >= 0) & is_within)
    level = rows.host_pinned_active_bytes
    if len(level) < 2:
        return PinnedGrowth()
    change = np.diff(level)
    # A ring of buffers fills up and then lies still.
    is_done = (change < 0).any() or not (change[-max(len(change) // 4, 1) :] > 0).any()
    n_rises = 0 if is_done else int(np.count_nonzero(change > 0))
    held = int(rows.host_pinned_bytes[-1])
    return PinnedGrowth(int(level[0]), int(level[-1]), held, n_rises, len(steps))


def findings(found: PinnedGrowth) -> list[Finding]:
    """Return a finding where it only ever rises, again and again."""
    grown = found.last_bytes - found.first_bytes
    if found.n_rises < _LEAST_RISES or grown < _LEAST_BYTES:
        return []
    claimed = worded(FindingKind.PINNED_GROWTH, grown, steps=found.n_steps, held_bytes=found.held_bytes)
    return [replace(claimed, bytes_per_step=grown // max(found.n_steps, 1))]


ANALYSIS = Analysis(
    "pinned_growth", "Does pinned host memory grow from step to step?", pinned_growth, findings
)
