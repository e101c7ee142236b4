"""What else would lower the peak, and by how many bytes of this run?

Each strategy is tried on the recording itself: every allocation is given the size that it would have, the
timeline is summed up again, and its peak is compared. What does not touch the peak is not advised, however
many bytes it saves elsewhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis._place import phases_of
from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import Allocations, lifetimes
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


class _Run(NamedTuple):
    """What every strategy looks at."""

    found: Allocations
    category: NDArray[Any]
    born_in: NDArray[Any]
    """Phase of each allocation's birth; OTHER where it pre-dates the trace."""
    phase: NDArray[Any]
    """At each instant: that of the event that led to it."""
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


def strategies(recording: Recording, n_ranks: int = 8) -> Strategies:
    """Tried on the whole recording; *n_ranks* GPUs for what shards. About 1 s per million events.

    Needs categories: of a recording that knows none nothing can be advised.
    """
    if n_ranks < 2:
        raise UsageError(f"n_ranks {n_ranks}: sharding needs at least 2")
    run = _run(recording, n_ranks)
    level = _level(run, np.ones(len(run.found)), 0)
    at = int(level.argmax())
    peak = round(float(level[at]))
    live = run.found.allocated_at(at)
    unknown = int(run.found.block_size[live & (run.category == Category.UNKNOWN)].sum())
    tried = [_outcome(run, each, peak) for make in _ALL for each in make(run)]
    advised = [each for each in tried if peak and each.saved_bytes >= WORTH_IT * peak]
    advised.sort(key=lambda each: (-each.saved_bytes / each.effort, each.effort))
    useless = tuple(each.name for each in tried if each not in advised)
    return Strategies(peak, Phase(int(run.phase[at])), tuple(advised), useless, unknown)


def _run(recording: Recording, n_ranks: int) -> _Run:
    found, n_events = lifetimes(recording), len(recording.trace)
    row = phases_of(recording.phases, n_events)
    by_event = np.append(recording.phases.phase, Phase.OTHER)[row]
    born_in = np.where(
        found.alloc_event >= 0, np.append(by_event, Phase.OTHER)[found.alloc_event], Phase.OTHER
    )
    phase = np.concatenate([[Phase.OTHER], by_event])
    return _Run(found, assign(recording, found).category, born_in, phase, n_ranks)


def _level(run: _Run, factor: NDArray[Any], extra: NDArray[Any] | int) -> NDArray[Any]:
    """Allocated bytes at each instant, if each allocation had *factor* times its size."""
    found = run.found
    size = factor * found.block_size
    change = np.zeros(len(run.phase))
    is_born, is_freed = found.free_event != -2, found.free_event >= 0
    np.add.at(change, found.alloc_event[is_born] + 1, size[is_born])
    np.add.at(change, found.free_event[is_freed] + 1, -size[is_freed])
    level: NDArray[Any] = np.cumsum(change) + extra
    return level


def _outcome(run: _Run, tried: _Tried, peak: int) -> Strategy:
    level = _level(run, tried.factor, tried.extra)
    at = int(level.argmax())
    left = round(float(level[at]))
    how, cost, basis = tried.words
    phase = Phase(int(run.phase[at]))
    return Strategy(tried.name, peak - left, left, phase, how, cost, basis, tried.effort)


def _scaled(run: _Run, *scales: tuple[NDArray[Any], float]) -> NDArray[Any]:
    """A factor for each allocation: 1 but for the rows given."""
    factor = np.ones(len(run.found))
    for rows, scale in scales:
        factor[rows] *= scale
    return factor


# ----------------------------------------------------------------------------------- the strategies


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
    _fused_optimizer,
    _accumulation,
    _state_in_8_bits,
    _offload,
    _sharded,
)

ANALYSIS = Analysis(
    "strategies", "What else would lower the peak, and by how many bytes of this run?", strategies
)
