"""Finds memory that grows from step to step: the line, the mistake, and the variable that keeps it.

The analysis compares the allocated bytes of each line at the same point of every step. Three kinds of growth
get three verdicts: allocated memory (a leak), memory that the allocator reserves beyond it (fragmentation, no
leak), and memory that the driver counts beyond that (outside of torch).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories import Assigned, Reason, assign, undivided
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.leaks.all_steps import of_all_steps
from vramscope.analysis.leaks.batch import Batch, growing_batch
from vramscope.analysis.leaks.causes import Facts, cause_of
from vramscope.analysis.leaks.edits import KEEPS_NUMBERS, advice, as_written
from vramscope.analysis.leaks.groups import are_bounded, evidence_of, grouped, most_frequent, stayed
from vramscope.analysis.leaks.growth import LEAST_LEVELS, are_enough, growth, rounds, window
from vramscope.analysis.leaks.holders import (
    Held,
    bound_of,
    group_of,
    held,
    is_nameless,
    keep_self,
    kept_at,
    kept_view,
    path_of,
    root_of,
)
from vramscope.analysis.leaks.iterations import iteration_boundaries, may_be_layers
from vramscope.analysis.leaks.leak import Leak
from vramscope.analysis.leaks.levels import LeakingLine, Levels, levels_of
from vramscope.analysis.leaks.outside import (
    cache_growth,
    cache_growth_beyond_peaks,
    outside_growth,
    private_pool_growth,
)
from vramscope.analysis.lifetimes import ALIVE, lifetimes
from vramscope.analysis.shared_results import memoized, shared_results
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind, LeakCause
from vramscope.model.finding import Finding
from vramscope.model.marks import BackwardKeeps, Category, MarkKind, Phase
from vramscope.model.recording import Outcome, Recording
from vramscope.model.table import Array, EqualByValue
from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_count

LEAST_BYTES_PER_STEP = 16 << 10
_LEAST_BYTES_OF_A_LINE = 512
_MOST_ITERATIONS = 320


@dataclass(frozen=True, slots=True)
class Leaks(EqualByValue):
    """Every leak, the largest first, and growth that is no leak."""

    iteration_boundaries: Array = field(default_factory=lambda: np.zeros(0, "i8"))
    """The instants compared: ends of steps, or the same point of an inferred loop."""
    has_steps: bool = False
    """Whether the steps are recorded, not inferred."""
    leaks: tuple[Leak, ...] = ()
    """The leaks, the largest first."""
    little: tuple[Leak, ...] = ()
    """What grows by less than counts as a leak, the largest first."""
    filling: tuple[Leak, ...] = ()
    """Buffers that still fill and have a bound, the largest first: no leaks."""
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

    @property
    def compared(self) -> str:
        """The steps compared, in words: ``8 steps``, or ``313 of 5,000 steps`` at equal distances."""
        n, word = len(self.iteration_boundaries), "step" if self.has_steps else "loop iteration"
        some = f"{n:,} of " if 0 < n < self.n_iterations else ""
        return f"{some}{format_count(self.n_iterations, word)}"

    def leaked_bytes(self, event: int) -> int:
        """Return what had leaked before an event, at least: no more than at the later steps' rate."""
        n = int(np.searchsorted(self.iteration_boundaries, event, "right"))
        # Without steps a loop is inferred, and a model that is being loaded grows in one too.
        levels = [leak.level_bytes[:n] for leak in self.leaks if n > 1 and self.has_steps]
        first = window(n)
        late = [int(level[-1] - level[first]) * (n - 1) // (n - 1 - first) for level in levels]
        return sum(
            max(min(int(level[-1] - level[0]), most), 0) for level, most in zip(levels, late, strict=True)
        )


@dataclass(frozen=True, slots=True)
class _LeakContext:
    """Facts about a recording that every leak needs, computed once."""

    levels: Levels
    holdings: Mapping[int, Held]
    assigned: Assigned
    retains_graph: bool
    creates_graph: bool
    backward_grows: bool
    has_old_optimizers: bool


@memoized
def leaks(recording: Recording, min_bytes_per_step: int = LEAST_BYTES_PER_STEP) -> Leaks:
    """Find memory that grows from step to step; needs 7 steps and 1 s per million events.

    Parameters
    ----------
    min_bytes_per_step
        Least growth to report, in bytes per step.
    """
    with shared_results():
        return _leaks(recording, min_bytes_per_step)


def _leaks(recording: Recording, min_bytes_per_step: int) -> Leaks:
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
    grows = found.leaks or found.little or found.filling or found.batch
    if grows and may_be_layers(recording, is_being_made=_is_being_made(recording, found)):
        return Leaks(at[:0])
    if len(unrecorded(recording)):
        found = of_all_steps(recording, found)
    leaking = tuple(replace(leak, has_steps=has_steps) for leak in found.leaks)
    n_rises = max(len(every) - 1, 0)
    return replace(found, leaks=leaking, has_steps=has_steps, n_rises=n_rises, n_iterations=len(at))


def _is_being_made(recording: Recording, found: Leaks) -> bool:
    """Return whether no name leads to what grows, and none of it is there when the program ends."""
    lives, ends = lifetimes(recording), recording.outcome is not Outcome.RUNNING
    rows = [leak.rows for leak in found.leaks if leak.path and not leak.holder]
    stays = ends and any((lives.free_event[mine] == ALIVE).any() for mine in rows)
    return 0 < len(rows) == len(found.leaks) and not stays


def _compared(recording: Recording, at: Array, stride: int, least: int) -> Leaks:
    """Compare the allocated memory at the instants *at*, which are *stride* steps apart."""
    levels = levels_of(recording, at, stride)
    context = _context(levels)
    batch = growing_batch(levels)
    groups = grouped(levels, context.holdings, _growing(levels, batch))
    asked = [_leak(context, rows) for rows in groups.values()]
    of_leaks = [rows for rows, each in zip(groups.values(), asked, strict=True) if each is not None]
    # What leaks keep is in the peak of each later step, and the batch does not need it.
    leaking = sum((each.level_bytes for each in asked if each is not None), np.zeros(len(at), "i8"))
    fed = None
    if batch is not None and batch.is_sure:
        fed = _batch(context, replace(batch, peak_bytes=batch.peak_bytes - leaking), of_leaks)
    if fed is not None and fed.cause is not LeakCause.GROWING_BATCH:
        asked, fed = [*asked, fed], None
    found = _by_statement(sorted(filter(None, asked), key=lambda leak: -leak.bytes_per_step))
    filling = tuple(leak for leak in found if leak.is_filling)
    # Several buffers that fill at once are one growth to whoever looks at the memory.
    if sum(leak.bytes_per_step for leak in filling) < least:
        filling = ()
    grows = [leak for leak in found if not leak.is_filling or not filling]
    cache = cache_growth if batch is None else cache_growth_beyond_peaks
    pools = private_pool_growth(recording, at, stride, least)
    leaks = tuple(leak for leak in grows if leak.bytes_per_step >= least)
    cached = cache(recording, at, stride, least)
    # The segments of blocks that stay are less than half empty: what is left in them goes with the leak.
    if cached < sum(leak.bytes_per_step for leak in leaks):
        cached = 0.0
    return Leaks(
        iteration_boundaries=at,
        leaks=leaks,
        little=tuple(leak for leak in grows if leak.bytes_per_step < least),
        filling=filling,
        batch=fed if fed is not None and fed.bytes_per_step >= least else None,
        cache_bytes_per_step=cached,
        pool_bytes_per_step=pools.bytes_per_step,
        n_pools=pools.n_pools,
        outside_bytes_per_step=outside_growth(recording, at, stride, least),
    )


def _by_statement(found: list[Leak]) -> list[Leak]:
    """Return one leak for each statement that keeps, by its largest holder: one edit ends all of it."""
    of: dict[Any, Leak] = {}
    for leak in found:
        is_alone = leak.kept_at is None or leak.bound
        mistake: Any = id(leak) if is_alone else (leak.cause, leak.kept_at, leak.edit)
        of[mistake] = of[mistake].joined(leak) if mistake in of else leak
    return sorted(of.values(), key=lambda leak: -leak.bytes_per_step)


def _context(levels: Levels) -> _LeakContext:
    recording, marks = levels.recording, levels.recording.marks
    backward = marks.of_phase(MarkKind.PHASE_BEGIN, Phase.BACKWARD)
    backward = backward.rows(backward.event >= levels.at[window(len(levels.at))])
    return _LeakContext(
        levels=levels,
        holdings=held(recording, levels.found, levels.born),
        assigned=undivided(assign(recording, levels.found)),
        retains_graph=BackwardKeeps.ITS_GRAPH in backward.value % BackwardKeeps.RETURNS,
        creates_graph=BackwardKeeps.A_NEW_GRAPH in backward.value % BackwardKeeps.RETURNS,
        backward_grows=_backward_grows(levels),
        has_old_optimizers=_has_old_optimizers(levels),
    )


def _has_old_optimizers(levels: Levels) -> bool:
    """Return whether an optimizer stepped for the last time before another one stepped first."""
    marks = levels.recording.marks
    steps = marks.of_phase(MarkKind.PHASE_BEGIN, Phase.OPTIMIZER)
    steps = steps.rows(steps.event >= levels.at[window(len(levels.at))])
    _, first = np.unique(steps.value, return_index=True)
    _, last = np.unique(steps.value[::-1], return_index=True)
    return bool(len(first)) and len(steps) - 1 - int(last.max()) < int(first.max())


def _backward_grows(levels: Levels) -> bool:
    """Return whether backward makes more and more blocks: it walks through the graphs of ever more steps."""
    phases, n_turns = levels.recording.phases, len(levels.at) - 1
    turn = np.searchsorted(levels.at, phases.start_event, side="right") - 1
    counts = np.flatnonzero((phases.phase == Phase.BACKWARD) & (turn >= 0) & (turn < n_turns))
    births = np.sort(levels.found.alloc_event)
    start, end = (np.searchsorted(births, each[counts]) for each in (phases.start_event, phases.end_event))
    return growth(np.bincount(turn[counts], end - start, n_turns).astype("i8")) is not None


def _growing(levels: Levels, batch: Batch | None) -> dict[int, Array]:
    """Return the rows of each place that grows: if a batch may grow, only of places with ever more blocks."""
    grows = {}
    for place, rows in levels.by_place().items():
        found = growth(levels.series(rows))
        if found is None or found.bytes_per_step / levels.stride < _LEAST_BYTES_OF_A_LINE:
            continue
        if batch is None or growth(levels.count(rows)) is not None:
            grows[place] = rows
    return grows


def _leak(context: _LeakContext, rows: Array) -> Leak | None:
    levels = context.levels
    kept = stayed(levels, rows)
    holdings = evidence_of(levels, context.holdings, rows)
    facts = replace(_facts(context, kept, holdings), unheld_fraction=_unheld(context, rows, holdings))
    # An old model is no entry of a buffer that still fills.
    is_of_models = facts.parameter_fraction > 0 and keep_self(holdings)
    cause = LeakCause.KEPT_MODEL if is_of_models else cause_of(facts)
    leak = _leak_of(levels, rows, kept, cause, holdings)
    if leak is None or not are_bounded(holdings) or is_of_models:
        return leak
    leak = replace(
        leak,
        bound=next(filter(None, map(bound_of, holdings))),
        bytes_per_item=_bytes_per_item(context, rows, leak.bytes_per_step * levels.stride),
    )
    return replace(leak, is_filling=leak.has_bound_below(levels.recording.device.total_bytes))


def _bytes_per_item(context: _LeakContext, rows: Array, bytes_per_turn: float) -> float:
    """Return the bytes of one item of the container that keeps *rows*, by those whose item is known.

    Numbered items tell how many a turn brings; the line may also allocate what goes into no item.
    """
    levels = context.levels
    known = {row: context.holdings[row] for row in rows.tolist() if row in context.holdings}
    growing = {row: each for row, each in known.items() if each.grows_at >= 0 and bound_of(each)}
    items = {row: each.words[each.grows_at] for row, each in growing.items()}
    first: dict[int, int] = {}
    for row, word in items.items():
        if type(word[1]) is int and not str(word[2]).startswith("lru"):
            first.setdefault(int(levels.born[row]), word[1])
    if len(first) > 1 and (n_items := abs(first[max(first)] - first[min(first)])):
        return bytes_per_turn * (max(first) - min(first)) / n_items
    return float(
        levels.found.block_size[list(items)].sum() / max(len({word[1] for word in items.values()}), 1)
    )


def _unheld(context: _LeakContext, rows: Array, holdings: list[Held]) -> float:
    """Return the fraction of the bytes that lines allocate of whose blocks the usual holder has none."""
    groups = [group_of(holding) for holding in holdings]
    usual = most_frequent(groups)
    place, size = context.levels.place[rows], context.levels.found.block_size[rows]
    own = [row for row, holding in context.holdings.items() if group_of(holding) == usual]
    known = np.unique(place[np.isin(rows, own)])
    return float(size[~np.isin(place, known)].sum() / max(size.sum(), 1))


def _batch(context: _LeakContext, batch: Batch, of_leaks: Sequence[Array]) -> Leak | None:
    """Return a growing batch, or a table that the program keeps and extends each time.

    Blocks that are *of_leaks*, as those of a table whose graph holds the ones before, count there alone.
    """
    levels, source = context.levels, batch.source
    example = _example([context.holdings[row] for row in source.tolist() if row in context.holdings])
    holdings = [] if example is None else [example]
    if _is_kept(context, source, example):
        rows = batch.rows[levels.born[batch.rows] < levels.gone[batch.rows]]
        rows = np.setdiff1d(rows, np.concatenate([rows[:0], *of_leaks]))
        cause = LeakCause.UNKNOWN if example is None else LeakCause.GROWING_TENSOR
        return _leak_of(levels, rows, stayed(levels, rows), cause, holdings)
    last = batch.rows[levels.born[batch.rows] == len(levels.at) - 1]
    return _leak_of(levels, batch.rows, last, LeakCause.GROWING_BATCH, holdings, batch)


def _is_kept(context: _LeakContext, rows: Array, example: Held | None) -> bool:
    """Return whether the program keeps it beyond a step and extends it: a table or a memory, not a batch."""
    category, reason = context.assigned.category[rows], context.assigned.reason[rows]
    of_model = np.isin(category, (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE))
    is_attribute = example is not None and (example.has("attribute") or kept_at(example) is not None)
    return is_attribute or bool((of_model & (reason == Reason.IDENTITY)).any())


def _leak_of(
    levels: Levels,
    rows: Array,
    kept: Array,
    cause: LeakCause,
    holdings: list[Held],
    batch: Batch | None = None,
) -> Leak | None:
    """Return what grows by the level of *rows*, or a *batch* by its peaks."""
    # Beside a loss with its graph, what is kept may be numbers without one.
    graphs = [each for each in holdings if each.has("graph")] if cause in KEEPS_NUMBERS else []
    example = _example(graphs or holdings)
    level = levels.series(rows) if batch is None else batch.peak_bytes
    grows = growth(level)
    if grows is None:
        return None
    first = window(len(levels.at))
    holder = None if example is None or is_nameless(example, cause) else as_written(example, holdings)
    return Leak(
        cause=cause,
        holder=holder,
        edit=advice(cause, holder, example, levels.recording.source, holdings),
        path=None if example is None else path_of(example),
        kept_at=None if example is None else kept_at(example),
        view=kept_view(holdings),
        lines=_lines(levels, rows, cause) if batch is None else batch.lines,
        bytes_per_step=grows.bytes_per_step / levels.stride,
        n_bytes=int(level[-1] - level[first]),
        first_step=first * levels.stride,
        n_steps=(len(level) - first) * levels.stride,
        confidence=grows.confidence,
        level_bytes=level,
        rows=kept,
    )


def _example(holdings: list[Held]) -> Held | None:
    """Return the shortest path among those with the most frequent root; None if there is none."""
    usual = most_frequent([root_of(each) for each in holdings])
    of_it = [each for each in holdings if root_of(each) == usual]
    return min(of_it, key=lambda each: len(each.words), default=None)


def _facts(context: _LeakContext, kept: Array, holdings: list[Held]) -> Facts:
    levels = context.levels
    size = levels.found.block_size[kept]
    category, reason = context.assigned.category[kept], context.assigned.reason[kept]
    is_state = (category == Category.OPTIMIZER_STATE) & (reason == Reason.IDENTITY)
    is_parameter = (category == Category.PARAMETER) & (reason == Reason.IDENTITY)
    total = max(int(size.sum()), 1)
    return Facts(
        holdings=holdings,
        is_replaced=not (levels.gone[kept] == len(levels.at)).all(),
        retains_graph=context.retains_graph,
        creates_graph=context.creates_graph,
        optimizer_fraction=int(size[is_state].sum()) / total,
        parameter_fraction=int(size[is_parameter].sum()) / total,
        gradient_fraction=int(size[category == Category.GRADIENT].sum()) / total,
        backward_grows=context.backward_grows,
        has_old_optimizers=context.has_old_optimizers,
    )


def _lines(levels: Levels, rows: Array, cause: LeakCause) -> tuple[LeakingLine, ...]:
    found = []
    in_backward = np.zeros(len(levels.place), "?")
    if cause is LeakCause.CREATE_GRAPH_CYCLE:  # the call of the backward that makes it is the line to change
        in_backward = lives_of(levels.recording, levels.found).phase == Phase.BACKWARD
        in_backward &= levels.born < levels.gone
    for place in np.unique(levels.place[rows]).tolist():
        mine = rows[levels.place[rows] == place]
        grows = growth(levels.series(mine))
        if grows is not None:
            line = LeakingLine(*levels.places[int(place)], grows.bytes_per_step / levels.stride)
            # Without a recorded stack (autograd's own thread) there is no line to show, so these come last.
            found.append((line.frame is None, not in_backward[mine].any(), -line.bytes_per_step, line))
    return tuple(line for *_, line in sorted(found, key=lambda each: each[:-1]))


def findings(result: Leaks) -> list[Finding]:
    """Return a finding for each leak, and for growth that is no leak of tensors."""
    found = [leak.finding for leak in (*result.leaks, *result.filling)]
    if result.batch is not None:
        found.append(result.batch.finding)
    of_pools = "pools" if result.n_pools else "sizes"
    rates = {
        FindingKind.CACHE_GROWTH: result.cache_bytes_per_step,
        f"{of_pools}.{FindingKind.PRIVATE_POOL_GROWTH}": result.pool_bytes_per_step,
        f"step.{FindingKind.OUTSIDE_GROWTH}": result.outside_bytes_per_step,
    }
    for kind, rate in rates.items():
        if rate:
            grows = worded(kind, int(rate), pools=result.n_pools)
            found.append(replace(grows, n_bytes=None, bytes_per_step=int(rate)))
    return found


ANALYSIS = asking(
    "Does memory grow from step to step, where, by which mistake, and who keeps it?", leaks, findings
)
