"""The wheel, outside of the repository, in environments that have only what it asks for."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from vramscope._version import __version__

ROOT = Path(__file__).parents[2]
MIB = 2**20

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def done(*command: object, **options) -> subprocess.CompletedProcess[str]:
    """The finished command; fails the test, with its output, where it failed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment, **options
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Built from a source distribution, of a copy of the tree."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("vramscope", "dashboard"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    done(sys.executable, "-m", "build", tree, cwd=tree)
    return next((tree / "dist").glob("*.whl"))


def environment(home: Path, requirement: str) -> Path:
    """The ``bin`` of a new environment with what is asked for and what that asks for."""
    # pip from outside, and no bytecode of the 100,000 lines that nobody imports: half of the time.
    venv.create(home, with_pip=False)
    done(sys.executable, "-m", "pip", "--python", home, "install", "--quiet", "--no-compile", requirement)
    return home / "bin"


@pytest.fixture(scope="session")
def bare(wheel, tmp_path_factory) -> Path:
    """The wheel alone."""
    return environment(tmp_path_factory.mktemp("bare"), str(wheel))


@pytest.fixture(scope="session")
def full(wheel, tmp_path_factory) -> Path:
    """The wheel with its dashboard."""
    return environment(tmp_path_factory.mktemp("full"), f"{wheel}[dashboard]")


@pytest.fixture
def snapshot(tmp_path) -> Path:
    """What torch.cuda.memory._dump_snapshot writes: two tensors of 1 MiB, one freed."""
    base = 0x7F0000000000
    frames = [{"name": "forward", "filename": "/home/me/train.py", "line": 7}]

    def event(action: str, address: int, size: int) -> dict:
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames}

    def block(address: int, size: int, state: str) -> dict:
        return {
            "address": address,
            "size": size,
            "requested_size": size,
            "state": state,
            "frames": frames,
        }

    segment = {
        "device": 0,
        "address": base,
        "total_size": 20 * MIB,
        "allocated_size": 2 * MIB,
        "active_size": 2 * MIB,
        "requested_size": 2 * MIB,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [
            block(base, 2 * MIB, "active_allocated"),
            block(base + 2 * MIB, 18 * MIB, "inactive"),
        ],
    }
    trace = [
        event("segment_alloc", base, 20 * MIB),
        event("alloc", base, 2 * MIB),
        event("alloc", base + 2 * MIB, 3 * MIB),
        event("free_requested", base + 2 * MIB, 3 * MIB),
        event("free_completed", base + 2 * MIB, 3 * MIB),
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}))
    return path


def test_the_wheels_only_top_level_name_is_vramscope(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.split("/")[0] for name in names} == {"vramscope", f"vramscope-{__version__}.dist-info"}


def test_the_wheel_carries_every_source_file_and_asset(wheel):
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info" not in name}
    ours = {f"{file.relative_to(ROOT)}" for file in (ROOT / "vramscope").rglob("*.py")}
    theirs = {
        f"vramscope/{file.relative_to(ROOT)}"
        for file in (ROOT / "dashboard").rglob("*")
        if file.is_file() and (file.suffix == ".py" or "assets" in file.parts)
    }

    assert shipped == ours | theirs | {"vramscope/py.typed"}


def test_the_folder_dashboard_is_no_name_of_its_own_once_installed(bare, tmp_path):
    code = "from importlib.util import find_spec as f; print(f('dashboard'), bool(f('vramscope.dashboard')))"

    assert done(bare / "python", "-c", code, cwd=tmp_path).stdout == "None True\n"


def test_the_bare_installation_pulls_in_neither_torch_nor_the_dashboard(bare):
    shown = done(sys.executable, "-m", "pip", "--python", bare.parent, "list", "--format", "json").stdout
    listed = json.loads(shown)
    names = {package["name"].lower().replace("_", "-") for package in listed}

    assert {"numpy", "pyarrow", "rich", "vramscope"} <= names
    assert names.isdisjoint({"torch", "pandas", "dash", "plotly", "waitress"})


def test_the_bare_installation_reports_on_a_snapshot_without_torch(bare, snapshot, tmp_path):
    shown = done(bare / "vramscope", "report", snapshot, "--json", cwd=tmp_path).stdout
    (recording,) = json.loads(shown)["recordings"]

    assert recording["peak"]["allocated_bytes"] == 5 * MIB
    assert recording["end"]["allocated_bytes"] == 2 * MIB
    assert recording["end"]["reserved_bytes"] == 20 * MIB


def test_the_bare_installation_says_what_serve_needs(bare, snapshot, tmp_path):
    command = [bare / "vramscope", "serve", snapshot]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert finished.returncode == 1
    assert 'pip install "vramscope[dashboard]"' in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_the_bare_installation_exports_tables_and_says_what_a_page_needs(bare, snapshot, tmp_path):
    exported = [bare / "vramscope", "export", snapshot, "--output", tmp_path / "out"]
    done(*exported, "--to", "csv", cwd=tmp_path)
    page = subprocess.run(
        [*exported, "--force", "--to", "html"], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert (tmp_path / "out" / "rank0-device0" / "events.csv").is_file()
    assert (page.returncode, len(page.stderr.splitlines())) == (1, 1)
    assert 'pip install "vramscope[dashboard]"' in page.stderr


def test_with_the_dashboard_extra_it_serves(full, serving, snapshot, tmp_path):
    command = [full / "python", "-u", full / "vramscope", "serve", snapshot, "--port", "0"]
    with serving(command, tmp_path) as server:
        assert server.poll() is None
