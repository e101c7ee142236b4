"""Fixtures of every test that runs a script under the CUDA build of torch and wants its answer."""

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standin import Board

HERE = Path(__file__).parents[1]

TORCH = os.environ.get("STANDIN_TORCH", "2.13.0")
LAUNCHER = HERE.parents[1] / ".cache" / "standin" / TORCH / "python"
NOT_INHERITED = ("STANDIN_", "CUDA_", "PYTORCH_")

BEFORE = """
import warnings
warnings.filterwarnings("ignore")  # an old torch and a new NumPy
import torch
torch.backends.cudnn.enabled = False
"""
AFTER = """
import json, pathlib, time
pathlib.Path({path!r}).write_text(json.dumps(answer))
time.sleep(0.2)  # torch aborts at exit while autograd's thread still lets go of its last backward pass
"""

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def standin() -> Path:
    """The launcher: a Python whose torch sees a CUDA device."""
    if not LAUNCHER.exists():
        pytest.skip(f"torch {TORCH} over the stand-in is not built: make standin")
    return LAUNCHER


@pytest.fixture
def board(standin: Path, tmp_path: Path) -> Board:
    """Control over the devices that every script of this test sees."""
    return Board(tmp_path / "board", standin.parent / "lib" / "libstandin.so")


@pytest.fixture
def run_standin(standin: Path, tmp_path: Path) -> Run:
    """``run_standin(script, arguments…, STANDIN_…=…)`` runs a script and returns what it calls ``answer``.

    The script finds torch imported and cuDNN off. Every keyword is a variable of its environment. A *board*
    among the keywords is shared with it.
    """

    def run(script: str, *arguments: str, board: Board | None = None, **variables: object) -> Any:
        file, answer = tmp_path / "script.py", tmp_path / "answer.json"
        file.write_text(BEFORE + textwrap.dedent(script) + AFTER.format(path=str(answer)))
        answer.unlink(missing_ok=True)
        if board is not None:
            variables["STANDIN_BOARD"] = board.path
        result = subprocess.run(
            [standin, file, *arguments],
            env=environment(variables),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(answer.read_text())

    return run


def environment(variables: dict[str, object]) -> dict[str, str]:
    """Ours without what would change the devices, and with *variables*."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    return kept | {name: str(value) for name, value in variables.items()}
