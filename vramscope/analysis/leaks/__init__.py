"""Finds memory that grows from step to step: the line, the mistake, and the variable that keeps it.

The analysis compares the allocated bytes of each line at the same point of every step. Three kinds of growth
get three verdicts: allocated memory (a leak), memory that the allocator reserves beyond it (fragmentation, no
leak), and memory that the driver counts beyond that (outside of torch).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.categories import Assigned, Reason, assign, undivided
from vramscope.analysis.leaks.batch import Batch, growing_batch
from vramscope.analysis.leaks.causes import (
    ADVICE,
    Facts,
    cause_of,
)
from vramscope.analysis.leaks.edits import advice, as_written
from vramscope.analysis.leaks.evaluation_rounds import (
    are_enough,
    rounds,
)
from vramscope.analysis.leaks.growth import (
    LEAST_LEVELS,
    growth,
    window,
)
from vramscope.analysis.leaks.holders import (
    Held,
    group_of,
    held,
    is_bounded,
    is_nameless,
    kept_at,
    older_half,
    path_of,
    root_of,
)
from vramscope.analysis.leaks.iterations import iteration_boundaries
from vramscope.analysis.leaks.leak import Leak
from vramscope.analysis.leaks.levels import LeakingLine, Levels, Place, levels_of
from vramscope.analysis.leaks.outside import (
    cache_growth,
    cache_growth_beyond_peaks,
    outside_growth,
    private_pool_growth,
    private_pool_words,
)
from vramscope.analysis.timeline import timeline
from vramscope.model.codes import FindingKind, LeakCause, Severity
from vramscope.model.equality import EqualByValue
from vramscope.model.finding import Finding
from vramscope.model.marks import BackwardKeeps, Category, MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

LEAST_BYTES_PER_STEP = 16 << 10
_LEAST_BYTES_OF_A_LINE = 512
_MOST_ITERATIONS = 320
_WARM_UP = 1
_LEAST_STEPS_HELD = 3


@dataclass(frozen=True, slots=True)
class Leaks(EqualByValue):
    """Every leak, the largest first, and growth that is no leak."""

    iteration_boundaries: NDArray[Any] = field(default_factory=lambda: np.zeros(0, "i8"))
    """The instants compared: ends of steps, or the same point of an inferred loop."""
    has_steps: bool = False
    """Whether the steps are recorded, not inferred."""
    leaks: tuple[Leak, ...] = ()
    """The leaks, the largest first."""
    little: tuple[Leak, ...] = ()
    """What grows by less than counts as a leak, the largest first."""
    batch: Leak | None = None
    """A batch that grows from step to step: no leak. Its ``level_bytes`` has the most of each step."""
    cache_bytes_per_step: float = 0.0
    """Growth of reserved beyond allocated memory, in bytes per step; 0 if it does not grow."""
    pool_bytes_per_step: float = 0.0
    """Growth of what private pools reserve beyond their tensors, in bytes per step; 0 if it does not grow."""
    n_pools: int = 0
    """The private pools at the last step, if there are ever more of them."""
    outside_bytes_per_step: float = 0.0
    """Growth of the process outside of torch, by the driver, in bytes per step; 0 if it does not grow or the
    driver was not asked."""
    n_rises: int = 0
    """How often memory rose, if it rises only every few steps, for example with evaluations; else 0."""
    n_iterations: int = 0
    """Steps, or iterations of an inferred loop, that could be compared."""


@dataclass(frozen=True, slots=True)
class _LeakContext:
    """Facts about a recording that every leak needs, computed once."""

    levels: Levels
    holdings: Mapping[int, Held]
    assigned: Assigned
    retains_graph: bool
    creates_graph: bool
    backward_grows: bool


def leaks(recording: Recording, min_bytes_per_step: int = LEAST_BYTES_PER_STEP) -> Leaks:
    """Find memory that grows from step to step; needs 7 steps and 1 s per million events.

    Parameters
    ----------
    min_bytes_per_step
        Least growth to report, in bytes per step.

    Returns
    -------
    Leaks
        Every leak with its line, cause and holder, and growth that is no leak.
    """
    at, has_steps = iteration_boundaries(recording)
    if len(at) < LEAST_LEVELS:
        return Leaks(at, has_steps, n_iterations=len(at))
    stride = -(-len(at) // _MOST_ITERATIONS)
    found = _compared(recording, at[::-1][::stride][::-1], stride, min_bytes_per_step)
    every = rounds(timeline(recording).allocated_bytes[at])
    if are_enough(every) and not found.leaks and found.batch is None:
        now_and_then = _compared(recording, at[every], int(np.median(np.diff(every[1:]))), min_bytes_per_step)
        found = replace(found, leaks=now_and_then.leaks, little=found.little or now_and_then.little)
        if found.leaks:
            found = replace(found, iteration_boundaries=now_and_then.iteration_boundaries)
    leaking = tuple(replace(leak, has_steps=has_steps) for leak in found.leaks)
    n_rises = max(len(every) - 1, 0)
    return replace(found, leaks=leaking, has_steps=has_steps, n_rises=n_rises, n_iterations=len(at))


def _compared(recording: Recording, at: NDArray[Any], stride: int, least: int) -> Leaks:
    """Compare the allocated memory at the instants *at*, which are *stride* steps apart."""
    levels = levels_of(recording, at, stride)
    context = _context(levels)
    batch = growing_batch(levels)
    asked = [_leak(context, rows) for rows in _grouped(context, _growing(levels, batch)).values()]
    fed = None if batch is None or not batch.is_sure else _batch(context, batch)
    if fed is not None and fed.cause is LeakCause.UNKNOWN:
        asked, fed = [*asked, fed], None
    grows = sorted((leak for leak in asked if leak is not None), key=lambda leak: -leak.bytes_per_step)
    cache = cache_growth if batch is None else cache_growth_beyond_peaks
    pools = private_pool_growth(recording, at, stride, least)
    return Leaks(
        iteration_boundaries=at,
        leaks=tuple(leak for leak in grows if leak.bytes_per_step >= least),
        little=tuple(leak for leak in grows if leak.bytes_per_step < least),
        batch=fed if fed is not None and fed.bytes_per_step >= least else None,
        cache_bytes_per_step=cache(recording, at, stride, least),
        pool_bytes_per_step=pools.bytes_per_step,
        n_pools=pools.n_pools,
        outside_bytes_per_step=outside_growth(recording, at, stride, least),
    )


def _context(levels: Levels) -> _LeakContext:
    recording = levels.recording
    marks = recording.marks
    backward = marks.rows(
        (marks.kind == MarkKind.PHASE_BEGIN)
        & (marks.phase == Phase.BACKWARD)
        & (marks.event >= levels.at[window(len(levels.at))])
    )
    return _LeakContext(
        levels=levels,
        holdings=held(recording, levels.found, levels.born),
        assigned=undivided(assign(recording, levels.found)),
        retains_graph=BackwardKeeps.ITS_GRAPH in backward.value % BackwardKeeps.RETURNS,
        creates_graph=BackwardKeeps.A_NEW_GRAPH in backward.value % BackwardKeeps.RETURNS,
        backward_grows=_backward_grows(levels),
    )


def _backward_grows(levels: Levels) -> bool:
    """Return whether backward makes more and more blocks: it walks through the graphs of ever more steps."""
    phases = levels.recording.phases
    number = np.zeros(len(levels.at) - 1, "i8")
    births = np.sort(levels.found.alloc_event)
    for row in np.flatnonzero(phases.phase == Phase.BACKWARD).tolist():
        turn = int(np.searchsorted(levels.at, phases.start_event[row], side="right")) - 1
        if 0 <= turn < len(number):
            start, end = np.searchsorted(births, [phases.start_event[row], phases.end_event[row]])
            number[turn] += end - start
    return growth(number) is not None


def _growing(levels: Levels, batch: Batch | None) -> dict[int, NDArray[Any]]:
    """Return the rows of each place that grows.

    If a batch grows, or may grow, only places with ever more blocks count.
    """
    grows = {}
    for place, rows in levels.by_place().items():
        found = growth(levels.series(rows))
        if found is None or found.bytes_per_step / levels.stride < _LEAST_BYTES_OF_A_LINE:
            continue
        if batch is None or growth(levels.count(rows)) is not None:
            grows[place] = rows
    return grows


def _grouped(context: _LeakContext, grows: Mapping[int, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the growing rows by their holder; rows without a known holder join the only holder, if one."""
    groups: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for rows in grows.values():
        for root, part in _by_root(context, rows).items():
            groups[root].append(part)
    held_by = [root for root in groups if root]
    if "" in groups and len(held_by) == 1:
        groups[held_by[0]] += groups.pop("")
    return {root: np.concatenate(parts) for root, parts in groups.items()}


def _by_root(context: _LeakContext, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the rows of one line by the variable that holds most of them."""
    roots = [group_of(holding) for holding in _evidence_of(context, rows)]
    if not roots:
        return {"": rows}
    # One mistake keeps what one line allocates; a second root is another path to the same objects.
    return {max(set(roots), key=roots.count): rows}


def _stayed(context: _LeakContext, rows: NDArray[Any]) -> NDArray[Any]:
    """Return those of *rows* that were allocated since the first step compared and stay to the end.

    If there are too few (one block grows and is made again each time), all rows since that step.
    """
    levels = context.levels
    since = rows[levels.born[rows] >= _first(levels)]
    stays = since[levels.gone[since] == len(levels.at)]
    # With one block a step, fewer than half of the steps means temporaries of the last steps.
    n_steps = len(levels.at) - _first(levels)
    is_kept = 2 * len(np.unique(levels.born[stays])) >= n_steps
    return stays if is_kept else since


def _old(levels: Levels, rows: NDArray[Any]) -> NDArray[Any]:
    """Return those of *rows* that stay to the end and were allocated after the warm-up.

    If one block is made again each time, all its rows. Holders may have been recorded long before the end.
    """
    since = rows[levels.born[rows] >= min(_WARM_UP, _first(levels))]
    stays = since[levels.gone[since] == len(levels.at)]
    n_steps = len(levels.at) - _first(levels)
    return stays if 2 * len(np.unique(levels.born[stays])) >= n_steps else since


def _evidence_of(context: _LeakContext, rows: NDArray[Any]) -> list[Held]:
    """Return the holders of the older half of *rows*.

    A holder of a leak keeps blocks of several steps; a variable with blocks of one or two steps belongs to
    the step itself.
    """
    levels, holdings = context.levels, context.holdings
    old = _old(levels, rows)
    if (levels.gone[old] < len(levels.at)).any():
        return older_half(old, holdings)  # one block, made again each time
    steps: dict[str, set[int]] = defaultdict(set)
    for row in old.tolist():
        if row in holdings:
            steps[group_of(holdings[row])].add(int(levels.born[row]))
    found = older_half(old, holdings)
    return [holding for holding in found if len(steps[group_of(holding)]) >= _LEAST_STEPS_HELD]


def _first(levels: Levels) -> int:
    return window(len(levels.at))


def _leak(context: _LeakContext, rows: NDArray[Any]) -> Leak | None:
    stayed = _stayed(context, rows)
    holdings = _evidence_of(context, rows)
    if holdings and sum(map(is_bounded, holdings)) > len(holdings) / 2:
        return None
    cause = cause_of(
        replace(_facts(context, stayed, holdings), unheld_fraction=_unheld(context, rows, holdings))
    )
    return _leak_of(context.levels, rows, stayed, cause, holdings)


def _unheld(context: _LeakContext, rows: NDArray[Any], holdings: list[Held]) -> float:
    """Return the fraction of the bytes that lines allocate of whose blocks the usual holder has none."""
    groups = [group_of(holding) for holding in holdings]
    usual = max(set(groups), key=groups.count, default="")
    place, size = context.levels.place[rows], context.levels.found.block_size[rows]
    own = [row for row, holding in context.holdings.items() if group_of(holding) == usual]
    known = np.unique(place[np.isin(rows, own)])
    return float(size[~np.isin(place, known)].sum() / max(size.sum(), 1))


def _batch(context: _LeakContext, batch: Batch) -> Leak | None:
    """Return a growing batch, or a table that the program keeps and extends each time: cause unknown."""
    levels, source = context.levels, batch.source
    example = _example([context.holdings[row] for row in source.tolist() if row in context.holdings])
    if _is_kept(context, source, example):
        rows = batch.rows[levels.born[batch.rows] < levels.gone[batch.rows]]
        holdings = [] if example is None else [example]
        return _leak_of(levels, rows, _stayed(context, rows), LeakCause.UNKNOWN, holdings)
    grows = growth(batch.peak_bytes)
    if grows is None:
        return None
    first = _first(levels)
    return Leak(
        cause=LeakCause.GROWING_BATCH,
        holder=None if example is None or is_nameless(example, LeakCause.UNKNOWN) else as_written(example),
        edit=ADVICE[LeakCause.GROWING_BATCH],
        path=None if example is None else path_of(example),
        kept_at=None,
        lines=batch.lines,
        bytes_per_step=grows.bytes_per_step / levels.stride,
        n_bytes=int(batch.peak_bytes[-1] - batch.peak_bytes[first]),
        first_step=first * levels.stride,
        n_steps=(len(batch.peak_bytes) - first) * levels.stride,
        confidence=grows.confidence,
        level_bytes=batch.peak_bytes,
        rows=batch.rows[levels.born[batch.rows] == len(levels.at) - 1],
    )


def _is_kept(context: _LeakContext, rows: NDArray[Any], example: Held | None) -> bool:
    """Return whether the program keeps it beyond a step and extends it: a table or a memory, not a batch."""
    category, reason = context.assigned.category[rows], context.assigned.reason[rows]
    of_model = np.isin(category, (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE))
    is_attribute = example is not None and example.has("attribute")
    return is_attribute or bool((of_model & (reason == Reason.IDENTITY)).any())


def _leak_of(
    levels: Levels, rows: NDArray[Any], stayed: NDArray[Any], cause: LeakCause, holdings: list[Held]
) -> Leak | None:
    example = _example(holdings)
    level = levels.series(rows)
    grows = growth(level)
    if grows is None:
        return None
    first = _first(levels)
    lines = _lines(levels, rows)
    holder = None if example is None or is_nameless(example, cause) else as_written(example)
    return Leak(
        cause=cause,
        holder=holder,
        edit=advice(cause, holder, example, levels.recording.source, holdings),
        path=None if example is None else path_of(example),
        kept_at=None if example is None else kept_at(example),
        lines=tuple(LeakingLine(*place, rate) for place, rate in lines),
        bytes_per_step=grows.bytes_per_step / levels.stride,
        n_bytes=int(level[-1] - level[first]),
        first_step=first * levels.stride,
        n_steps=(len(level) - first) * levels.stride,
        confidence=grows.confidence,
        level_bytes=level,
        rows=stayed,
    )


def _example(holdings: list[Held]) -> Held | None:
    """Return the shortest path among those with the most frequent root; None if there is none."""
    if not holdings:
        return None
    roots = [root_of(holding) for holding in holdings]
    usual = max(set(roots), key=roots.count)
    return min((each for each in holdings if root_of(each) == usual), key=lambda each: len(each.words))


def _facts(context: _LeakContext, stayed: NDArray[Any], holdings: list[Held]) -> Facts:
    levels = context.levels
    size = levels.found.block_size[stayed]
    category, reason = context.assigned.category[stayed], context.assigned.reason[stayed]
    is_state = (category == Category.OPTIMIZER_STATE) & (reason == Reason.IDENTITY)
    is_parameter = (category == Category.PARAMETER) & (reason == Reason.IDENTITY)
    total = max(int(size.sum()), 1)
    return Facts(
        holdings=holdings,
        is_replaced=not (levels.gone[stayed] == len(levels.at)).all(),
        retains_graph=context.retains_graph,
        creates_graph=context.creates_graph,
        optimizer_fraction=int(size[is_state].sum()) / total,
        parameter_fraction=int(size[is_parameter].sum()) / total,
        gradient_fraction=int(size[category == Category.GRADIENT].sum()) / total,
        backward_grows=context.backward_grows,
    )


def _lines(levels: Levels, rows: NDArray[Any]) -> list[tuple[Place, float]]:
    found = []
    for place in np.unique(levels.place[rows]).tolist():
        grows = growth(levels.series(rows[levels.place[rows] == place]))
        if grows is not None:
            found.append((levels.places[place], grows.bytes_per_step / levels.stride))
    # Without a recorded stack (autograd's own thread) there is no line to show, so these come last.
    return sorted(found, key=lambda line: (line[0][0] is None, -line[1]))


def findings(result: Leaks) -> list[Finding]:
    """Return a finding for each leak, and for growth that is no leak of tensors."""
    found = [leak.finding for leak in result.leaks]
    if result.batch is not None:
        found.append(result.batch.finding)
    if result.cache_bytes_per_step:
        rate = format_bytes(int(result.cache_bytes_per_step))
        what = "fragmentation of the cache, no leak"
        claim = f"reserved memory grows by {rate} a step beyond what is allocated: {what}"
        advice = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or sizes that vary less"
        found.append(_growth_finding(FindingKind.CACHE_GROWTH, claim, result.cache_bytes_per_step, advice))
    if result.pool_bytes_per_step:
        claim, advice = private_pool_words(result.pool_bytes_per_step, result.n_pools)
        found.append(
            _growth_finding(FindingKind.PRIVATE_POOL_GROWTH, claim, result.pool_bytes_per_step, advice)
        )
    if result.outside_bytes_per_step:
        rate = format_bytes(int(result.outside_bytes_per_step))
        claim = f"the process grows by {rate} a step outside of torch's allocator: a library, not a tensor"
        advice = "look at what is created each step beside tensors: streams, NCCL groups, CUDA graphs"
        found.append(
            _growth_finding(FindingKind.OUTSIDE_GROWTH, claim, result.outside_bytes_per_step, advice)
        )
    return found


def _growth_finding(kind: FindingKind, claim: str, rate: float, advice: str) -> Finding:
    return Finding(kind, Severity.WARNING, claim, bytes_per_step=int(rate), advice=advice)


ANALYSIS = Analysis(
    "leaks", "Does memory grow from step to step, where, by which mistake, and who keeps it?", leaks, findings
)
