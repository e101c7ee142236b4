"""Finds which lines' bytes grow linearly with the size of a step's input, and which quadratically.

Requested bytes decide it exactly: between two steps that make the same calls, a call whose input doubles
requests twice as much, and a matrix of attention scores four times as much.
"""

from typing import Any

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.folding import fold
from vramscope.analysis.leaks import leaks
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.model.table import Array
from vramscope.steps.innermost import phases_of

_LEAST_SIZES = 3
"""Fewest different sizes: a straight line passes through any two."""
_LEAST_RATIO = 1.2
"""Ratio of the largest to the smallest size: below it a square and a line are too close to tell apart."""
_TOLERANCE = 0.01
_KINDS = ((FindingKind.QUADRATIC_MEMORY, 2, 0.05), (FindingKind.BATCH_DOMINATES, 1, 0.5))
"""Each kind of finding, the power of its growth, and the least share of the peak that grows so."""
_OF_SCORES = "If it is attention: torch.nn.functional.scaled_dot_product_attention does not keep its scores"
_OF_MASKS = (
    "No gradient passes through them. If it is a mask of attention: one of shape (batch, 1, 1, length) "
    "broadcasts over heads and queries, and is_causal=True needs none"
)
_MOST_STEPS = 64


def scaling(recording: Recording) -> list[Finding]:
    """Find lines whose bytes grow with the square of a step's input, and a peak that mostly grows with it.

    Only steps that make the same calls as most steps count. An answer needs three different sizes.
    """
    found = lifetimes(recording)
    calls = _calls(recording, found)
    if calls is None:
        return []
    rows, steps = calls
    power, ratio = _powers(found.size[rows])
    n_sizes, times = len(np.unique(np.round(ratio, 2))), float(ratio.max())
    if n_sizes < _LEAST_SIZES or times < _LEAST_RATIO:
        return []
    largest = int(ratio.argmax())
    step = int(steps[largest])
    start, end = int(recording.steps.start_event[step]), int(recording.steps.end_event[step])
    allocated = timeline(recording).allocated_bytes[start : end + 1]
    at = int(start + allocated.argmax())
    mine, is_live = rows[:, largest], found.allocated_at(at)
    for leak in leaks(recording).leaks:  # which grows whatever a step is given
        is_live &= ~np.isin(found.stack_id, found.stack_id[leak.rows])
    sizes: dict[str, Any] = {"sizes": n_sizes, "ratio": round(times, 3), "peak_bytes": int(allocated.max())}
    result = []
    for kind, wanted, least in _KINDS[: 1 + (Phase.BACKWARD in recording.phases.phase)]:  # where it trains
        live = found.rows(mine[(power == wanted) & is_live[mine]])
        n_bytes = int(live.block_size.sum())
        if not sizes["peak_bytes"] or n_bytes < least * sizes["peak_bytes"]:
            continue
        lines = _lines(recording, live)
        shown = [{"file": at and at.file, "line": at and at.line, "bytes": n} for at, n in lines[:5]]
        # Backward makes blocks that grow so, too, as for scores; a mask has no gradient.
        row = phases_of(recording.phases, len(recording.trace))[found.alloc_event[mine[power == wanted]]]
        has_backward = bool((np.append(recording.phases.phase, Phase.OTHER)[row] == Phase.BACKWARD).any())
        words = {
            "share": f"{100 * n_bytes / sizes['peak_bytes']:.0f}",
            "times": f"{times:.2g}",
            "remedy": _OF_SCORES if has_backward else _OF_MASKS,
        }
        frame = lines[0][0] if lines else None
        result.append(worded(kind, n_bytes, frame, sizes | {"lines": shown}, **words))
    return result


def _calls(recording: Recording, found: Allocations) -> tuple[Array, Array] | None:
    """Return the allocations of the steps that make the same calls equally often; None for too few steps.

    They are rows of ``lifetimes``, shape ``(n_calls, n_steps)``, and the index of each step. A call is one
    occurrence of a stack in a step.
    """
    step = steps_of(recording.steps, np.maximum(found.alloc_event, 0))
    first = max(len(recording.steps) - _MOST_STEPS, 0)
    rows = np.flatnonzero((step >= first) & (found.alloc_event >= 0))
    n_steps = len(recording.steps) - first
    if n_steps < _LEAST_SIZES or not len(rows):
        return None
    order = np.lexsort((found.alloc_event[rows], found.stack_id[rows], step[rows]))
    rows = rows[order]
    parts = np.split(rows, np.searchsorted(step[rows], np.arange(first + 1, first + n_steps)))
    made = [tuple(found.stack_id[part].tolist()) for part in parts]
    usual = max(set(made), key=made.count)
    same = [at for at, each in enumerate(made) if each == usual]
    if len(same) < _LEAST_SIZES or not usual:
        return None
    return np.stack([parts[at] for at in same], axis=1), first + np.array(same)


def _powers(size: Array) -> tuple[Array, Array]:
    """Return the power of each call (1 linear, 2 quadratic, 0 neither) and the relative size of each step.

    The size of a step is the ratio that most varying calls follow exactly, unless that ratio is the square of
    another one.
    """
    smallest = int(size.sum(axis=0).argmin())
    ratio = size / np.maximum(size[:, [smallest]], 1)
    varies = ratio.max(axis=1) > 1 + _TOLERANCE
    power = np.zeros(len(size), "i8")
    if not varies.any():
        return power, np.ones(size.shape[1])
    kinds, count = np.unique(np.round(ratio[varies], 2), axis=0, return_counts=True)
    usual = kinds[int(count.argmax())]
    roots = kinds[(np.abs(kinds**2 / usual - 1) < 2 * _TOLERANCE).all(axis=1) & (count > 1)]
    base = roots[0] if len(roots) else usual
    for wanted in (1, 2):
        power[varies & (np.abs(ratio / base**wanted - 1) < 2 * _TOLERANCE).all(axis=1)] = wanted
    return power, base


def _lines(recording: Recording, live: Allocations) -> list[tuple[Frame | None, int]]:
    """Return the lines with their bytes, forward's first: what backward allocates follows from them."""
    folded, n_events = fold(recording.stacks), len(recording.trace)
    phase = np.append(recording.phases.phase, Phase.OTHER)[phases_of(recording.phases, n_events)]
    weight: dict[tuple[bool, Frame | None], int] = {}
    is_later = (phase[live.alloc_event] == Phase.BACKWARD).tolist()
    for stack, n_bytes, later in zip(live.stack_id.tolist(), live.block_size.tolist(), is_later, strict=True):
        own = int(folded.of[stack])
        place = (later, folded.stacks.frame(own) if own else None)
        weight[place] = weight.get(place, 0) + n_bytes
    ordered = sorted(weight.items(), key=lambda item: (item[0][0], item[0][1] is None, -item[1]))
    return [(frame, n_bytes) for (_, frame), n_bytes in ordered]


ANALYSIS = asking("Which lines' bytes grow with a step's input, and which with its square?", scaling, list)
