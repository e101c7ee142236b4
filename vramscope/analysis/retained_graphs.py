"""Measures what ``backward(retain_graph=True)`` keeps until the next step."""

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories import assign
from vramscope.analysis.folding import heaviest_line
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import BackwardKeeps, Category, MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.units import format_count

_LEAST_SHARE = 0.5
"""Share of the steps that must ask for it."""
_LEAST_BYTES = 1 << 20


def retained_graphs(recording: Recording) -> list[Finding]:
    """Find activations that are allocated when a step ends, as its last backward retains its graph.

    Outputs that the program itself holds count too; they stay allocated in any case.
    """
    asked, steps = recording.marks.of_phase(MarkKind.PHASE_BEGIN, Phase.BACKWARD), recording.steps
    keeps = asked.value % BackwardKeeps.RETURNS == BackwardKeeps.ITS_GRAPH
    # The last backward of a step decides: it is the one that could free the graph.
    last_of = dict(zip(steps_of(steps, asked.event).tolist(), keeps.tolist(), strict=True))
    retaining = [step for step, kept in last_of.items() if step >= 0 and kept and step < len(steps) - 1]
    if not retaining or len(retaining) < _LEAST_SHARE * (len(steps) - 1):
        return []
    found = lifetimes(recording)
    is_activation = assign(recording, found).category == Category.ACTIVATION
    kept = []
    for step in retaining:
        start, end = int(steps.start_event[step]), int(steps.end_event[step])
        mine = is_activation & (found.alloc_event >= start) & found.allocated_at(end)
        kept.append(np.flatnonzero(mine))
    n_bytes = int(np.median([int(found.block_size[rows].sum()) for rows in kept]))
    if n_bytes < _LEAST_BYTES:
        return []
    frame = heaviest_line(recording.stacks, found.stack_id[kept[-1]], found.block_size[kept[-1]])
    evidence = {"steps": len(retaining), "kept_bytes": n_bytes}
    of_steps = format_count(len(retaining), "step")
    return [worded(FindingKind.RETAINED_GRAPH, n_bytes, frame, evidence, of_steps=of_steps)]


ANALYSIS = asking("What does backward(retain_graph=True) keep until the next step?", retained_graphs, list)
