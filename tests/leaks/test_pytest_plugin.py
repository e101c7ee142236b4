"""The markers in a project of its own: they pass what is fine, fail what is not, and cost nothing unused."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent / "example" / "marked.py"
LINES = PROJECT.read_text(encoding="utf-8").splitlines()


@pytest.fixture(
    scope="module",
    params=["simulated", pytest.param("cuda", marks=[pytest.mark.standin, pytest.mark.exhaustive])],
)
def outcome(request, tmp_path_factory):
    """Lines of pytest's own report of the project."""
    python = sys.executable if request.param == "simulated" else request.getfixturevalue("standin")
    directory = tmp_path_factory.mktemp("project")
    (directory / "test_training.py").write_text(PROJECT.read_text(encoding="utf-8"))
    # The plugin is not named: whoever installs vramscope has it.
    command = [python, "-m", "pytest", "-rA", "--strict-markers", "-p", "no:dash"]
    done = subprocess.run(
        [*map(str, command), "-p", "no:cacheprovider", "."],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout


def test_the_project_is_run_on_the_device_asked_for(outcome, request):
    device = request.node.callspec.params["outcome"]

    assert f"PASSED test_training.py::test_device[{device}]\n" in outcome


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
    line = LINES.index("        out = self.model(torch.randn(64, 128, device=DEVICE))") + 1

    assert "memory grows by 128 KiB a step: " in outcome
    assert "outputs keeps tensors of every step on the device" in outcome
    assert f"test_training.py:{line}\n" in outcome
    assert ".detach().cpu()" in outcome


def test_a_limit_fails_with_both_figures_and_the_line(outcome):
    line = LINES.index("    torch.ones(1024, 1024, device=DEVICE)") + 1

    assert "4.00 MiB allocated at once, the limit is 2.00 MiB" in outcome, outcome
    assert f"test_training.py:{line}\n" in outcome


def test_the_plugin_loads_nothing_heavy():
    code = "import vramscope.integrations.pytest, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert {"torch", "numpy", "pyarrow"}.isdisjoint(done.stdout.split())
