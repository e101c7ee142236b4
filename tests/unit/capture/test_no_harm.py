"""A recorded program computes the same bits, on the same random numbers, as one that is not."""

import functools

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from vramscope.loading import load
from vramscope.recorder import record


def test_losses_and_random_state_are_the_same_bits(program, tmp_path):
    bare = program(5)
    with record(tmp_path / "run", quiet=True):
        recorded = program(5)

    assert recorded == bare
    assert len(load(tmp_path / "run").recordings[0].trace) > 100


def test_so_they_are_with_a_block_per_step(program, tmp_path):
    bare = program(5)
    recorder = record(tmp_path / "run", quiet=True)
    recorder.__enter__()

    def next_block():
        recorder.__exit__(None, None, None)
        recorder.__enter__()

    recorded = program(5, next_block)
    recorder.__exit__(None, None, None)

    assert recorded == bare
    assert len(load(tmp_path / "run").recordings[0].trace) > 100


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.MultiheadAttention(64, 2, batch_first=True),
        lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(),
        lambda: nn.LSTM(64, 32, 2, batch_first=True),
        lambda: nn.Bilinear(64, 64, 8),
    ],
    ids=["attention", "encoder", "lstm", "bilinear"],
)
def test_no_operator_takes_another_way(make, mode, tmp_path):
    torch.manual_seed(3)
    model, x = make(), torch.randn(3, 40, 64)
    inputs = [x] * (
        3 if isinstance(model, nn.MultiheadAttention) else 2 if isinstance(model, nn.Bilinear) else 1
    )

    def result():
        with mode():
            out = model(*inputs)
        return (out if torch.is_tensor(out) else out[0]).tolist()

    bare = result()
    with record(tmp_path / "run", quiet=True):
        recorded = result()

    assert recorded == bare


def test_upsampling_under_inference_keeps_its_rounding(tmp_path):
    x = torch.randn(2, 3, 9, 9)

    def result():
        with torch.inference_mode():
            return nn.functional.interpolate(x, scale_factor=2, mode="bilinear").tolist()

    bare = result()
    with record(tmp_path / "run", quiet=True):
        recorded = result()

    assert recorded == bare


def faked():
    with FakeTensorMode(allow_non_fake_inputs=True):
        return nn.Linear(8, 1)(torch.ones(4, 8)).shape


def exported():
    return torch.export.export(nn.Linear(8, 1), (torch.ones(4, 8),)).graph_module.code


def compiled():
    torch._dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), backend="aot_eager")
    losses = []
    for _ in range(3):
        loss = model(torch.randn(4, 8)).sum()
        loss.backward()
        losses.append(loss.item())
    return losses


def functional():
    model = nn.Linear(8, 1)
    weights = dict(model.named_parameters())
    inputs = torch.randn(4, 8)
    slopes = torch.func.grad(lambda w: torch.func.functional_call(model, w, (inputs,)).sum())(weights)
    return slopes["weight"].tolist(), torch.func.vmap(lambda x: x.sin().sum())(inputs).tolist()


def selective():
    context = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    x = torch.randn(4, 8, requires_grad=True)
    checkpoint(nn.Linear(8, 1), x, use_reentrant=False, context_fn=context).sum().backward()
    return x.grad.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "work", [faked, exported, compiled, functional, selective], ids=lambda work: work.__name__
)
def test_other_machinery_of_torch_works_as_before(work, tmp_path):
    torch.manual_seed(5)
    bare = work()
    torch.manual_seed(5)
    with record(tmp_path / "run", quiet=True):
        recorded = work()

    assert recorded == bare


def test_a_sharded_tensor_counts_what_it_holds(recorded):
    # One process that is a group of its own; DTensor wraps the tensors that hold the memory.
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.ones(64, 16)
        with recorded() as recording:
            shard = DTensor.from_local(whole[:32].clone(), mesh, [Shard(0)])
            kept = shard + shard
    finally:
        torch.distributed.destroy_process_group()

    end = len(recording.sink.trace)
    assert kept.shape == (64, 16)
    assert recording.requested_at(end) - recording.requested_at(0) == 2 * 32 * 16 * 4
