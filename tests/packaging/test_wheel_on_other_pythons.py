"""The wheel says on other Pythons what it says on this one, whose answers all other tests check.

Two of them here, the oldest and a new one; ``make test-matrix`` names all of them, and adds the dashboard.
"""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from environments import done, environment, interpreter

MIB = 2**20
SAMPLES = Path(__file__).parents[2] / "sample_traces"
RUNS = ("transformer", "gan-retain-graph", "transformer-cuda", "fleet")
CHOSEN = os.environ.get("MATRIX_PYTHONS", "").split()
WORDS = ("report gan-retain-graph --json", "ranks fleet", "leaks gan-retain-graph")
MORE_WORDS = (
    "report transformer",
    "fit transformer-cuda --capacity 24GiB,40GiB",
    "info transformer-cuda",
    "check transformer --max-peak 20GiB",
    "diff transformer transformer-cuda",
    "--help",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("wheel"),
    pytest.mark.parametrize("version", CHOSEN or ["3.10", "3.13"], scope="session"),
]
with_dashboard = pytest.mark.skipif(not CHOSEN, reason="with the dashboard: make test-matrix")


@pytest.fixture(scope="session")
def made(wheel, tmp_path_factory, version):
    """``made(extra)``: the ``bin`` of an environment of this Python with the wheel, made once."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    homes: dict[str, Path] = {}

    def make(extra: str = "") -> Path:
        if extra not in homes:
            homes[extra] = environment(tmp_path_factory.mktemp("there"), f"{wheel}{extra}", python=python)
        return homes[extra]

    return make


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """A folder with the sample recordings, whose summaries may be written anew."""
    folder = tmp_path_factory.mktemp("runs")
    for name in RUNS:
        shutil.copytree(SAMPLES / name, folder / name)
    # Ranks are compared by their summaries alone; one that cannot be read there is not made again from these.
    for events in folder.glob("fleet/rank*/events-*"):
        events.unlink()
    return folder


@cache
def printed_here(folder: Path, words: str) -> str:
    return done(Path(sys.executable).with_name("vramscope"), *words.split(), cwd=folder).stdout


@pytest.mark.parametrize("words", WORDS + MORE_WORDS * bool(CHOSEN))
def test_a_command_prints_there_what_it_prints_here(made, runs, words):
    there = done(made() / "vramscope", *words.split(), cwd=runs).stdout

    assert there == printed_here(runs, words)


def test_a_snapshot_has_there_the_peak_that_was_counted_by_hand(made, snapshot, tmp_path):
    shown = done(made() / "vramscope", "report", snapshot, "--json", cwd=tmp_path).stdout
    (recording,) = json.loads(shown)["recordings"]

    assert recording["peak"]["allocated_bytes"] == 5 * MIB


def test_the_bare_installation_says_there_what_a_page_needs(made, runs, tmp_path):
    page = tmp_path / "page.html"
    command = [made() / "vramscope", "export", "transformer", "--to", "html", "--output", page]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=runs)

    assert (finished.returncode, len(finished.stderr.splitlines())) == (1, 1)
    assert 'pip install "vramscope[dashboard]"' in finished.stderr


@with_dashboard
def test_with_the_dashboard_a_page_is_written_there(made, runs, tmp_path):
    page = tmp_path / "page.html"
    done(
        made("[dashboard]") / "vramscope", "export", "transformer", "--to", "html", "--output", page, cwd=runs
    )

    assert "<title>transformer" in page.read_text()
    assert '<script type="application/json" id="figures">' in page.read_text()


@with_dashboard
def test_with_the_dashboard_it_serves_there(made, serving, runs):
    there = made("[dashboard]")
    with serving([there / "python", "-u", there / "vramscope", "serve", runs, "--port", "0"], runs) as server:
        assert server.poll() is None
