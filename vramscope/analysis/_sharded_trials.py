"""What if the ranks of a data-parallel run shared what each holds a copy of?"""

from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from vramscope.analysis._trials import Looked, Tried, scaled
from vramscope.model.marks import Category


def sharded(run: Looked) -> Iterator[Tried]:
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
            "torch.distributed.fsdp.fully_shard(module) for each block and the whole, or DeepSpeed stage 3",
            4,
        ),
    )
    for name, rows, gathered, how, effort in stages:
        if rows.any():
            basis = f"closed form: 1/{run.n_ranks} of each stays on a rank"
            yield Tried(
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
            )
