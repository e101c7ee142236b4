"""FSDP that gathers all blocks before the first runs is named; one that gathers block by block is not."""

import pytest

from vramscope.analysis.gathered_parameters import gathered_parameters
from vramscope.model.marks import Category, Labels, Phase, Phases
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action

MIB = 1 << 20
A, F = Action.ALLOC, Action.FREE_COMPLETED
FILE = "/lib/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param.py"


@pytest.mark.parametrize(
    ("names", "order", "n_bytes"),
    [
        (["0.w", "1.w", "2.w"], "gggaaa", [24]),
        (["0.w", "1.w", "2.w"], "gagaga", []),
        (["down.0.w", "up.0.w"], "gga", [16]),
        (["down.0.a.0.w", "down.0.b.1.w"], "gga", []),
        (["0.w"], "ga", []),
        (["head.w", "body.w"], "ggaa", []),
    ],
    ids=["root alone", "each block", "two stacks", "layers of one block", "one block", "no numbered blocks"],
)
def test_what_is_gathered_before_anything_runs(recording, names, order, n_bytes):
    stacks = StackBuilder()
    gathers = stacks.add([("init_all_gather_outputs", FILE, 1), ("main", "train.py", 9)])
    computes = stacks.add([("forward", "train.py", 3), ("main", "train.py", 9)])
    shards = [(A, (at + 1) << 32, 4 * MIB, 0) for at in range(len(names))]
    steps = [
        (A, (at + 10) << 32, 8 * MIB if kind == "g" else MIB, gathers if kind == "g" else computes)
        for at, kind in enumerate(order)
    ]
    ends = [(F, row[1], row[2], row[3]) for row in steps]
    ends += [(A, 99 << 32, 64 * MIB, computes)]  # the peak lies later, in a reduce-scatter
    n, end = len(shards), len(shards) + len(steps)
    found = recording(
        *shards,
        *steps,
        *ends,
        stacks=stacks.build(),
        labels=Labels.of(
            event=[n] * n,
            address=[row[1] for row in shards],
            category=[Category.SHARDED_PARAMETER] * n,
            name=range(1, n + 1),
            names=("", *names),
        ),
        phases=Phases.of(phase=[Phase.FORWARD], start_event=[n], end_event=[end], step=[0]),
    )

    assert [each.n_bytes // MIB for each in gathered_parameters(found)] == n_bytes
