"""The wheel, outside of the repository, in environments that have only what it asks for."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from environments import done

from vramscope._version import __version__

ROOT = Path(__file__).parents[2]
MIB = 2**20

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def test_the_wheels_only_top_level_name_is_vramscope(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.split("/")[0] for name in names} == {"vramscope", f"vramscope-{__version__}.dist-info"}


def test_the_wheel_carries_every_source_file_and_asset(wheel):
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info" not in name}
    files = [
        file for name in ("vramscope", "dashboard", "sample_traces") for file in (ROOT / name).rglob("*")
    ]
    names = {str(file.relative_to(ROOT)) for file in files if file.is_file() and file.suffix != ".pyc"}

    assert shipped == {name if name.startswith("vramscope/") else f"vramscope/{name}" for name in names}


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


def test_the_tutorials_copy_the_samples_out_of_the_package(bare, tmp_path):
    (said,) = {
        line
        for path in (ROOT / "docs").glob("tutorial*.md")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("cp -r")
    }
    done("bash", "-c", said, cwd=tmp_path, env={"PATH": f"{bare}:/usr/bin:/bin"})

    assert {path.name for path in (tmp_path / "sample_traces").iterdir()} == {
        path.name for path in (ROOT / "sample_traces").iterdir() if path.name != "__pycache__"
    }


def test_with_the_dashboard_extra_it_serves(full, serving, snapshot, tmp_path):
    command = [full / "python", "-u", full / "vramscope", "serve", snapshot, "--port", "0"]
    with serving(command, tmp_path) as server:
        assert server.poll() is None
