"""Finds which lines' bytes grow linearly with the size of a step's input, and which quadratically.

Requested bytes decide it exactly: between two steps that make the same calls, a call whose input doubles
requests twice as much, and a matrix of attention scores four times as much.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.folding import fold
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.step_and_phase import phases_of, steps_of
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame

_LEAST_SIZES = 3
"""Fewest different sizes: a straight line passes through any two."""
_LEAST_RATIO = 1.2
"""Ratio of the largest to the smallest size: below it a square and a line are too close to tell apart."""
_TOLERANCE = 0.01
_LEAST_SHARE = 0.05
"""Share of the peak below which quadratic bytes make no finding."""
_LEAST_DOMINATING = 0.5
_MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class ScalingLine:
    """A line of the program and the bytes of the largest step's peak that it holds."""

    frame: Frame | None
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """The parts of the largest step's peak that grow linearly and quadratically with the input's size."""

    n_sizes: int = 0
    """Different sizes among the steps that make the same calls; 0 if these are too few for an answer."""
    ratio: float = 1.0
    """Ratio of the largest size to the smallest."""
    peak_bytes: int = 0
    """The most bytes allocated in the largest step."""
    linear_bytes: int = 0
    """Bytes of that peak in blocks that grow linearly."""
    linear: tuple[ScalingLine, ...] = ()
    """The lines that allocated these blocks, forward's first."""
    quadratic_bytes: int = 0
    """Bytes of that peak in blocks that grow quadratically."""
    quadratic: tuple[ScalingLine, ...] = ()
    """The lines that allocated these blocks, forward's first."""
    has_backward: bool = True
    """Whether backward makes blocks that grow so, as for scores; a mask has no gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class _MatchedCalls:
    """Allocations of the steps that make the same calls equally often."""

    rows: NDArray[Any]
    """Rows of ``lifetimes``, shape ``(n_calls, n_steps)``; a call is one occurrence of a stack in a step."""
    steps: NDArray[Any]
    """Index of each step."""


def scaling(recording: Recording) -> Scaling:
    """Find how each line's bytes grow with the size of a step's input.

    Only steps that make the same calls as most steps count. An answer needs three different sizes.
    """
    found = lifetimes(recording)
    calls = _calls(recording, found)
    if calls is None:
        return Scaling()
    power, ratio = _powers(found.size[calls.rows])
    n_sizes = len(np.unique(np.round(ratio, 2)))
    if n_sizes < _LEAST_SIZES or ratio.max() < _LEAST_RATIO:
        return Scaling()
    largest = int(ratio.argmax())
    step = int(calls.steps[largest])
    start, end = int(recording.steps.start_event[step]), int(recording.steps.end_event[step])
    allocated = timeline(recording).allocated_bytes[start : end + 1]
    at = int(start + allocated.argmax())
    mine, is_live = calls.rows[:, largest], found.allocated_at(at)
    linear, quadratic = (found.rows(mine[(power == wanted) & is_live[mine]]) for wanted in (1, 2))
    return Scaling(
        n_sizes,
        float(ratio.max()),
        int(allocated.max()),
        int(linear.block_size.sum()),
        _lines(recording, linear),
        int(quadratic.block_size.sum()),
        _lines(recording, quadratic),
        _in_backward(recording, found.rows(mine[power == 2])),
    )


def _in_backward(recording: Recording, made: Allocations) -> bool:
    row = phases_of(recording.phases, len(recording.trace))[made.alloc_event]
    return bool((np.append(recording.phases.phase, Phase.OTHER)[row] == Phase.BACKWARD).any())


def _calls(recording: Recording, found: Allocations) -> _MatchedCalls | None:
    """Return the matched calls; None if too few steps make the same ones."""
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
    return _MatchedCalls(np.stack([parts[at] for at in same], axis=1), first + np.array(same))


def _powers(size: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
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


def _lines(recording: Recording, live: Allocations) -> tuple[ScalingLine, ...]:
    """Return the lines by bytes, forward's first: what backward allocates follows from them."""
    folded, n_events = fold(recording.stacks), len(recording.trace)
    phase = np.append(recording.phases.phase, Phase.OTHER)[phases_of(recording.phases, n_events)]
    weight: dict[tuple[bool, Frame | None], int] = {}
    is_later = (phase[live.alloc_event] == Phase.BACKWARD).tolist()
    for stack, n_bytes, later in zip(live.stack_id.tolist(), live.block_size.tolist(), is_later, strict=True):
        own = int(folded.of[stack])
        place = (later, folded.stacks.frame(own) if own else None)
        weight[place] = weight.get(place, 0) + n_bytes
    ordered = sorted(weight.items(), key=lambda item: (item[0][0], item[0][1] is None, -item[1]))
    return tuple(ScalingLine(frame, n_bytes) for (_, frame), n_bytes in ordered)


def findings(found: Scaling) -> list[Finding]:
    """Return findings for lines that grow quadratically, and for a peak that mostly grows linearly."""
    result = []
    if found.quadratic_bytes >= _LEAST_SHARE * found.peak_bytes > 0:
        remedy = (
            "If it is attention: torch.nn.functional.scaled_dot_product_attention does not keep its scores"
            if found.has_backward
            else "No gradient passes through them. If it is a mask of attention: one of shape (batch, 1, 1, "
            "length) broadcasts over heads and queries, and is_causal=True needs none"
        )
        kind, n_bytes = FindingKind.QUADRATIC_MEMORY, found.quadratic_bytes
        result.append(_finding(kind, found, found.quadratic, n_bytes, remedy))
    if found.linear_bytes >= _LEAST_DOMINATING * found.peak_bytes > 0:
        result.append(_finding(FindingKind.BATCH_DOMINATES, found, found.linear, found.linear_bytes))
    return result


def _finding(
    kind: str, found: Scaling, lines: tuple[ScalingLine, ...], n_bytes: int, remedy: str = ""
) -> Finding:
    shown = [(line.frame, line.n_bytes) for line in lines[:5]]
    evidence = {
        "sizes": found.n_sizes,
        "ratio": round(found.ratio, 3),
        "peak_bytes": found.peak_bytes,
        "lines": [{"file": at and at.file, "line": at and at.line, "bytes": n} for at, n in shown],
    }
    share, times = f"{100 * n_bytes / found.peak_bytes:.0f}", f"{found.ratio:.2g}"
    frame = lines[0].frame if lines else None
    return worded(kind, n_bytes, frame, evidence, share=share, times=times, remedy=remedy)


ANALYSIS = Analysis(
    "scaling",
    "Which lines' bytes grow as what a step is given does, and which with its square?",
    scaling,
    findings,
)
