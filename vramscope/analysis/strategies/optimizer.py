"""Trials of other optimizers, and of ZeRO and FSDP, by which ranks shard what each holds a copy of."""

from collections.abc import Iterator, Sequence
from heapq import heapreplace

import numpy as np

from vramscope.allocator.settings import GRANULE
from vramscope.analysis.folding import passes_through
from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.strategies.trials import (
    SizeChange,
    StrategyInput,
    StrategyTrial,
    level_with,
    scaled,
    starts_training,
)
from vramscope.analysis.verdicts.missing import ended_short
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.units import format_share

_FUSED = ("Adam", "AdamW", "SGD")
"""Classes of torch.optim with ``fused=True`` on CUDA, in all versions since 2.1 or 2.2."""
_IN_A_LOOP = {
    "Adagrad": 2, "RMSprop": 2, "NAdam": 3, "RAdam": 2, "Adadelta": 3, "Adamax": 1, "ASGD": 1, "Rprop": 3,
}  # fmt: skip
"""Temporaries of other classes with ``foreach=False``, in multiples of the largest parameter: measured."""
WITH_8_BITS = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Lion", "LAMB", "LARS")
"""Optimizer classes that bitsandbytes has in 8 bits."""
_UNKNOWN = ""
_USUAL = "AdamW"
_SMALLEST = 4096
"""Fewest elements: bitsandbytes keeps the state of smaller tensors in 32 bits, torchao on the GPU."""
_BYTES_8BIT = 1 + 4 / 256
"""Bytes per element: one, and a scale of four for every block of 256."""
_SECOND_STATES = ("exp_avg_sq of", "max_exp_avg_sq of", "step of")


def fused_optimizer(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Remove the temporaries of the optimizer's step, for classes that have a fused version.

    Yields nothing if there are none: the optimizer is fused already.
    """
    temporary = run.in_optimizer() & np.isin(run.made_by, (*_FUSED, _UNKNOWN))
    if temporary.any():
        named = {"optimizer": _names(run, temporary)}
        yield StrategyTrial("fused_optimizer", scaled(run, (temporary, 0.0)), figures=named)


def optimizer_in_a_loop(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Update one parameter after the other, for classes without a fused version."""
    temporary = run.in_optimizer() & np.isin(run.made_by, list(_IN_A_LOOP))
    if temporary.any():
        parameter = run.category == Category.PARAMETER
        largest = int(run.found.block_size[parameter].max(initial=0))
        most = max(_IN_A_LOOP[name] for name in np.unique(run.made_by[temporary]).tolist())
        yield StrategyTrial(
            "optimizer_in_a_loop",
            scaled(run, (temporary, 0.0)),
            np.where(run.phase == Phase.OPTIMIZER, most * largest, 0),
            {"optimizer": _names(run, temporary), "most": most},
            Category.TEMPORARY,
            least=SizeChange(scaled(run, (temporary, 0.0))),
        )


def state_in_8_bits(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Keep the optimizer's state in 8 bits, as bitsandbytes does; its step allocates nothing."""
    element, classes = run.element_bytes, (*WITH_8_BITS, _UNKNOWN)
    state = (run.category == Category.OPTIMIZER_STATE) & _is_of(run, classes) & (element > 1)
    state &= run.found.size >= element * _SMALLEST
    if state.any():
        factor = scaled(run, (state, _BYTES_8BIT / element), (run.in_optimizer(), 0.0))
        yield StrategyTrial("state_in_8_bits", factor, figures={"optimizer": _names(run, state)})


def one_moment(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Use an optimizer without Adam's second moment."""
    names = np.array([*run.recording.labels.names, _UNKNOWN])
    is_second = np.array([name.startswith(_SECOND_STATES) for name in names.tolist()])
    label = np.append(run.recording.labels.name, len(names) - 1)[run.assigned.label]
    state = (run.category == Category.OPTIMIZER_STATE) & _is_of(run, ("Adam", "AdamW"))
    second = state & is_second[label]
    # State of a step that failed has no names: its lines make the first moments, then the second ones.
    unnamed = state & (run.assigned.label < 0) & (run.found.size > GRANULE)
    lines, first = np.unique(run.found.stack_id[unnamed], return_index=True)
    second |= unnamed & np.isin(run.found.stack_id, lines[first > first.min(initial=len(unnamed))])
    if second.any():
        yield StrategyTrial("one_moment", scaled(run, (second | run.in_optimizer(), 0.0)))


def offloaded(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Move the optimizer to the CPU: state and temporaries of small parameters alone stay on the GPU."""
    state = run.category == Category.OPTIMIZER_STATE
    moved = state | run.in_optimizer()
    large = moved & (run.found.size >= run.element_bytes * _SMALLEST)
    if state.any():
        # DeepSpeed offloads the small ones, too.
        yield StrategyTrial(
            "offloaded", scaled(run, (large, 0.0)), least=SizeChange(scaled(run, (moved, 0.0)))
        )


def _is_of(run: StrategyInput, classes: Sequence[str]) -> Array:
    """Return which allocations an optimizer of these classes made.

    State from before the recording counts if all optimizers of the run are of these classes.
    """
    is_before = (run.born_in != Phase.OPTIMIZER) & _classes(run).issubset(classes)
    return is_before | ((run.born_in == Phase.OPTIMIZER) & np.isin(run.made_by, classes))


def _names(run: StrategyInput, rows: Array) -> str:
    """Return the optimizer class that made most of the bytes."""
    rows = rows & (run.born_in == Phase.OPTIMIZER)
    if not rows.any():  # from before the recording
        return min(_classes(run), default=_UNKNOWN) or _USUAL
    names, at = np.unique(run.made_by[rows], return_inverse=True)
    n_bytes = np.bincount(at.reshape(-1), run.found.block_size[rows])
    return str(names[n_bytes.argmax()]) or _USUAL


def _classes(run: StrategyInput) -> set[str]:
    phases = run.lives.phases
    return {phases.names[name] for name in np.unique(phases.name[phases.phase == Phase.OPTIMIZER]).tolist()}


_SHARDS = (
    "torch/distributed/fsdp/",
    "torch/distributed/_composable/fsdp/",
    "deepspeed/runtime/zero/",
    "fairscale/",
)
"""Paths of code that shards already; a recording of one rank does not show what is left to shard."""
_SHARDING_OPTIMIZER = "ZeroRedundancyOptimizer"


def is_sharded(run: StrategyInput) -> bool:
    """Return whether parameters or state of this run are shards, by the code that requested memory."""
    if _SHARDING_OPTIMIZER in run.lives.phases.names:
        return True
    stacks = run.recording.stacks
    files = {stacks.strings[file].replace("\\", "/") for file in set(stacks.file.tolist())}
    return any(part in file for file in files for part in _SHARDS)


def sharded(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Try each stage of ZeRO; yields nothing if the run is sharded already."""
    if is_sharded(run):
        return
    state = run.category == Category.OPTIMIZER_STATE
    gradient, parameter = run.category == Category.GRADIENT, run.category == Category.PARAMETER
    share = 1 / run.n_ranks
    largest = int(run.found.block_size[parameter].max(initial=0))
    # A model is whole until it is sharded, which is after its weights were made and loaded.
    whole = level_with(run, (1 - share) * parameter)
    gathered = whole.copy()
    whole[starts_training(run) :], gathered[starts_training(run) :] = 0, largest
    # The gradient of what is gathered is whole until it is reduced.
    gathered[run.phase == Phase.BACKWARD] += int(run.found.block_size[gradient].max(initial=0))
    fullest = _fullest_share(run, parameter)
    # Without units or buckets all parameters and gradients are allocated at once, as in stage 1.
    most = SizeChange(scaled(run, (state, fullest)))
    all_of_it = state | gradient | parameter
    for kind, rows, left, extra, least in (
        ("zero_1", state, fullest, 0, 0),
        ("zero_2", state | gradient, share, 0, 0),
        ("zero_3", all_of_it, share, gathered, whole),
    ):
        if rows.any():
            # A rank steps what it has of the parameters: temporaries are shared as state is.
            shared = rows | run.in_optimizer()
            yield StrategyTrial(
                kind,
                scaled(run, (shared, left)),
                extra,
                {"ranks": run.n_ranks, "fullest": format_share(fullest, 1, 0)},
                least=SizeChange(scaled(run, (shared, share)), least),
                most=most,
                is_surely_less=True,
            )


def _fullest_share(run: StrategyInput, parameter: Array) -> float:
    """Return the share of the fullest rank where each parameter is of one rank, as torch's stage 1 has it.

    The largest parameter that is left goes to the emptiest rank: of an embedding and a head of most of the
    bytes, on four ranks, each is nearly half.
    """
    live = parameter & run.found.allocated_at(int(run.level_bytes.argmax()))
    ranks = [0] * run.n_ranks
    for size in sorted(run.found.block_size[live].tolist(), reverse=True):
        heapreplace(ranks, ranks[0] + size)
    return max(ranks) / sum(ranks) if any(ranks) else 1 / run.n_ranks


def being_made(
    recording: Recording, found: Allocations, event: int, gradients: Array
) -> tuple[str, int, int, int, bool] | None:
    """Return what an optimizer was making for each of *gradients* when the request at *event* failed.

    That is its name, the number of values, bytes done and left, and whether it is state. A line makes one for
    each gradient if all that it made of their sizes, two or more, is still there: a loop lets go of others.
    """
    phases, sizes = recording.phases, found.block_size[gradients]
    begun = np.flatnonzero((phases.phase == Phase.OPTIMIZER) & (phases.start_event <= event))
    if not len(begun) or phases.end_event[begun[-1]] <= event:
        return None
    born = (found.alloc_event >= phases.start_event[begun[-1]]) & (found.alloc_event < event)
    born &= (found.block_size > GRANULE) & np.isin(found.block_size, sizes)
    gone = born & (found.free_event >= 0) & (found.free_event <= event)
    lines, n_blocks = np.unique(found.stack_id[born], return_counts=True)
    of_state = passes_through(recording.stacks, "_init_group")
    lines = lines[(of_state[lines] | (n_blocks > 1)) & ~np.isin(lines, found.stack_id[gone])]
    name = phases.names[int(phases.name[begun[-1]])]
    is_state = bool(of_state[recording.trace.stack_id[event]])
    n_values = max(len(lines), is_state * (2 if "Adam" in name else 1))
    done = int(found.block_size[born & np.isin(found.stack_id, lines)].sum())
    left = n_values * int(sizes.sum()) - done
    return (name, n_values, done, left, is_state) if left > 0 else None


def of_whole_step(run: StrategyInput, tried: StrategyTrial) -> StrategyTrial:
    """Return the trial with the state still to come, if the recording ends while an optimizer makes it."""
    if not ended_short(run.recording):
        return tried
    failed = len(run.phase) - 2
    live = run.found.allocated_at(failed)
    made = being_made(run.recording, run.found, failed, live & (run.category == Category.GRADIENT))
    state = np.flatnonzero(live & (run.category == Category.OPTIMIZER_STATE))
    if made is None or not made[-1] or not len(state):
        return tried
    # Of each parameter it makes all values in turn, so of those to come as much stays as of those there.
    n_bytes = run.found.block_size[state]
    share = float((tried.factor[state] * n_bytes).sum() / n_bytes.sum())
    to_come = np.zeros(len(run.phase))
    to_come[-1] = made[3] * share
    least, most = (
        each and each._replace(extra_bytes=each.extra_bytes + to_come) for each in (tried.least, tried.most)
    )
    extra, is_less = tried.extra_bytes + to_come, (made[2] + made[3]) * share < made[2]
    return tried._replace(extra_bytes=extra, least=least, most=most, is_surely_less=is_less)
