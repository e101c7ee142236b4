"""What a program may do under predict, and what it is refused with one sentence."""

import functools
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

from vramscope.prediction import children, predict  # noqa: E402
from vramscope.prediction.dry.shim import pretrained  # noqa: E402
from vramscope.prediction.dry.shim.patches import Patches  # noqa: E402

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


def test_transformers_reads_each_of_its_folders_once_for_the_length_of_a_dry_run():
    read: list[str] = []
    home = ModuleType("transformers.utils.import_utils")

    def structure(folder: str) -> str:
        read.append(folder)
        return folder.upper()

    before = vars(home)["create_import_structure_from_path"] = functools.lru_cache(maxsize=1)(structure)
    patches = Patches()

    pretrained._read_once(home, patches)
    found = [vars(home)["create_import_structure_from_path"](folder) for folder in "abab"]
    patches.undo()

    assert found == ["A", "B", "A", "B"]
    assert read == ["a", "b"]
    assert vars(home)["create_import_structure_from_path"] is before


@pytest.mark.parametrize("given", [None, "active"])
def test_the_program_sees_its_own_environment_after_torch_was_imported(
    monkeypatch: pytest.MonkeyPatch, given: str | None
):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)

    with children._waiting_threads():
        during = os.environ["OMP_WAIT_POLICY"]

    assert during == (given or "passive")
    assert os.environ.get("OMP_WAIT_POLICY") == given


BY_HAND = """
import pickle, torch
model = torch.nn.Linear(256, 256).cuda()
with open("kept.pt", "wb") as file:
    torch.save(model, file)
with open("new.pt", "wb") as file:
    torch.save(model, file)
for name in ("vocabulary.pickle", "other.pickle"):
    with open(name, "wb") as file:
        pickle.dump({"a": 1}, file)
for step in range(1000):
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    print("pass", step)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None
"""


def test_a_program_that_steps_by_hand_ends_and_its_files_keep_what_they_have(tmp_path: Path):
    (tmp_path / "kept.pt").write_bytes(b"a model")
    (tmp_path / "vocabulary.pickle").write_bytes(b"an older one")
    done = _run(tmp_path, BY_HAND)

    assert json.loads(done.stdout)["ended_after"] == "64 backward passes, as it has no optimizer of torch"
    assert done.stderr.count("pass ") == 63
    assert (tmp_path / "kept.pt").read_bytes() == b"a model"
    assert not (tmp_path / "new.pt").exists()
    for name in ("vocabulary.pickle", "other.pickle"):
        assert pickle.loads((tmp_path / name).read_bytes()) == {"a": 1}


def test_a_program_that_reads_what_it_saved_gets_a_sentence(tmp_path: Path):
    done = _run(tmp_path, "import torch\ntorch.save({}, 'best.pt')\nopen('best.pt', 'r')\n")

    assert done.returncode == 1
    assert "train.py cannot run dry at train.py:3: it reads what it saved (best.pt)" in done.stderr


WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4096, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(256, 4096), torch.arange(256) % 16)
for x, y in DataLoader(data, batch_size=64, num_workers=2, pin_memory=True):
    torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_workers_of_a_data_loader_hand_their_batches_over(tmp_path: Path):
    done = _run(tmp_path, WORKERS)
    alone = _run(tmp_path, WORKERS.replace("num_workers=2, pin_memory=True", "num_workers=0"))

    assert done.returncode == 0, done.stderr
    answers = [json.loads(each.stdout) for each in (done, alone)]
    assert [each["certainty"] for each in answers] == ["checked", "checked"]
    assert answers[0]["peak_allocated_bytes"] == answers[1]["peak_allocated_bytes"] > 2 * 64 * 4096 * 4


SPAWNED = """
import sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard

def train(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(2)))
    for each in (*model, model):
        fully_shard(each)
    model.to_empty(device="cuda")
    assert str(next(model.parameters()).device) == "cuda:0" and next(model.parameters()).is_cuda
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()

if __name__ == "__main__":
    n = torch.accelerator.device_count()
    if n < 2:
        sys.exit()
    mp.spawn(train, args=(n,), nprocs=n)
"""


def test_a_program_that_starts_its_ranks_is_predicted_by_the_first(tmp_path: Path):
    several, one = _run(tmp_path, SPAWNED, "--ranks", "4"), _run(tmp_path, SPAWNED)

    assert several.returncode == 0, several.stderr
    # Two shards, their gradients, and one layer whole with its gradient.
    least = (2 + 2) * MIB + 2 * 4 * MIB
    assert least <= json.loads(several.stdout)["peak_allocated_bytes"] < 80 * MIB
    assert one.returncode == 1
    assert "put nothing on the card" in one.stderr
    assert "--ranks N" in one.stderr


def _setup(rank: int, world: int) -> None:
    torch.distributed.init_process_group("nccl", rank=rank, world_size=world)


def _rank(rank: int, world: int, folder: Path) -> None:
    _setup(rank, world)
    with (folder / "ranks").open("a") as file:
        file.write(f"{rank} of {world} in {os.getpid()}\n")
    torch.zeros(3 * MIB, dtype=torch.uint8, device=f"cuda:{rank}")
    torch.distributed.destroy_process_group()


def _processes(context: Any, folder: Path, name: str = "kwargs") -> None:
    given = [{"args": (n, 3, folder)} if name == "args" else {"args": (n, 3), "kwargs": {"folder": folder}}
             for n in range(3)]  # fmt: skip
    started = [context.Process(target=_rank, **each) for each in given]
    for each in started:
        each.start()
    for each in started:
        each.join()
    assert [each.exitcode for each in started] == [0, 0, 0]
    assert not any(each.is_alive() for each in started)


def _spawned(folder: Path) -> None:
    context = torch.multiprocessing.spawn(_rank, args=(3, folder), nprocs=3, join=False)
    while not context.join():
        pass


@pytest.mark.parametrize(
    "start",
    [
        lambda folder: _processes(torch.multiprocessing, folder, "args"),
        lambda folder: _processes(multiprocessing.get_context("spawn"), folder),
        lambda folder: torch.multiprocessing.spawn(_rank, args=(3, folder), nprocs=3),
        _spawned,
    ],
    ids=["processes of torch", "processes of a context", "spawn", "spawn without join"],
)
def test_the_first_of_the_ranks_that_a_program_starts_runs_here(start, tmp_path: Path):
    found = predict(lambda: start(tmp_path))

    assert found.peak_allocated_bytes == 3 * MIB
    assert found.certainty == "estimate"
    assert found.reasons[0].startswith("torch.multiprocessing: the first of the processes")
    assert "test_programs.py" in found.reasons[0]
    assert (tmp_path / "ranks").read_text() == f"0 of 3 in {os.getpid()}\n"


def _worker(folder: Path) -> None:
    (folder / "worker").write_text(str(os.getpid()))


def test_a_process_that_begins_no_group_is_started(tmp_path: Path):
    def program() -> None:
        torch.zeros(1000, device="cuda")
        process = multiprocessing.get_context("fork").Process(target=_worker, args=(tmp_path,))
        process.start()
        process.join()

    assert predict(program).certainty == "checked"
    assert int((tmp_path / "worker").read_text()) != os.getpid()
