"""What else would lower the peak, and by how many bytes of this run?

Each strategy is tried on the recording itself: every allocation is given the size that it would have, the
timeline is summed up again, and its peak is compared. What does not touch the peak is not advised, however
many bytes it saves elsewhere. Each figure has an interval; an advice that may have the wrong sign is not
given: it is listed as undecided, with what would decide it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import GRANULE
from vramscope.analysis import Analysis
from vramscope.analysis.by_module import owners_of
from vramscope.analysis.ending import ended_short
from vramscope.analysis.strategies.autocast import autocast, may_pair
from vramscope.analysis.strategies.checkpointing import checkpointed
from vramscope.analysis.strategies.gradients import (
    is_bucket,
    kept_gradients,
)
from vramscope.analysis.strategies.optimizer import (
    fused_optimizer,
    offloaded,
    one_moment,
    optimizer_in_a_loop,
    state_in_8_bits,
)
from vramscope.analysis.strategies.sharding import sharded
from vramscope.analysis.strategies.trials import (
    USUAL_ELEMENT,
    Change,
    Looked,
    Tried,
    level_with,
    look,
    scaled,
)
from vramscope.errors import UsageError
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

WORTH_IT = 0.01
"""What saves less than this share of the peak is not advised."""
_MICRO_BATCHES = 2
_MOST_NAMED = 4
_MOST_STATE = 8
"""Times the parameters: Adam keeps 2 of 32 bits, with a master copy 6 of 16; above it, parameters are
missing."""
_LARGE_MODEL = 5e9
"""Parameters: from here on a shard of state alone does not make a model fit."""
_SHARED, _OF_PARAMETERS = "ZeRO", "ZeRO-3/FSDP"
_DOUBT = 0.05
"""Share of the peak: estimates of activations were off by up to 3.5 % in 16 models run genuinely."""
_16_AND_32_BITS = ((1, 2), (4, 8))
"""Bytes of an element: quantized and half, single and double."""
_ROUNDING = 4096
"""Bytes: no change of a peak."""
_RUN_IT = "Run the program with it, and compare the peaks"
_OF_A_BATCH = (Category.ACTIVATION, Category.INPUT)
_OF_AN_EVALUATION = (Category.ACTIVATION, Category.TEMPORARY, Category.UNKNOWN)
_TRAINS = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One thing to do, with what it would do to the peak."""

    name: str
    saved_bytes: int
    """Of the peak of allocated bytes."""
    peak_bytes: int
    """What is left of it."""
    low_bytes: int
    """At least so much is left of it …"""
    high_bytes: int
    """… and at most so much: less than the peak as it is."""
    phase: Phase
    """In which the new peak is."""
    how: str
    """How to switch it on."""
    cost: str
    """What to expect in return."""
    basis: str
    """Why these bytes: exact for this run, or under which assumption."""
    effort: int
    """1: a word in the program … 4: another way to run it."""
    by_category: dict[str, int] = field(default_factory=dict)
    """Bytes saved at the instant of the peak as it was; below 0 where something comes on top."""
    by_phase: dict[str, int] = field(default_factory=dict)
    """The highest level of each phase, with it."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A strategy of which this recording does not say whether it lowers the peak."""

    name: str
    low_bytes: int
    """The peak would be at least so high …"""
    high_bytes: int
    """… and at most so high."""
    reason: str
    to_do: str
    """What decides it."""


@dataclass(frozen=True, slots=True)
class Strategies:
    """What lowers the peak, in the order in which to try it: most bytes for the least effort first."""

    peak_bytes: int
    phase: Phase
    """In which the peak is."""
    advised: tuple[Strategy, ...] = ()
    without_effect: tuple[str, ...] = ()
    """Tried, and the peak stays where it is."""
    unknown_bytes: int = 0
    """At the peak, of no known category: no strategy counts on them."""
    undecided: tuple[Undecided, ...] = ()
    """Strategies that may lower the peak or not: run the program with them."""
    is_partial: bool = False
    """Whether the recording ends with an allocation that failed: figures are of that moment."""
    by_phase: dict[str, int] = field(default_factory=dict)
    """The highest level of each phase, as it is."""
    path: str = ""
    """In which order to try them, for one GPU or many and a model of this size."""


def strategies(recording: Recording, n_ranks: int = 8) -> Strategies:
    """Tried on the whole recording; *n_ranks* GPUs for what shards. About 2 s per million events.

    Needs categories: of a recording that knows none nothing can be advised.
    """
    if n_ranks < 2:
        raise UsageError(f"n_ranks {n_ranks}: sharding needs at least 2")
    run = look(recording, n_ranks)
    at = int(run.level.argmax())
    peak = int(run.level[at])
    live = run.found.allocated_at(at)
    unknown = int(run.found.block_size[live & (run.category == Category.UNKNOWN)].sum())
    tried = [(_outcome(run, each, at, unknown), each) for make in _ALL for each in make(run)]
    helps = [
        each for each, _ in tried if peak and each.saved_bytes >= WORTH_IT * peak and each.high_bytes < peak
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
            undecided.append(Undecided(each.name, *bounds, reason, of.to_do or _RUN_IT))
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
        _by_phase(run, run.level),
        _path(run, advised, at),
    )


def _least_of(run: Looked, tried: Tried, each: Strategy) -> int:
    """Return the peak if every assumption held in favor of the strategy, wherever blocks come to lie."""
    if tried.least is None:
        return each.peak_bytes
    return min(each.peak_bytes, round(float(level_with(run, *tried.least).max())))


def _is_monotone(tried: Tried) -> bool:
    """Whether it takes bytes away and adds none: then it does not raise the peak."""
    if tried.is_surely_less:
        return True
    adds = tried.most is not None or bool((tried.factor > 1).any() or np.any(np.asarray(tried.extra) > 0))
    return not adds


def _reason(is_partial: bool, unknown: int, peak: int) -> str:
    if is_partial:
        return "the recording ends with an allocation that failed, and what comes after it is not known"
    if unknown > WORTH_IT * peak:
        return f"{format_bytes(unknown)} of the peak are of no known category"
    return "the recording does not say how each operation would behave"


def _path(run: Looked, advised: Sequence[Strategy], at: int) -> str:
    """One GPU first: what needs no other machine; then what several share."""
    alone: dict[str, str] = {}
    for each in advised:
        if not _is_shared(each):
            # Of what works on the same bytes the first.
            alone.setdefault("optimizer" if "optimizer" in each.name else each.name, each.name)
    said = [f"on one GPU: {', then '.join(alone.values())}"] if alone else []
    if len(alone) > 1:
        said.append("together they save less than their sum")
    shared = [each.name.partition(":")[0] for each in advised if _is_shared(each)]
    if shared:
        said.append(f"on {run.n_ranks} GPUs: {_first_shared(run, shared, at)}")
    return "; ".join(said)


def _is_no_better(each: Strategy, others: Sequence[Strategy], least: float) -> bool:
    """Whether a stage that shards less saves as much."""
    less = [other for other in others if _is_shared(other) and other.name < each.name]
    return _is_shared(each) and any(each.saved_bytes - other.saved_bytes < least for other in less)


def _is_shared(each: Strategy) -> bool:
    return each.name.startswith(_SHARED)


def _first_shared(run: Looked, names: Sequence[str], at: int) -> str:
    """Below so many parameters what computes waits less for those that are not there."""
    count, is_sure = _parameters(run, at)
    of_state = [name for name in names if not name.startswith(_OF_PARAMETERS)]
    if not count:
        return f"{(of_state or names)[0]} first; how many parameters there are is not known"
    size = f"{_in_words(count)} parameters{'' if is_sure else ' (taken as 32 bits)'}"
    if count >= _LARGE_MODEL and len(of_state) < len(names):
        return f"{_OF_PARAMETERS} first: with {size}, 5 billion or more, sharded state alone is seldom enough"
    first = (of_state or names)[0]
    return f"{first} first; of {size}, fewer than 5 billion, each GPU may keep a whole copy"


def _parameters(run: Looked, at: int) -> tuple[float, bool]:
    """How many there are, and whether the size of every one is known; 0 where most were not recognized."""
    live = run.found.allocated_at(at)
    rows = (run.category == Category.PARAMETER) & live
    state = int(run.found.block_size[(run.category == Category.OPTIMIZER_STATE) & live].sum())
    if state > _MOST_STATE * int(run.found.block_size[rows].sum()):
        return 0.0, False
    element = run.element[rows]
    count = run.found.size[rows] / np.where(element > 0, element, USUAL_ELEMENT)
    return float(count.sum()), bool((element > 0).all())


def _in_words(count: float) -> str:
    if count < 1e5:
        return f"{count:,.0f}"
    return f"{count / 1e9:.2g} billion" if count >= 1e9 else f"{count / 1e6:.2g} million"


def _outcome(run: Looked, tried: Tried, at: int, unknown: int) -> Strategy:
    level = level_with(run, tried.factor, tried.extra)
    highest = int(level.argmax())
    left = round(float(level[highest]))
    how, cost, basis = tried.words
    peak = int(run.level[at])
    phase, saved = Phase(int(run.phase[highest])), peak - left
    bounds = [round(float(level_with(run, *each).max())) for each in (tried.least, tried.most) if each]
    is_sure = not bounds and not saved
    bounds = bounds or [left]
    doubt = 0 if is_sure else round(tried.doubt * peak)
    places = 0 if is_sure else _unsplit(run, highest)
    high = max(left + places, *bounds) + doubt
    if _is_monotone(tried) and saved > 0:
        high = min(high, peak - 1)
    return Strategy(
        tried.name,
        saved,
        left,
        # What nobody knows may be what the strategy saves.
        max(min(left - places, *bounds) - doubt - unknown, 0),
        high,
        phase,
        how,
        cost,
        basis,
        tried.effort,
        _by_category(run, tried, at),
        _by_phase(run, level),
    )


def _unsplit(run: Looked, instant: int) -> int:
    """Return by how much blocks are larger than requested, as their rest was too small to be split off.

    Which blocks are depends on where they come to lie, and that on everything before.
    """
    live = run.found.allocated_at(instant) & (run.found.size > 0)
    rounded = -(-run.found.size[live] // GRANULE) * GRANULE
    return int(np.maximum(run.found.block_size[live] - rounded, 0).sum())


def _by_category(run: Looked, tried: Tried, at: int) -> dict[str, int]:
    live = run.found.allocated_at(at)
    sums = np.zeros(len(Category))
    np.add.at(sums, run.category[live], ((1 - tried.factor) * run.found.block_size)[live])
    sums[tried.extra_of] -= np.broadcast_to(tried.extra, run.phase.shape)[at]
    return {Category(i).name.lower(): round(float(sums[i])) for i in np.flatnonzero(np.round(sums)).tolist()}


def _by_phase(run: Looked, level: NDArray[Any]) -> dict[str, int]:
    highest = np.zeros(len(Phase))
    np.maximum.at(highest, run.phase, level)
    return {phase.name.lower(): round(float(highest[phase])) for phase in Phase if highest[phase] > 0}


# ----------------------------------------------------------------------------------- the strategies


def _mixed_precision(run: Looked) -> Iterator[Tried]:
    recording, owners = run.recording, owners_of(run.recording, run.found, run.assigned)
    in_16_bits, in_32_bits = (_share(run, bits) for bits in _16_AND_32_BITS)
    if in_16_bits > in_32_bits:
        return
    action = recording.trace.action
    found = autocast(recording.stacks, run.found, run.lives, owners, run.assigned, action)
    if found is None:
        return
    change = np.zeros(len(run.phase))
    np.add.at(change, found.born, found.n_bytes)
    np.add.at(change, found.dies, -found.n_bytes)
    copies = np.cumsum(change)
    yield Tried(
        "mixed precision (bf16 autocast)",
        found.factor,
        copies,
        (
            'with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss, not around backward',
            "faster where there are tensor cores; on GPUs before Ampere float16 with a GradScaler instead",
            "estimate: what products give halves, weights get copies"
            + ("" if in_32_bits else "; all taken as 32 bits now, which this recording does not tell"),
        ),
        1 if in_32_bits else 2,
        Category.TEMPORARY,
        least=Change(found.least),
        most=Change(found.most, copies),
        doubt=_DOUBT,
        to_do='Run it under torch.autocast("cuda", dtype=torch.bfloat16), and compare the peaks',
    )


def _share(run: Looked, elements: Sequence[int]) -> int:
    """Bytes of parameters whose numbers have so many bytes each."""
    rows = (run.category == Category.PARAMETER) & np.isin(run.element, elements)
    return int(run.found.block_size[rows].sum())


def _checkpointing(run: Looked) -> Iterator[Tried]:
    owners = owners_of(run.recording, run.found, run.assigned)
    ways = checkpointed(run.found, run.lives, owners, run.level)
    best = min(ways, key=lambda way: int((run.level + way.extra).max()), default=None)
    if best is not None:
        yield Tried(
            f"activation checkpointing of {len(best.blocks)} blocks",
            np.ones(len(run.found)),
            best.extra,
            (
                f"torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for {_few(best.blocks)}",
                "each of these blocks runs forward twice: up to a third more time",
                "estimate: what a block saves goes when it returns, and is back when backward reaches it",
            ),
            2,
            least=Change(np.ones(len(run.found)), best.least),
            doubt=_DOUBT,
        )


def _few(paths: Sequence[str]) -> str:
    return ", ".join(paths) if len(paths) <= _MOST_NAMED else f"{paths[0]} … {paths[-1]}"


def _gradients_to_none(run: Looked) -> Iterator[Tried]:
    """Where gradients are there while forward runs, a step begins with those of the step before."""
    extra = kept_gradients(run.found, run.lives, run.category == Category.GRADIENT, len(run.phase))
    if extra.any():
        yield Tried(
            "gradients set to None",
            np.ones(len(run.found)),
            extra,
            (
                "optimizer.zero_grad(set_to_none=True), before forward or right after the optimizer's step",
                "none; a program that reads .grad in between finds None",
                "estimate: gradients are there from where backward makes them, and go after the optimizer",
            ),
            1,
            Category.GRADIENT,
        )


def _bucket_views(run: Looked) -> Iterator[Tried]:
    bucket = is_bucket(run.recording.stacks, run.found)
    gradient = run.category == Category.GRADIENT
    if bucket.any() and gradient.any() and not (gradient & bucket).any():
        # A bucket from before the recording may pass for a gradient, a parameter passes for nothing else.
        is_one = run.category == Category.PARAMETER
        largest = int(run.found.block_size[is_one if is_one.any() else gradient].max())
        yield Tried(
            "gradients as views of DDP's buckets",
            scaled(run, (gradient, 0.0)),
            np.where(run.phase == Phase.BACKWARD, largest, 0),
            (
                "DistributedDataParallel(…, gradient_as_bucket_view=True)",
                "none; gradients cannot be detached in place",
                "closed form: gradients are in buckets already; one at a time is made beside them",
            ),
            1,
            Category.TEMPORARY,
        )


def _accumulation(run: Looked) -> Iterator[Tried]:
    of_step = np.isin(run.born_in, _TRAINS) & (run.category == Category.TEMPORARY)
    of_batch = np.isin(run.category, _OF_A_BATCH) | of_step
    gradient, part = run.category == Category.GRADIENT, 1 / _MICRO_BATCHES
    if not of_batch.any() or _accumulates(run):
        return
    owners = owners_of(run.recording, run.found, run.assigned)
    pairs = may_pair(run.recording.stacks, run.found, run.lives, owners)
    level = level_with(run, gradient.astype(float), 0)
    largest = int(run.found.block_size[gradient].max(initial=0))
    # From the second micro-batch on all gradients are there, and each new one before it is added.
    extra = np.where(np.isin(run.phase, _TRAINS), level.max(initial=0) - level, 0)
    extra += np.where(run.phase == Phase.BACKWARD, largest, 0)
    yield Tried(
        f"{_MICRO_BATCHES} micro-batches with accumulated gradients",
        scaled(run, (of_batch, part)),
        extra,
        (
            f"split the batch in {_MICRO_BATCHES}, divide the loss by it, optimizer.step() after the last",
            "about the same time for large batches, more for small ones; BatchNorm sees smaller batches",
            "estimate: inputs, activations and temporaries of forward and backward in ratio to the batch",
        ),
        2,
        # Scores of each pair of a batch get smaller with its square; temporaries of the size of parameters do
        # not get smaller at all.
        least=Change(
            scaled(run, (of_batch, 1 / _MICRO_BATCHES), (of_batch & pairs, 1 / _MICRO_BATCHES)), extra
        ),
        most=Change(scaled(run, (np.isin(run.category, _OF_A_BATCH), part)), extra),
        doubt=_DOUBT,
    )


def _smaller_evaluation(run: Looked) -> Iterator[Tried]:
    """Where evaluation, and not training, is the peak."""
    if run.phase[int(run.level.argmax())] != Phase.EVAL:
        return
    of_evaluation = (run.born_in == Phase.EVAL) & np.isin(run.category, _OF_AN_EVALUATION)
    yield Tried(
        "half the batch in evaluation",
        scaled(run, (of_evaluation, 1 / 2)),
        0,
        (
            "a DataLoader of its own for evaluation, with half the batch_size",
            "evaluation takes more, smaller steps; its results stay the same",
            "estimate: what evaluation allocates in ratio to its batch",
        ),
        1,
        least=Change(scaled(run, (of_evaluation | (run.category == Category.INPUT), 1 / 2))),
        doubt=_DOUBT,
    )


def _accumulates(run: Looked) -> bool:
    """Whether most of the optimizer's steps come after several backwards."""
    phases = run.lives.phases
    ends = np.unique(phases.start_event[phases.phase == Phase.OPTIMIZER])
    backward = phases.start_event[(phases.phase == Phase.BACKWARD) & (phases.depth == 0)]
    count = np.bincount(np.searchsorted(ends, backward), minlength=len(ends))[: len(ends)]
    return bool(len(ends)) and bool(2 * np.count_nonzero(count > 1) > len(ends))


_ALL: tuple[Callable[[Looked], Iterator[Tried]], ...] = (
    _mixed_precision,
    _smaller_evaluation,
    _checkpointing,
    _gradients_to_none,
    _bucket_views,
    fused_optimizer,
    optimizer_in_a_loop,
    _accumulation,
    state_in_8_bits,
    one_moment,
    offloaded,
    sharded,
)

ANALYSIS = Analysis(
    "strategies", "What else would lower the peak, and by how many bytes of this run?", strategies
)
