"""The coordinates of a process come from the parameters themselves where no launcher or library has them."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import vramscope
from vramscope.capture.ranks.mesh import coordinates_in, mesh_of_parameters

SHAPE, RANK = (2, 3, 4), 17
PROGRAM = """
import sys
import torch, torch.distributed as dist, vramscope
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=17, world_size=24)
mesh = init_device_mesh("cpu", (2, 3, 4), mesh_dim_names=("pp", "dp_shard", "tp"))
part = mesh[sys.argv[2]] if sys.argv[2] else None

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weight = torch.ones(8, 8)
        weight = weight if part is None else DTensor.from_local(weight, part, [Shard(0)])
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x):
        return x * 2

with vramscope.record(sys.argv[1], device="simulated"):
    Model()(torch.ones(4))
"""


@pytest.mark.parametrize("dimension", ["dp_shard", "tp", ""])
def test_the_mesh_of_a_recording_is_that_of_its_parameters(tmp_path: Path, dimension: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), dimension]
    subprocess.run(command, check=True, timeout=120)
    (recording,) = vramscope.load(tmp_path / "run").recordings
    truth = dict(zip(("pipeline", "data", "tensor"), np.unravel_index(RANK, SHAPE), strict=True))

    assert recording.process.mesh == (truth if dimension else {})


def test_replicas_and_shards_are_counted_as_one() -> None:
    mesh = SimpleNamespace(
        mesh_dim_names=("dp_replicate", "dp_shard", "cp"), shape=(2, 4, 2), get_coordinate=lambda: [1, 3, 1]
    )

    assert coordinates_in(mesh) == {"data": 7}


def test_a_mesh_without_names_has_no_coordinates() -> None:
    assert not coordinates_in(SimpleNamespace(mesh_dim_names=None, shape=(8,), get_coordinate=lambda: [3]))
    assert mesh_of_parameters([object()]) == {}
