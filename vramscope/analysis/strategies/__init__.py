"""Strategies that lower the peak, with the bytes that each would save in this run.

Each strategy is tried on the recording itself: every allocation gets the size that it would have, the
timeline is summed up again, and the peaks are compared. A strategy that does not lower the peak is not
advised, however many bytes it saves elsewhere. Each figure has an interval. Advice that may have the wrong
sign is not given: the strategy is listed as undecided, with what would decide it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from vramscope.allocator.settings import GRANULE, SMALL_LIMIT
from vramscope.analysis import asking
from vramscope.analysis.accumulation import trains
from vramscope.analysis.by_module import owners_of
from vramscope.analysis.strategies.batches import accumulation, loss_in_chunks, smaller_evaluation
from vramscope.analysis.strategies.checkpointing import checkpointed
from vramscope.analysis.strategies.gradients import cleared, is_bucket
from vramscope.analysis.strategies.optimizer import (
    fused_optimizer,
    of_whole_step,
    offloaded,
    one_moment,
    optimizer_in_a_loop,
    sharded,
    state_in_8_bits,
)
from vramscope.analysis.strategies.trials import (
    SizeChange,
    StrategyInput,
    StrategyTrial,
    level_of,
    level_with,
    prepare,
    scaled,
    starts_training,
)
from vramscope.analysis.verdicts.missing import ended_short
from vramscope.errors import UsageError
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.units import format_bytes, format_count

WORTH_IT = 0.01
"""A strategy that saves less than this share of the peak is not advised."""
_MOST_NAMED = 4
_SHARED, _OF_PARAMETERS = "ZeRO", "ZeRO-3/FSDP"
_ROUNDING = 4096
"""Bytes below which a change of the peak counts as none."""
NOT_ESTIMATED = (
    "mixed precision is not estimated, as a recording does not decide it: vramscope fit --rerun runs the "
    "program dry with it"
)
_RUN_IT = "Run the program with each, and compare the peaks"
_MOST_OF_EXACT = 0.01


@dataclass(frozen=True, slots=True)
class Strategy:
    """One strategy, with its effect on the peak of allocated bytes."""

    name: str
    saved_bytes: int
    """Bytes that the peak falls by."""
    peak_bytes: int
    """The new peak."""
    low_bytes: int
    """Lower end of the interval of the new peak."""
    high_bytes: int
    """Upper end of the interval of the new peak; an advised strategy has it not above the recorded peak."""
    phase: Phase
    """Phase of the new peak."""
    how: str
    """How to switch it on."""
    cost: str
    """What it costs."""
    basis: str
    """What the bytes rest on: exact for this run, or which assumption."""
    effort: int
    """1: a word in the program … 4: another way to run it."""
    by_category: dict[str, int] = field(default_factory=dict)
    """Bytes saved at the instant of the recorded peak, by category; negative for additional bytes."""
    by_phase: dict[str, int] = field(default_factory=dict)
    """The highest allocated bytes of each phase with the strategy."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A strategy that may lower the peak or not: this recording does not decide it."""

    name: str
    low_bytes: int
    """Lower end of the interval of the new peak."""
    high_bytes: int
    """Upper end of the interval of the new peak."""
    reason: str
    """Why the recording does not decide it."""
    to_do: str
    """What decides it."""


@dataclass(frozen=True, slots=True)
class Strategies:
    """Strategies that lower the peak, the most bytes for the least effort first."""

    peak_bytes: int
    """The recorded peak of allocated bytes."""
    phase: Phase
    """Phase of the recorded peak."""
    advised: tuple[Strategy, ...] = ()
    """Strategies that lower the peak, in the order in which to try them."""
    without_effect: tuple[str, ...] = ()
    """Names of the strategies that do not lower the peak: they leave it as it is, or raise it."""
    unknown_bytes: int = 0
    """Bytes at the peak of no known category: no strategy counts on them."""
    undecided: tuple[Undecided, ...] = ()
    """Strategies that may lower the peak or not: run the program with them."""
    is_partial: bool = False
    """Whether the recording ends with a failed allocation: the figures then hold for that moment only."""
    by_phase: dict[str, int] = field(default_factory=dict)
    """The highest allocated bytes of each phase, as recorded."""
    path: str = ""
    """The order in which to try them, on one GPU and on several."""

    @property
    def open_words(self) -> str:
        """What the recording does not decide, and what does; '' if it decides all."""
        names = ", ".join(each.name for each in self.undecided)
        why = [f"{each.reason}. {each.to_do}" for each in self.undecided[:1]]
        return f"cannot tell from this recording: {names}; {why[0]}" if why else ""


def strategies(recording: Recording, n_ranks: int = 8) -> Strategies:
    """Try every strategy on the whole recording; takes about 2 s per million events.

    The strategies need categories: a recording without any gets no advice.

    Parameters
    ----------
    n_ranks
        Number of GPUs that sharding strategies distribute over.

    Raises
    ------
    UsageError
        If *n_ranks* is below 2.
    """
    if n_ranks < 2:
        raise UsageError(f"n_ranks {n_ranks}: sharding needs at least 2")
    run = prepare(recording, n_ranks)
    at = int(run.level_bytes.argmax())
    peak = int(run.level_bytes[at])
    live = run.found.allocated_at(at)
    unknown = int(run.found.block_size[live & (run.category == Category.UNKNOWN)].sum())
    of_backward = trains(recording)
    makers = [make for make in _ALL if of_backward is not False or make not in _OF_A_BACKWARD]
    trials = [
        of_whole_step(run, each)._replace(needs_backward=of_backward is None and make in _OF_A_BACKWARD)
        for make in makers
        for each in make(run)
    ]
    tried = [(_outcome(run, each, at, unknown), each) for each in trials]
    helps = [
        each for each, _ in tried if peak and each.saved_bytes >= WORTH_IT * peak and each.high_bytes <= peak
    ]
    advised = [each for each in helps if not _is_no_better(each, helps, WORTH_IT * peak)]
    advised.sort(key=lambda each: (-each.saved_bytes / each.effort, each.effort))
    is_partial = ended_short(recording)
    reason = _reason(is_partial, unknown, peak)
    useless, undecided = [], []
    for each, of in tried:
        if each in helps:
            continue
        if is_partial or _least_of(run, of, each) - unknown < (1 - WORTH_IT) * peak - _ROUNDING:
            bounds = each.low_bytes, each.high_bytes
            undecided.append(Undecided(each.name, *bounds, reason, _RUN_IT))
        else:
            useless.append(each.name)
    return Strategies(
        peak,
        Phase(int(run.phase[at])),
        tuple(advised),
        tuple(useless),
        unknown,
        tuple(undecided),
        is_partial,
        _by_phase(run, run.level_bytes),
        _path(run, advised),
    )


def _least_of(run: StrategyInput, tried: StrategyTrial, each: Strategy) -> int:
    """Return the peak if every assumption held in favor of the strategy, wherever blocks are placed."""
    if tried.least is None and not each.saved_bytes:
        return each.peak_bytes
    return min(each.peak_bytes, _least_peak(run, tried.least or SizeChange(tried.factor, tried.extra_bytes)))


def _is_monotone(tried: StrategyTrial) -> bool:
    """Return whether the trial only removes bytes, so that it cannot raise the peak."""
    if tried.is_surely_less:
        return True
    adds = (tried.factor > 1).any() or np.any(np.asarray(tried.extra_bytes) > 0)
    return tried.most is None and not adds


def _reason(is_partial: bool, unknown: int, peak: int) -> str:
    if is_partial:
        return "the recording ends with an allocation that failed, and what comes after it is not known"
    if unknown > WORTH_IT * peak:
        return f"{format_bytes(unknown)} of the peak are of no known category"
    return "the recording does not say how each operation would behave"


def _path(run: StrategyInput, advised: Sequence[Strategy]) -> str:
    """Return the order in which to try strategies: those for one GPU first, then those that share."""
    alone: dict[str, str] = {}
    for each in advised:
        if not _is_shared(each):
            # Only the first of several strategies on the same bytes is named.
            alone.setdefault("optimizer" if "optimizer" in each.name else each.name, each.name)
    parts = [f"on one GPU: {', then '.join(alone.values())}"] if alone else []
    if len(alone) > 1:
        parts.append("together they save less than their sum")
    shared = [each.name.partition(":")[0] for each in advised if _is_shared(each)]
    if shared:
        # Computation does not wait for parameters of other ranks where each keeps them whole.
        first = next((name for name in shared if not name.startswith(_OF_PARAMETERS)), shared[0])
        parts.append(f"on {run.n_ranks} GPUs: {first} first")
    return "; ".join(parts)


def _is_no_better(each: Strategy, others: Sequence[Strategy], least: float) -> bool:
    """Return whether a stage that shards less saves as much."""
    less = [other for other in others if _is_shared(other) and other.name < each.name]
    return _is_shared(each) and any(each.saved_bytes - other.saved_bytes < least for other in less)


def _is_shared(each: Strategy) -> bool:
    return each.name.startswith(_SHARED)


def _outcome(run: StrategyInput, tried: StrategyTrial, at: int, unknown: int) -> Strategy:
    level = level_with(run, tried.factor, tried.extra_bytes)
    highest = int(level.argmax())
    name, how, cost, basis = tried.words
    peak = int(run.level_bytes[at])
    exact = float(level[highest]) if tried.saved_bytes is None else peak - tried.saved_bytes
    left = round(exact)
    phase, saved = Phase(int(run.phase[highest])), peak - left
    if tried.least is None and tried.most is None and not saved:
        low = high = left
    else:
        change = SizeChange(tried.factor, tried.extra_bytes)
        low = min(math.floor(exact), _least_peak(run, tried.least or change) - unknown)
        high = max(math.ceil(exact), _most_peak(run, tried.most or change))
    if _is_monotone(tried) and saved > 0:
        high = min(high, peak)
    basis = basis.replace("exact", "estimate") if high - low > _MOST_OF_EXACT * peak else basis
    return Strategy(
        name,
        saved,
        left,
        # Bytes of unknown category may be what the strategy saves.
        max(low, 0),
        high,
        phase,
        how,
        cost,
        basis,
        tried.effort,
        _by_category(run, tried, at),
        _by_phase(run, level),
    )


def _least_peak(run: StrategyInput, change: SizeChange) -> int:
    """Return the least peak that a change allows: blocks as large as their requests, rounded."""
    size = change.factor * _rounded(run)
    return int(np.floor(level_of(run, size, change.extra_bytes).max()))


def _most_peak(run: StrategyInput, change: SizeChange) -> int:
    """Return the highest peak that a change allows: every large block with the largest rest it may have.

    Which blocks are larger than requested depends on their placement, and that on all operations before. What
    was allocated before the first forward is placed as it was, and so are workspaces.
    """
    size = change.factor * np.maximum(_rounded(run), run.found.block_size)
    is_moved = run.found.alloc_event >= starts_training(run)
    is_moved &= run.category != Category.WORKSPACE
    size += is_moved * (GRANULE * (size > 0) + SMALL_LIMIT * (size > SMALL_LIMIT))
    return int(np.ceil(level_of(run, size, change.extra_bytes).max()))


def _rounded(run: StrategyInput) -> Array:
    requested = np.where(run.found.size > 0, run.found.size, run.found.block_size)
    return -(-requested // GRANULE) * GRANULE


def _by_category(run: StrategyInput, tried: StrategyTrial, at: int) -> dict[str, int]:
    live = run.found.allocated_at(at)
    sums = np.zeros(len(Category))
    np.add.at(sums, run.category[live], ((1 - tried.factor) * run.found.block_size)[live])
    sums[tried.extra_of] -= np.broadcast_to(tried.extra_bytes, run.phase.shape)[at]
    return {Category(i).name.lower(): round(float(sums[i])) for i in np.flatnonzero(np.round(sums)).tolist()}


def _by_phase(run: StrategyInput, level: Array) -> dict[str, int]:
    highest = np.zeros(len(Phase))
    np.maximum.at(highest, run.phase, level)
    return {phase.name.lower(): round(float(highest[phase])) for phase in Phase if highest[phase] > 0}


def _checkpointing(run: StrategyInput) -> Iterator[StrategyTrial]:
    owners = owners_of(run.recording, run.found, run.assigned)
    workspace_bytes = level_with(run, (run.category == Category.WORKSPACE).astype(float))
    ways = checkpointed(run.found, run.lives, owners, (run.level_bytes, workspace_bytes))
    best = min(ways, key=lambda way: int((run.level_bytes + way.extra_bytes).max()), default=None)
    if best is not None:
        blocks = best.blocks
        named = ", ".join(blocks) if len(blocks) <= _MOST_NAMED else f"{blocks[0]} … {blocks[-1]}"
        yield StrategyTrial(
            "divided_checkpointing" if best.is_divided else "checkpointing",
            np.ones(len(run.found)),
            best.extra_bytes,
            {"blocks": format_count(len(blocks), "block"), "which": named},
            least=SizeChange(np.ones(len(run.found)), best.least_extra_bytes),
            most=SizeChange(np.ones(len(run.found)), best.most_extra_bytes),
        )


def _gradients_to_none(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Free gradients right after the step of their optimizer."""
    extra, _, saved = cleared(run.recording, run.found)
    if saved:
        yield StrategyTrial(
            "gradients_to_none",
            np.ones(len(run.found)),
            extra,
            extra_of=Category.GRADIENT,
            saved_bytes=saved,
            least=SizeChange(scaled(run, (run.category == Category.GRADIENT, 0.0))),
        )


def _bucket_views(run: StrategyInput) -> Iterator[StrategyTrial]:
    bucket = is_bucket(run.recording.stacks, run.found)
    gradient = run.category == Category.GRADIENT
    if bucket.any() and gradient.any() and not (gradient & bucket).any():
        # A bucket from before the recording may be taken for a gradient; parameters are certain.
        is_one = run.category == Category.PARAMETER
        largest = int(run.found.block_size[is_one if is_one.any() else gradient].max())
        extra = np.where(run.phase == Phase.BACKWARD, largest, 0)
        factor = scaled(run, (gradient, 0.0))
        yield StrategyTrial("bucket_views", factor, extra, extra_of=Category.TEMPORARY)


_ALL: tuple[Callable[[StrategyInput], Iterator[StrategyTrial]], ...] = (
    smaller_evaluation, _checkpointing, loss_in_chunks, _gradients_to_none, _bucket_views, fused_optimizer,
    optimizer_in_a_loop, accumulation, state_in_8_bits, one_moment, offloaded, sharded,
)  # fmt: skip
_OF_A_BACKWARD = (_checkpointing, loss_in_chunks, accumulation)
"""What changes how a backward runs: it helps no program that has none."""

ANALYSIS = asking("What else would lower the peak, and by how many bytes of this run?", strategies)
