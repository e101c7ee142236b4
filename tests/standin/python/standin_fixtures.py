"""Fixtures of every test that runs a script under the CUDA build of torch and wants its answer."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from standin import Board

HERE = Path(__file__).parents[1]

TORCH = os.environ.get("STANDIN_TORCH", "2.13.0")
NEWEST_TORCH = "2.15.0"
"""What the twelve trainings run on as well, where no version is chosen."""
_VERSION = tuple(map(int, TORCH.split(".")[:2]))
IS_BEFORE_2_13 = _VERSION < (2, 13)
HAS_WORKSPACE_PER_PRODUCT = _VERSION >= (2, 15)
"""Whether a product of matrices requests a workspace and frees it, and no thread keeps one."""
HOME = Path(os.environ.get("STANDIN_HOME", HERE.parents[1] / ".cache" / "standin"))
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
Done = subprocess.CompletedProcess[str]


class Forks:
    """Runs scripts in forks of one process that has imported torch, which starts with the first of them."""

    def __init__(self, launcher: Path, **always: str) -> None:
        self._launcher, self._always = launcher, always
        self._server: subprocess.Popen[str] | None = None

    def run(self, file: Path, *arguments: object, cwd: Path, variables: Mapping[str, object]) -> Done:
        """Run a script like a Python of its own; every one of *variables* is one of its environment."""
        command, environment = [str(file), *map(str, arguments)], _environment(self._always | dict(variables))
        # What torch reads while it is imported needs an import of its own.
        if any(name.startswith("PYTORCH_") and value for name, value in variables.items()):
            return self._run_alone(command, cwd, environment)
        return self._run_forked(command, cwd, environment)

    def run_code(self, code: str, *, cwd: Path, variables: Mapping[str, object]) -> Done:
        """The same for a text; warnings, such as those of an old torch, are not shown."""
        file = cwd / "script.py"
        file.write_text(f"import warnings; warnings.simplefilter('ignore')\n{code}")
        return self.run(file, cwd=cwd, variables=variables)

    def close(self) -> None:
        """End the process that forks; killed where it does not end by itself."""
        if self._server is None:
            return
        try:
            self._server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
            self._server = None

    def _run_alone(self, command: list[str], cwd: Path, environment: Mapping[str, str]) -> Done:
        return subprocess.run(
            [str(self._launcher), *command],
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
        )

    def _run_forked(self, command: list[str], cwd: Path, environment: Mapping[str, str]) -> Done:
        server = self._started()
        assert server.stdin is not None
        assert server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            said = [Path(folder) / name for name in ("stdout", "stderr")]
            for file in said:
                file.touch()
            asked = {
                "file": command[0],
                "arguments": command[1:],
                "cwd": str(cwd),
                "environment": environment,
                "stdout": str(said[0]),
                "stderr": str(said[1]),
            }
            try:
                server.stdin.write(json.dumps(asked) + "\n")
                server.stdin.flush()
                status = server.stdout.readline()
            except BaseException:
                # Its answer must not be taken for that to the next script; the fork ends by its alarm.
                self._kill()
                raise
            assert status, "the process that forks is gone"
            return subprocess.CompletedProcess(command, int(status), *(file.read_text() for file in said))

    def _started(self) -> subprocess.Popen[str]:
        if self._server is None:
            command = [self._launcher, Path(__file__).parent / "forks.py"]
            self._server = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(self._always),
                text=True,
            )
        return self._server


def launcher_of(torch: str) -> Path:
    """The Python whose *torch* sees a CUDA device; skips the test where it is not built."""
    launcher = HOME / torch / "python"
    if not launcher.exists():
        pytest.skip(f"torch {torch} over the stand-in is not built: make standin TORCH={torch}")
    return launcher


@pytest.fixture(scope="session")
def standin() -> Path:
    """The launcher: a Python whose torch sees a CUDA device."""
    return launcher_of(TORCH)


@pytest.fixture(scope="session")
def forks(standin: Path) -> Iterator[Forks]:
    """Runs scripts where torch sees a device, each in a process of its own that comes up at once."""
    found = Forks(standin)
    yield found
    found.close()


@pytest.fixture(scope="session")
def plain_forks() -> Iterator[Forks]:
    """Runs scripts in this Python; each process of its own has imported torch, and sees no device."""
    pytest.importorskip("torch")
    found = Forks(Path(sys.executable), CUDA_VISIBLE_DEVICES="")
    yield found
    found.close()


@pytest.fixture
def board(standin: Path, tmp_path: Path) -> Board:
    """Control over the devices that every script of this test sees."""
    return Board(tmp_path / "board", standin.parent / "lib" / "libstandin.so")


@pytest.fixture
def run_standin(forks: Forks, tmp_path: Path) -> Run:
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
        result = forks.run(file, *arguments, cwd=Path.cwd(), variables=variables)
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(answer.read_text())

    return run


def _environment(variables: Mapping[str, object]) -> dict[str, str]:
    """Ours without what would change the devices, and with *variables*."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    return kept | {name: str(value) for name, value in variables.items()}
