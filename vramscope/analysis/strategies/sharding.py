"""Trials of ZeRO and FSDP: ranks of a data-parallel run shard what each holds a copy of."""

from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from vramscope.analysis.strategies.trials import SizeChange, StrategyInput, StrategyTrial, scaled
from vramscope.model.marks import Category

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
    whole_gradients = SizeChange(scaled(run, (state, share)))
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
            "torch.distributed.fsdp.fully_shard(module) for each block and the whole, or DeepSpeed stage 3",
            4,
        ),
    )
    for name, rows, gathered, how, effort in stages:
        if rows.any():
            basis = f"closed form: 1/{run.n_ranks} of each stays on a rank"
            yield StrategyTrial(
                f"{name} over {run.n_ranks} GPUs",
                scaled(run, (rows, share)),
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
                # Without units or buckets all parameters and gradients are allocated at once, as in stage 1.
                most=whole_gradients,
                is_surely_less=True,
            )
