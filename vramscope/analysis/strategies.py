"""What else would lower the peak, and by how many bytes of this run?

Each strategy is tried on the recording itself: every allocation is given the size that it would have, the
timeline is summed up again, and its peak is compared. What does not touch the peak is not advised, however
many bytes it saves elsewhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis._autocast import autocast
from vramscope.analysis._checkpointing import checkpointed
from vramscope.analysis._gradients import is_bucket, kept_gradients
from vramscope.analysis._life_rules import Lives, lives_of
from vramscope.analysis._place import phases_of
from vramscope.analysis.by_module import owners_of
from vramscope.analysis.categories import Assigned, assign
from vramscope.analysis.lifetimes import BEFORE, Allocations, lifetimes
from vramscope.errors import UsageError
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

WORTH_IT = 0.01
"""What saves less than this share of the peak is not advised."""
_MICRO_BATCHES = 2
_SMALLEST_8BIT = 4096
"""Elements: bitsandbytes keeps smaller tensors' state in 32 bits."""
_BYTES_8BIT = 1 / 4 * (1 + 4 / 256)
"""Of a state of 32 bits: one byte each, and a scale of four bytes for every block of 256."""
_MOST_NAMED = 4
_LARGE_MODEL = 5e9
"""Parameters: from here on a shard of state alone does not make a model fit."""
_OF_A_BATCH = (Category.ACTIVATION, Category.INPUT)
_TRAINS = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One thing to do, with what it would do to the peak."""

    name: str
    saved_bytes: int
    """Of the peak of allocated bytes."""
    peak_bytes: int
    """What is left of it."""
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
    by_phase: dict[str, int] = field(default_factory=dict)
    """The highest level of each phase, as it is."""
    path: str = ""
    """In which order to try them, for one GPU or many and a model of this size."""


class _Run(NamedTuple):
    """What every strategy looks at."""

    recording: Recording
    found: Allocations
    assigned: Assigned
    lives: Lives
    category: NDArray[Any]
    born_in: NDArray[Any]
    """Phase of each allocation's birth; OTHER where it pre-dates the trace."""
    phase: NDArray[Any]
    """At each instant: that of the event that led to it."""
    level: NDArray[Any]
    """Allocated bytes at each instant, as it is."""
    n_ranks: int


class _Tried(NamedTuple):
    """What would be different."""

    name: str
    factor: NDArray[Any]
    """Of each allocation."""
    extra: NDArray[Any] | int
    """Bytes more at each instant."""
    words: tuple[str, str, str]
    """How, cost, basis."""
    effort: int
    extra_of: Category = Category.ACTIVATION
    """What ``extra`` is for."""


def strategies(recording: Recording, n_ranks: int = 8) -> Strategies:
    """Tried on the whole recording; *n_ranks* GPUs for what shards. About 1 s per million events.

    Needs categories: of a recording that knows none nothing can be advised.
    """
    if n_ranks < 2:
        raise UsageError(f"n_ranks {n_ranks}: sharding needs at least 2")
    run = _run(recording, n_ranks)
    at = int(run.level.argmax())
    peak = int(run.level[at])
    live = run.found.allocated_at(at)
    unknown = int(run.found.block_size[live & (run.category == Category.UNKNOWN)].sum())
    tried = [_outcome(run, each, at) for make in _ALL for each in make(run)]
    advised = [each for each in tried if peak and each.saved_bytes >= WORTH_IT * peak]
    advised.sort(key=lambda each: (-each.saved_bytes / each.effort, each.effort))
    useless = tuple(each.name for each in tried if each not in advised)
    phases = _by_phase(run, run.level)
    return Strategies(
        peak, Phase(int(run.phase[at])), tuple(advised), useless, unknown, phases, _path(run, advised)
    )


def _run(recording: Recording, n_ranks: int) -> _Run:
    found, n_events = lifetimes(recording), len(recording.trace)
    row = phases_of(recording.phases, n_events)
    by_event = np.append(recording.phases.phase, Phase.OTHER)[row]
    born_in = np.where(
        found.alloc_event >= 0, np.append(by_event, Phase.OTHER)[found.alloc_event], Phase.OTHER
    )
    phase = np.concatenate([[Phase.OTHER], by_event])
    assigned, lives = assign(recording, found), lives_of(recording, found)
    level = _summed(found, found.block_size, n_events).astype("i8")
    return _Run(recording, found, assigned, lives, assigned.category, born_in, phase, level, n_ranks)


def _path(run: _Run, advised: Sequence[Strategy]) -> str:
    """One GPU first: what needs no other machine; then what several share."""
    if not advised:
        return ""
    alone = [each.name for each in advised if "GPUs" not in each.name]
    many = [each.name for each in advised if "GPUs" in each.name]
    live = run.category == Category.PARAMETER
    parameters = int(run.found.block_size[live & run.found.allocated_at(int(run.level.argmax()))].sum()) / 4
    size = f"{_in_words(parameters)} parameters (taken as 32 bits)"
    said = [f"on one GPU: {', then '.join(alone)}"] if alone else []
    if many:
        # Below it, what is computed waits less for parameters that are not there.
        first = many[-1] if parameters >= _LARGE_MODEL else many[0]
        said.append(f"on {run.n_ranks} GPUs with {size}: {first} first")
    return "; ".join(said)


def _in_words(count: float) -> str:
    return f"{count / 1e9:.2g} billion" if count >= 1e9 else f"{max(count / 1e6, 0.1):.2g} million"


def _summed(found: Allocations, size: NDArray[Any], n_events: int) -> NDArray[Any]:
    """Allocated bytes at each instant, if the allocations had these sizes."""
    change = np.zeros(n_events + 1)
    is_born, is_freed = found.free_event != BEFORE, found.free_event >= 0
    np.add.at(change, found.alloc_event[is_born] + 1, size[is_born])
    np.add.at(change, found.free_event[is_freed] + 1, -size[is_freed])
    level: NDArray[Any] = np.cumsum(change)
    return level


def _level(run: _Run, factor: NDArray[Any], extra: NDArray[Any] | int) -> NDArray[Any]:
    """Allocated bytes at each instant, if each allocation had *factor* times its size."""
    level: NDArray[Any] = _summed(run.found, factor * run.found.block_size, len(run.phase) - 1) + extra
    return level


def _outcome(run: _Run, tried: _Tried, at: int) -> Strategy:
    level = _level(run, tried.factor, tried.extra)
    highest = int(level.argmax())
    left = round(float(level[highest]))
    how, cost, basis = tried.words
    phase, saved = Phase(int(run.phase[highest])), int(run.level[at]) - left
    return Strategy(
        tried.name,
        saved,
        left,
        phase,
        how,
        cost,
        basis,
        tried.effort,
        _by_category(run, tried, at),
        _by_phase(run, level),
    )


def _by_category(run: _Run, tried: _Tried, at: int) -> dict[str, int]:
    live = run.found.allocated_at(at)
    sums = np.zeros(len(Category))
    np.add.at(sums, run.category[live], ((1 - tried.factor) * run.found.block_size)[live])
    sums[tried.extra_of] -= np.broadcast_to(tried.extra, run.phase.shape)[at]
    return {Category(i).name.lower(): round(float(sums[i])) for i in np.flatnonzero(np.round(sums)).tolist()}


def _by_phase(run: _Run, level: NDArray[Any]) -> dict[str, int]:
    highest = np.zeros(len(Phase))
    np.maximum.at(highest, run.phase, level)
    return {phase.name.lower(): round(float(highest[phase])) for phase in Phase if highest[phase] > 0}


def _scaled(run: _Run, *scales: tuple[NDArray[Any], float]) -> NDArray[Any]:
    """A factor for each allocation: 1 but for the rows given."""
    factor = np.ones(len(run.found))
    for rows, scale in scales:
        factor[rows] *= scale
    return factor


# ----------------------------------------------------------------------------------- the strategies


def _mixed_precision(run: _Run) -> Iterator[_Tried]:
    recording, owners = run.recording, owners_of(run.recording, run.found, run.assigned)
    action = recording.trace.action
    found = autocast(recording.stacks, run.found, run.lives, owners, run.assigned, action)
    if found is None:
        return
    change = np.zeros(len(run.phase))
    np.add.at(change, found.born, found.n_bytes)
    np.add.at(change, found.dies, -found.n_bytes)
    yield _Tried(
        "mixed precision (bf16 autocast)",
        found.factor,
        np.cumsum(change),
        (
            'with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss, not around backward',
            "faster where there are tensor cores; on GPUs before Ampere float16 with a GradScaler instead",
            "estimate: what products give halves, weights get copies; taken that all is in 32 bits now",
        ),
        1,
        Category.TEMPORARY,
    )


def _checkpointing(run: _Run) -> Iterator[_Tried]:
    owners = owners_of(run.recording, run.found, run.assigned)
    ways = checkpointed(run.found, run.lives, owners, run.level)
    best = min(ways, key=lambda way: int((run.level + way.extra).max()), default=None)
    if best is not None:
        yield _Tried(
            f"activation checkpointing of {len(best.blocks)} blocks",
            np.ones(len(run.found)),
            best.extra,
            (
                f"torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for {_few(best.blocks)}",
                "each of these blocks runs forward twice: up to a third more time",
                "estimate: what a block saves goes when it returns, and is back when backward reaches it",
            ),
            2,
        )


def _few(paths: Sequence[str]) -> str:
    return ", ".join(paths) if len(paths) <= _MOST_NAMED else f"{paths[0]} … {paths[-1]}"


def _gradients_to_none(run: _Run) -> Iterator[_Tried]:
    """Where gradients are there while forward runs, a step begins with those of the step before."""
    extra = kept_gradients(run.found, run.lives, run.category == Category.GRADIENT, len(run.phase))
    if extra.any():
        yield _Tried(
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


def _bucket_views(run: _Run) -> Iterator[_Tried]:
    bucket = is_bucket(run.recording.stacks, run.found)
    gradient = run.category == Category.GRADIENT
    n_bytes = int(run.found.block_size[bucket].sum())
    if n_bytes and gradient.any() and not (gradient & bucket).any():
        yield _Tried(
            "gradients as views of DDP's buckets",
            _scaled(run, (gradient, 0.0)),
            0,
            (
                "DistributedDataParallel(…, gradient_as_bucket_view=True)",
                "none; gradients cannot be detached in place",
                "exact: each gradient is in its bucket already, and no copy beside it is made",
            ),
            1,
        )


def _fused_optimizer(run: _Run) -> Iterator[_Tried]:
    temporary = (run.born_in == Phase.OPTIMIZER) & (run.category == Category.TEMPORARY)
    if temporary.any():
        yield _Tried(
            "fused optimizer",
            _scaled(run, (temporary, 0.0)),
            0,
            (
                "torch.optim.AdamW(…, fused=True); with foreach=False it is one parameter's size instead",
                "none: it is faster; foreach=False is slower",
                "exact: what the optimizer's step allocates and frees again is not allocated",
            ),
            1,
        )


def _accumulation(run: _Run) -> Iterator[_Tried]:
    of_step = np.isin(run.born_in, _TRAINS) & (run.category == Category.TEMPORARY)
    of_batch = np.isin(run.category, _OF_A_BATCH) | of_step
    gradient = run.category == Category.GRADIENT
    if not of_batch.any():
        return
    level = _level(run, gradient.astype(float), 0)
    largest = int(run.found.block_size[gradient].max(initial=0))
    # From the second micro-batch on all gradients are there, and each new one before it is added.
    extra = np.where(np.isin(run.phase, _TRAINS), level.max(initial=0) - level, 0)
    extra += np.where(run.phase == Phase.BACKWARD, largest, 0)
    yield _Tried(
        f"{_MICRO_BATCHES} micro-batches with accumulated gradients",
        _scaled(run, (of_batch, 1 / _MICRO_BATCHES)),
        extra,
        (
            f"split the batch in {_MICRO_BATCHES}, divide the loss by it, optimizer.step() after the last",
            "about the same time for large batches, more for small ones; BatchNorm sees smaller batches",
            "estimate: inputs, activations and temporaries of forward and backward in ratio to the batch",
        ),
        2,
    )


def _state_in_8_bits(run: _Run) -> Iterator[_Tried]:
    state = (run.category == Category.OPTIMIZER_STATE) & (run.found.size >= 4 * _SMALLEST_8BIT)
    if state.any():
        yield _Tried(
            "optimizer state in 8 bits",
            _scaled(run, (state, _BYTES_8BIT)),
            0,
            (
                "bitsandbytes.optim.AdamW8bit(…), or torchao.optim.AdamW8bit(…)",
                "quantized moments: compare the loss over the first hundred steps",
                "estimate: the state taken as 32 bits each, blocks of 256 with a scale",
            ),
            2,
        )


def _offload(run: _Run) -> Iterator[_Tried]:
    state = run.category == Category.OPTIMIZER_STATE
    temporary = (run.born_in == Phase.OPTIMIZER) & (run.category == Category.TEMPORARY)
    if state.any():
        yield _Tried(
            "optimizer on the CPU",
            _scaled(run, (state | temporary, 0.0)),
            0,
            (
                "torchao.optim.CPUOffloadOptimizer(…), or DeepSpeed ZeRO-Offload",
                "each step waits for gradients to go to the CPU and parameters to come back",
                "exact: neither state nor the optimizer's temporaries are on the GPU",
            ),
            3,
        )


def _sharded(run: _Run) -> Iterator[_Tried]:
    state = run.category == Category.OPTIMIZER_STATE
    gradient, parameter = run.category == Category.GRADIENT, run.category == Category.PARAMETER
    share = 1 / run.n_ranks
    largest = int(run.found.block_size[parameter].max(initial=0))
    stages: Sequence[tuple[str, NDArray[Any], int, str, int]] = (
        (
            "ZeRO-1: state",
            state,
            0,
            "torch.distributed.optim.ZeroRedundancyOptimizer, or DeepSpeed stage 1",
            3,
        ),
        ("ZeRO-2: state and gradients", state | gradient, 0, "DeepSpeed stage 2", 4),
        (
            "ZeRO-3/FSDP: state, gradients and parameters",
            state | gradient | parameter,
            largest,
            "torch.distributed.fsdp.fully_shard(module) for each block and the whole",
            4,
        ),
    )
    for name, rows, gathered, how, effort in stages:
        if rows.any():
            basis = f"closed form: 1/{run.n_ranks} of each stays on a rank"
            yield _Tried(
                f"{name} over {run.n_ranks} GPUs",
                _scaled(run, (rows, share)),
                gathered,
                (
                    how,
                    "communication: all-gather and reduce-scatter in each step",
                    basis
                    + (
                        ", and the largest parameter gathered; a unit of several gathers more"
                        if gathered
                        else ""
                    ),
                ),
                effort,
            )


_ALL: tuple[Callable[[_Run], Iterator[_Tried]], ...] = (
    _mixed_precision,
    _checkpointing,
    _gradients_to_none,
    _bucket_views,
    _fused_optimizer,
    _accumulation,
    _state_in_8_bits,
    _offload,
    _sharded,
)

ANALYSIS = Analysis(
    "strategies", "What else would lower the peak, and by how many bytes of this run?", strategies
)
