"""Every example runs, and says what its output beside it says; only the figures may differ."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "own_loop": (),
    "transformers_trainer": ("transformers", "accelerate"),
    "lightning_trainer": ("lightning",),
    "accelerate_loop": ("accelerate",),
    "ray_trainer": ("ray.train",),
    "prometheus_metrics": ("prometheus_client",),
    "opentelemetry_metrics": ("opentelemetry.sdk",),
    "mcp_client": ("mcp",),
}


ACTION = (EXAMPLES / "github-action.yml").read_text()
TRAIN = """
import torch
net = torch.nn.Linear(256, 256 * {size})
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(5):
    net(torch.ones(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("size", "code"), [pytest.param(1, 0, marks=pytest.mark.exhaustive), (2, 3)])
def test_the_action_for_github_compares_and_fails_where_the_peak_has_grown(tmp_path, size, code):
    commands = re.findall(r"run: (vramscope .*|cp .*)", ACTION)
    record, keep, compare, check = commands

    def run(command):
        command = command.replace("vramscope ", f"{sys.executable} -m vramscope ")
        quiet = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            command, shell=True, cwd=tmp_path, timeout=200, check=False, env=quiet
        ).returncode

    (tmp_path / "train.py").write_text(TRAIN.format(size=1))
    assert [run(record), run(keep)] == [0, 0]
    shutil.rmtree(tmp_path / "traces" / "run")
    (tmp_path / "train.py").write_text(TRAIN.format(size=size))

    assert [run(record), run(compare), run(check)] == [0, 0, code]
    assert (tmp_path / "memory.md").read_text().startswith("#")


def has(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def shape(text: str) -> list[str]:
    """The lines with every number as N: another version of torch allocates other sizes.

    transformers 4 prints numbers where 5 prints texts of numbers.
    """
    # DeepSpeed, which transformers imports where it is installed, logs to stdout which device it has found.
    said = [line for line in text.splitlines() if "[real_accelerator.py" not in line]
    number = r"-?\d([\d.,]*\d)?(e[+-]\d+)?"
    lines = [re.sub(f"'{number}'|{number}", "N", line) for line in said]
    return [line for line in lines if line.strip()]


def test_every_example_has_its_output_and_is_run():
    programs = {file.stem for file in EXAMPLES.glob("[a-z]*.py")}

    assert programs == set(NEEDS)
    assert {file.stem for file in EXAMPLES.glob("*.txt")} == programs


# 15 to 24 s each, most of it imports; what they show has tests of its own, beside the libraries.
SLOW = ("accelerate_loop", "lightning_trainer", "opentelemetry_metrics", "prometheus_metrics")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in SLOW)) for name in NEEDS]
)
def test_an_example_prints_what_stands_beside_it(name, tmp_path):
    missing = [package for package in NEEDS[name] if not has(package)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: make test-integrations")
    quiet = {"CUDA_VISIBLE_DEVICES": "", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )

    printed, expected = shape(done.stdout), shape((EXAMPLES / f"{name}.txt").read_text())
    if name == "ray_trainer":
        # Old versions of Ray Train print tables of their own while they train.
        printed = printed[-len(expected) :]

    assert done.returncode == 0, done.stderr
    assert printed == expected
