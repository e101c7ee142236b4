"""The markers in a project of its own: they pass what is fine, fail what is not, and cost nothing unused."""

import subprocess
import sys

import pytest

PROJECT = """
import pytest
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(128, 512)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.outputs = []

    def step(self, *, keep):
        out = self.model(torch.randn(64, 128))
        out.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if keep:
            self.outputs.append(out)


@pytest.fixture
def trainer():
    return Trainer()


@pytest.mark.vram_no_leak(steps=10)
def test_fine_step(trainer):
    trainer.step(keep=False)


@pytest.mark.vram_no_leak(steps=10)
def test_leaking_step(trainer):
    trainer.step(keep=True)


@pytest.mark.vram_no_leak
def test_fine_loop(trainer):
    for _ in range(12):
        trainer.step(keep=False)


@pytest.mark.vram_no_leak
def test_leaking_loop(trainer):
    for _ in range(12):
        trainer.step(keep=True)


@pytest.mark.vram_limit("2 MiB")
def test_small():
    torch.ones(256, 1024)


@pytest.mark.vram_limit("2 MiB")
def test_large():
    torch.ones(1024, 1024)


@pytest.mark.vram_limit("2 MiB")
def test_own_failure():
    assert torch.ones(2).sum() == 3


@pytest.mark.vram_no_leak(steps=3)
def test_asked_wrongly():
    pass


def test_unmarked():
    pass
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Lines of pytest's own report of the project."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "test_training.py").write_text(PROJECT)
    # The plugin is not named: whoever installs vramscope has it.
    command = [sys.executable, "-m", "pytest", "-rA", "--strict-markers", "-p", "no:dash"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "."],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout


@pytest.mark.parametrize("name", ["test_fine_step", "test_fine_loop", "test_small", "test_unmarked"])
def test_what_is_fine_passes(outcome, name):
    assert f"PASSED test_training.py::{name}\n" in outcome


@pytest.mark.parametrize(
    "name",
    ["test_leaking_step", "test_leaking_loop", "test_large", "test_own_failure", "test_asked_wrongly"],
)
def test_what_is_not_fails(outcome, name):
    assert f"FAILED test_training.py::{name} - " in outcome


def test_a_leak_fails_with_line_holder_and_advice(outcome):
    line = PROJECT.splitlines().index("        out = self.model(torch.randn(64, 128))") + 1

    assert "memory grows by 128 KiB a step: " in outcome
    assert "outputs keeps tensors of every step on the device" in outcome
    assert f"test_training.py:{line}\n" in outcome
    assert ".detach().cpu()" in outcome


def test_a_limit_fails_with_both_figures_and_the_line(outcome):
    line = PROJECT.splitlines().index("    torch.ones(1024, 1024)") + 1

    assert "4.00 MiB allocated at once, the limit is 2.00 MiB" in outcome, outcome
    assert f"test_training.py:{line}\n" in outcome


def test_the_plugin_loads_nothing_heavy():
    code = "import vramscope.integrations.pytest, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert {"torch", "numpy", "pyarrow"}.isdisjoint(done.stdout.split())
