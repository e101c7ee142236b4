"""Workloads run once per session, recorded and plain; every test looks at the same two runs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from standin_fixtures import NEWEST_TORCH, TORCH, Forks, launcher_of

from vramscope.loading import load
from vramscope.model.recording import Recording, Run

HERE = Path(__file__).parent
TORCHES = [TORCH] if "STANDIN_TORCH" in os.environ else [TORCH, NEWEST_TORCH]
ROOT = HERE.parents[1]
sys.path.append(str(HERE / "scripts"))

from catalogue import GROUP_OF  # noqa: E402


@dataclass(frozen=True)
class Truth:
    """One workload: what torch reported in the recorded and in the plain run, and what we recorded."""

    recorded: dict[str, Any]
    plain: dict[str, Any]
    run: Run

    @property
    def recording(self) -> Recording:
        return self.run.recordings[0]


@pytest.fixture(scope="session")
def python(forks: Forks) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python(file, arguments…, cwd=…, variables={…})`` runs a script where torch sees a device."""

    def run(
        file: Path, *arguments: object, cwd: Path, variables: dict[str, object] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return forks.run(file, *arguments, cwd=cwd, variables={"PYTHONPATH": ROOT} | (variables or {}))

    return run


@pytest.fixture(scope="session", params=TORCHES)
def truth_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Truth]:
    """``truth_of("gan")``: what is known of a workload, all of which ran already, on one torch."""

    folder = tmp_path_factory.mktemp("workloads")
    forks = Forks(launcher_of(request.param))
    script = HERE / "scripts" / "run_workloads.py"
    done = forks.run(script, folder, cwd=folder, variables={"PYTHONPATH": ROOT})
    forks.close()
    assert done.returncode == 0, done.stderr

    @cache
    def truth(name: str) -> Truth:
        for mode in ("plain", "recorded"):
            file = folder / f"{GROUP_OF[name]}-{mode}.status"
            assert file.read_text() == "0", file.with_suffix(".stderr").read_text()
        recorded, plain = (
            json.loads((folder / f"{name}.{mode}.json").read_text()) for mode in ("recorded", "plain")
        )
        return Truth(recorded, plain, load(folder / name))

    return truth


@pytest.fixture(scope="session")
def fit_runs(
    python: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of all runs that tests of ``fit`` look at; done once, by one process."""
    folder = tmp_path_factory.mktemp("fit")
    done = python(HERE / "scripts" / "fit_runs.py", folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder
