"""The Pythons of this machine, by version, and new environments of them with the wheel."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "MANIFEST.in",
    "vramscope",
    "dashboard",
    "sample_traces",
)
KEEPERS = (
    ("pyenv", "prefix"),
    ("uv", "python", "find", "--no-project", "--no-python-downloads"),
)
"""Commands that say where a version lies which is not on the path; pyenv names the folder around ``bin``."""


def done(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Return the finished *command*; fail, with its output, where it failed."""
    options = {"env": {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}} | options
    words = list(map(str, command))
    finished = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert finished.returncode == 0, f"{words}\n{finished.stdout}{finished.stderr}"
    return finished


def interpreter(version: str) -> Path | None:
    """Return the Python of a version such as "3.10"; None where the machine has none."""
    return next((found for found in _candidates(version) if _version_of(found) == version), None)


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys.executable)
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    for command in KEEPERS:
        if shutil.which(command[0]):
            answer = subprocess.run([*command, version], capture_output=True, text=True, check=False)
            place = Path(answer.stdout.strip() or os.devnull)
            yield place / "bin" / "python" if place.is_dir() else place


def _version_of(python: Path) -> str | None:
    """Return "3.10" of a Python that runs; a shim of a version that is not chosen does not."""
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(list(map(str, asked)), capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def build_wheel(tree: Path) -> Path:
    """Build the wheel from a source distribution, of a copy of what is shipped in the folder *tree*."""
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree)
    done(sys.executable, "-m", "build", tree, cwd=tree)
    return next((tree / "dist").glob("*.whl"))


def environment(home: Path, *wanted: object, python: object = sys.executable) -> Path:
    """Return the ``bin`` of a new environment with what is wanted, in pip's words, and what that needs."""
    done(python, "-m", "venv", "--without-pip", home)
    # From outside, and no bytecode of the 100,000 lines that nobody imports: half of pip's time.
    if importlib.util.find_spec("uv"):
        done(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", home, *wanted)
    else:
        done(sys.executable, "-m", "pip", "--python", home, "install", "--quiet", "--no-compile", *wanted)
    return home / "bin"
