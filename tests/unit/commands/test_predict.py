"""predict as a command: cards, where memory runs out, the largest size, and what Ctrl-C leaves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

MIB = 1 << 20
TRAIN = """
import sys
import torch
n = int(sys.argv[sys.argv.index("--batch") + 1])
weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
def forward():
    return torch.zeros(n, 1 << 20, device="cuda")
for step in range(9):
    kept = forward()
    weight.sum().backward()
    optimizer.step()
    del kept
    print("a word of the program")
"""
"""Each step holds 4 MiB for each of the batch, beside a weight and its gradients of 4 MiB."""


def _command(tmp_path: Path, *options: str, text: str = TRAIN) -> list[str]:
    (tmp_path / "train.py").write_text(text)
    return [sys.executable, "-m", "vramscope", "predict", *options, "train.py"]


def _run(command: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)


def test_where_memory_runs_out_is_named_with_operator_stack_and_what_it_would_need(tmp_path: Path):
    # The context of an H100 is taken to be 742 MiB: 100 remain.
    done = _run([*_command(tmp_path, "--capacity", "842MiB", "--json"), "--batch", "50"], tmp_path)

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    point = answer["out_of_memory"]
    assert answer["fits"] is False
    assert point["operator"].startswith("aten.")
    assert [(frame["line"], frame["function"]) for frame in point["frames"]] == [
        (8, "forward"),
        (10, "<module>"),
    ]
    assert point["wanted_bytes"] == 200 * MIB
    assert point["in_use_bytes"] == 4 * MIB
    assert 204 * MIB < answer["without_limit"]["peak_allocated_bytes"] < 220 * MIB
    assert {card["card"]: card["fits"] for card in answer["cards"]}["T4"] is True


def test_what_is_live_at_the_peak_adds_up_by_line_category_and_module(tmp_path: Path):
    done = _run([*_command(tmp_path, "--json"), "--batch", "50"], tmp_path)

    answer = json.loads(done.stdout)
    peak = answer["peak_allocated_bytes"]
    assert sum(row["bytes"] for row in answer["live_at_peak"]) == peak
    assert sum(answer["categories_at_peak"].values()) == peak
    assert answer["live_at_peak"][0]["where"]["line"] == 8
    assert "a word of the program" in done.stderr


def test_the_largest_batch_is_the_one_that_the_bytes_allow(tmp_path: Path):
    command = [*_command(tmp_path, "--capacity", "842MiB", "--largest", "batch", "--json"), "--batch", "3"]

    done = _run(command, tmp_path)

    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["largest"]
    # 100 MiB less the weight, its gradient and the gradient of the sum, 4 MiB each in segments of 20 MiB.
    assert found["is_exact"]
    assert found["is_monotonic"]
    assert found["does_not_fit"] == found["fits"] + 1
    assert 4 * found["fits"] <= 100 - 4
    assert 4 * found["does_not_fit"] > 100 - 3 * 20


def test_a_program_without_such_an_argument_is_refused_with_what_to_do(tmp_path: Path):
    done = _run([*_command(tmp_path, "--largest", "size"), "--batch", "3"], tmp_path)

    assert done.returncode == 2
    assert "{size}" in done.stderr


def test_a_program_that_fails_with_every_size_ends_in_its_reason(tmp_path: Path):
    text = "import torch\nraise ValueError('no such model')\n"

    done = _run([*_command(tmp_path, "--largest", "batch=4", text=text), "{batch}"], tmp_path)

    assert done.returncode == 1
    assert "no such model" in done.stdout


def test_a_program_that_kills_its_process_is_an_error_not_a_hang(tmp_path: Path):
    text = "import os, signal\nimport torch\nos.kill(os.getpid(), signal.SIGKILL)\n"

    done = _run(_command(tmp_path, text=text), tmp_path)

    assert done.returncode == 1
    assert "process ended (-9)" in done.stderr


def test_an_error_within_torch_s_engine_names_what_may_have_raised_it(tmp_path: Path):
    text = (
        "import torch\nweight = torch.ones(4, device='cuda', requires_grad=True)\n"
        "weight.register_hook(lambda gradient: 1 / 0)\n(weight * 2).sum().backward()\n"
    )

    done = _run(_command(tmp_path, text=text), tmp_path)

    assert done.returncode == 1
    assert "hook" in done.stderr.splitlines()[-1]


def test_ctrl_c_leaves_the_sizes_that_are_known_and_no_process(tmp_path: Path):
    text = TRAIN.replace("import sys\n", "import os, sys, time\n").replace(
        "weight =",
        "if n > 8:\n    open('id', 'w').write(str(os.getpid()))\n"
        "    os.rename('id', 'slow')\n    time.sleep(150)\n"
        "weight =",
    )
    command = [*_command(tmp_path, "--largest", "batch", "--json", text=text), "--batch", "4"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        while not (tmp_path / "slow").exists() and process.poll() is None:
            os.sched_yield()
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == 130, stderr
    (found,) = json.loads(stdout)["largest"]
    assert [trial["size"] for trial in found["trials"]] == [4, 8]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "slow").read_text()), 0)
