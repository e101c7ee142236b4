"""What a program may do under predict, and what it is refused with one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

MIB = 1 << 20


def _run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "vramscope", "predict", "--json", *options, "train.py"]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder, check=False)


GROUP = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"


def test_a_process_group_without_a_number_of_ranks_is_one_sentence(tmp_path: Path):
    done = _run(tmp_path, GROUP)

    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "--ranks" in done.stderr


DATA_PARALLEL = """
import os, torch
import torch.distributed as dist
dist.init_process_group("nccl", init_method="tcp://10.0.0.1:29500")
assert (os.environ["RANK"], os.environ["WORLD_SIZE"], dist.get_world_size()) == ("0", "4", 4)
model = torch.nn.Linear(1024, 1024, bias=False).cuda(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
"""


def test_a_rank_is_predicted_alone_with_the_bucket_of_its_gradients(tmp_path: Path):
    done = _run(tmp_path, DATA_PARALLEL, "--ranks", "4", "--card", "A100 40")

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    # Weight, gradient and bucket, and the gradient that the next backward makes; two workspaces of cuBLAS.
    least = 3 * 4 * MIB + 2 * 8_519_680
    assert least <= answer["peak_allocated_bytes"] <= least + 5 * MIB
    assert answer["certainty"] == "estimate"


# As transformers has it: the program names a model of the hub, and weights would be fetched.
HUB = """
import torch

class Config:
    dtype = torch.bfloat16
    @classmethod
    def from_pretrained(cls, name):
        return cls()

class PreTrainedModel(torch.nn.Module):
    config_class = Config
    @classmethod
    def from_pretrained(cls, name, **options):
        raise RuntimeError("weights are fetched")
    def save_pretrained(self, folder):
        raise RuntimeError("weights are written")

class Model(PreTrainedModel):
    def __init__(self, config):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8192, 8192))
"""


def test_a_pretrained_model_is_built_without_its_weights(tmp_path: Path):
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "modeling_utils.py").write_text(HUB)
    program = (
        "import torch\nfrom transformers.modeling_utils import Model\n"
        "model = Model.from_pretrained('org/model', device_map='auto')\n"
        "assert model.weight.is_cuda and model.weight.dtype == torch.bfloat16 and not model.training\n"
        "model.save_pretrained('here')\n"
    )

    done = _run(tmp_path, program)

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["peak_allocated_bytes"] == 8192 * 8192 * 2
    assert answer["certainty"] == "estimate"
    assert "train.py:3" in answer["reasons"][0]


def test_a_checkpoint_is_read_by_its_shapes_and_lies_where_the_program_wants_it(tmp_path: Path):
    torch.save({"weight": torch.zeros(1024, 1024), "step": 7}, tmp_path / "last.pt")
    program = (
        "import torch\n"
        "state = torch.load('last.pt', map_location='cuda')\n"
        "assert state['step'] == 7 and state['weight'].is_cuda\n"
        "model = torch.nn.Linear(1024, 1024, bias=False).cuda()\n"
        "model.load_state_dict({'weight': state['weight']})\n"
        "torch.save(model.state_dict(), 'next.pt')\n"
    )

    done = _run(tmp_path, program)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak_allocated_bytes"] == 2 * 4 * MIB
    assert not (tmp_path / "next.pt").exists()
