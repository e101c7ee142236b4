"""Under DDP and FSDP parameters stay parameters, once; what devices send each other is communication."""

import subprocess
import sys

import pytest

from vramscope.loading import load

PROGRAM = """
import json, sys, torch, vramscope
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def ddp():
    return nn.parallel.DistributedDataParallel(network())

def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model, mesh = network(), init_device_mesh("cpu", (1,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model

def network():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

for make in (ddp, fsdp):
    with vramscope.record(make.__name__, device="simulated", quiet=True):
        model = make()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(torch.randn(128, 64)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("several")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        check=True,
        capture_output=True,
        text=True,
        cwd=directory,
    )
    return directory


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_each_byte_is_counted_once_and_known(runs, wrapper):
    (recording,) = load(runs / wrapper).recordings
    totals = recording.categories().totals

    assert totals["parameter"] == 4 * (64 * 256 + 256 + 256 * 64) + 512  # a bias of 64 takes a whole 512
    assert totals["optimizer_state"] >= 2 * totals["parameter"]
    assert totals["communication"] > 0.4 * totals["parameter"]
    assert totals.get("unknown", 0) <= 0.02 * sum(totals.values())
    assert len(recording.steps) == 3
