"""One rank of eight, predicted, held against torch's genuine allocator in a group that sends nothing."""

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from standin_fixtures import TORCH  # noqa: E402

from vramscope.loading import load  # noqa: E402
from vramscope.prediction import Prediction, Trial, predict  # noqa: E402
from vramscope.prediction.answering import answer_here  # noqa: E402
from vramscope.prediction.once import run_once  # noqa: E402
from vramscope.prediction.trial import DryChange  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        not torch.__version__.startswith(TORCH),
        reason="a dry run by one version of torch says nothing of another",
    ),
    pytest.mark.standin,
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped", "ignore::DeprecationWarning"),
]

PROGRAM = """
import os, torch
import torch.distributed as dist
from torch import nn

def block(d):
    return nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

class Net(nn.Module):
    def __init__(self, d=256, n=4, v=4000):
        super().__init__()
        self.e, self.h = nn.Embedding(v, d), nn.Linear(d, v)
        self.b = nn.ModuleList(block(d) for _ in range(n))

    def forward(self, ids):
        x = self.e(ids)
        for each in self.b:
            x = x + each(x)
        return nn.functional.cross_entropy(self.h(x).flatten(0, 1), ids.flatten())

def ways(kind):
    if kind == "fsdp2 hybrid":
        from torch.distributed.device_mesh import init_device_mesh
        return {"mesh": init_device_mesh("cuda", (2, 4), mesh_dim_names=("r", "s"))}
    after = {"fsdp2 kept": False, "fsdp2 by two": 2}
    return {"reshard_after_forward": after[kind]} if kind in after else {}

def sharded(kind, model, group):
    if kind.startswith("ddp") or kind == "zero":
        options = {option: True for option in kind.split()[1:]}
        return nn.parallel.DistributedDataParallel(model, device_ids=[0], process_group=group, **options)
    if kind.startswith("fsdp") and "fsdp2" not in kind:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        parts = {nn.Sequential, nn.Embedding, nn.Linear} if "part" in kind else {nn.Sequential}
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy(parts), device_id=0,
            use_orig_params=kind != "fsdp")
    from torch.distributed.fsdp import fully_shard
    for each in model.b:
        fully_shard(each, **ways(kind))
    return fully_shard(model, **ways(kind))

def train(kind, steps, group=None):
    if kind != "alone":
        dist.init_process_group("nccl")
        assert dist.get_world_size() == 8 and dist.get_rank() == 0
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = Net() if "host" in kind else Net().cuda()
    model = model if kind == "alone" else sharded(kind, model, group)
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model(torch.randint(0, 4000, (8, 256)).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

# torch's own group that sends nothing; DDP also wants the tensors that an all-reduce returns.
ALONE = """
import os
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="8")
import torch.distributed.utils, torch.nn.parallel.distributed
from torch._C._distributed_c10d import _create_work_from_future
from torch.testing._internal.distributed.fake_pg import FakeStore

def done(tensors, *_):
    future = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future)

class Alone(dist.ProcessGroup):
    def __init__(self):
        super().__init__(0, 8)
    allreduce = broadcast = allgather = lambda self, tensors, *_: done(tensors)
    def getBackendName(self):
        return "alone"

for home in (torch.distributed.utils, torch.nn.parallel.distributed):
    home._verify_param_shape_across_processes = lambda *_, **__: None
init = dist.init_process_group
dist.init_process_group = lambda _: init("fake", rank=0, world_size=8, store=FakeStore())
"""


def _genuine(run_standin: Any, kind: str, steps: int, run: Path | None = None) -> list[int]:
    record = "" if run is None else f"import vramscope\nwith vramscope.record({str(run)!r}, quiet=True): "
    found: list[int] = run_standin(
        f"{PROGRAM}\n{ALONE}\n{record}train({kind!r}, {steps}, Alone())\n"
        "answer = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]"
    )
    return found


def _predicted(kind: str, steps: int) -> Prediction:
    text = f"{PROGRAM}\ntrain({kind!r}, {steps})"
    return predict(lambda: exec(compile(text, "<program>", "exec"), {}), steps=None, ranks=8)


@pytest.mark.parametrize("kind", ["ddp", "ddp gradient_as_bucket_view", "zero"])
def test_a_rank_of_data_parallel_training_needs_what_torch_counts(run_standin: Any, kind: str):
    truth = _genuine(run_standin, kind, steps=1)

    found = _predicted(kind, steps=1)

    assert [found.peak_allocated_bytes, found.peak_reserved_bytes] == truth
    assert found.certainty == "estimate"


@pytest.mark.parametrize("option", ["static_graph", "find_unused_parameters"])
def test_a_rank_that_looks_for_unused_parameters_needs_a_map_of_them_beside(run_standin: Any, option: str):
    # The stand-in has no pinned memory, on which torch insists where it makes the map.
    allocated, reserved = _genuine(run_standin, "ddp", steps=1)

    found = _predicted(f"ddp {option}", steps=1)

    assert [found.peak_allocated_bytes, found.peak_reserved_bytes] == [allocated + 512, reserved]


@pytest.mark.parametrize(
    "kind", ["fsdp2 kept", "fsdp2 by two", "fsdp2 hybrid", "fsdp from the host", "fsdp of every part"]
)
def test_a_rank_that_shards_in_another_way_needs_what_torch_counts(run_standin: Any, kind: str):
    truth = _genuine(run_standin, kind, steps=2)

    found = _predicted(kind, steps=2)

    assert [found.peak_allocated_bytes, found.peak_reserved_bytes] == truth


def test_a_program_of_one_card_that_is_sharded_from_outside_needs_what_torch_counts(run_standin: Any):
    allocated, reserved = _genuine(run_standin, "fsdp2 from the host", steps=2)

    def program() -> None:
        exec(compile(f"{PROGRAM}\ntrain('alone', 2)", "<program>", "exec"), {})

    trial = Trial(steps=None, change=DryChange(n_cards=8))
    found = answer_here(trial, lambda one: run_once(one, program))

    assert not found.unchanged
    assert [found.peak_allocated_bytes, found.peak_reserved_bytes] == [allocated, reserved]


# A rank of eight holds, in blocks of 512 bytes: of each parameter an eighth of the rows (FSDP2), or an eighth
# of the flat parameter of each block and of the rest (FSDP1).
_OF_A_BLOCK, _OF_THE_REST = (
    ((256,), (256,), (1024, 256), (1024,), (256, 1024), (256,)),
    ((4000, 256),) * 2 + ((4000,),),
)
_SHARDS = {
    "fsdp2": [math.prod(shape) // 8 for shape in (*_OF_A_BLOCK * 4, *_OF_THE_REST)],
    "fsdp": [*[sum(map(math.prod, _OF_A_BLOCK)) // 8] * 4, sum(map(math.prod, _OF_THE_REST)) // 8],
}


@pytest.mark.parametrize("kind", ["fsdp", "fsdp2"])
def test_a_rank_of_fully_sharded_training_needs_what_torch_counts(
    run_standin: Any, tmp_path: Path, kind: str
):
    allocated, reserved = _genuine(run_standin, kind, steps=3, run=tmp_path / "run")

    found = _predicted(kind, steps=3)

    shards_bytes = sum(-(-numel * 4 // 512) * 512 for numel in _SHARDS[kind])
    for run in (tmp_path / "run", found.run):
        (recording,) = load(run).recordings
        totals = recording.categories(len(recording.trace)).totals
        assert totals["sharded_parameter"] == shards_bytes
        assert recording.categories().totals["unsharded_parameter"] > shards_bytes

    assert [found.peak_allocated_bytes, found.peak_reserved_bytes] == [allocated, reserved]
    low, high = found.range_bytes
    assert high is not None
    assert low <= allocated <= high
