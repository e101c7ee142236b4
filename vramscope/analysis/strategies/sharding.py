"""Trials of ZeRO and FSDP: ranks of a data-parallel run shard what each holds a copy of."""

from collections.abc import Iterator

from vramscope.analysis.strategies.trials import SizeChange, StrategyInput, StrategyTrial, scaled
from vramscope.model.marks import Category

_SHARDS = (
    "torch/distributed/fsdp/",
    "torch/distributed/_composable/fsdp/",
    "deepspeed/runtime/zero/",
    "fairscale/",
)
"""Paths of code that shards already; a recording of one rank does not show what is left to shard."""
_GATHERED = ", and the largest parameter gathered; a unit of several gathers more"
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
    stages = (
        ("zero_1", state, 0),
        ("zero_2", state | gradient, 0),
        ("zero_3", state | gradient | parameter, largest),
    )
    for kind, rows, gathered in stages:
        if rows.any():
            yield StrategyTrial(
                kind,
                scaled(run, (rows, share)),
                gathered,
                {"ranks": run.n_ranks, "gathered": _GATHERED if gathered else ""},
                # Without units or buckets all parameters and gradients are allocated at once, as in stage 1.
                most=whole_gradients,
                is_surely_less=True,
            )
