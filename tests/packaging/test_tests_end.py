"""No test hangs: a wait that never ends is ended, and what the test started goes with it."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LONGEST_S = 300
HANGING = """
from pathlib import Path

def test_hangs(started):
    with started(["sleep", "1000"]) as process:
        Path("pid").write_text(str(process.pid))
        process.wait()

def test_reads_what_never_comes(started):
    with started(["sleep", "1000"], longest_s=1) as process:
        assert process.stdout.read() == ""
        assert process.wait() < 0
"""


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )


def test_a_test_that_hangs_fails_and_ends_what_it_started(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    config = ("-c", TESTS.parent / "pyproject.toml", "--rootdir", tmp_path, "-p", "conftest")
    done = run(sys.executable, "-m", "pytest", *config, "--timeout=3", "test_hanging.py", cwd=tmp_path)

    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout" in done.stdout
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_every_test_has_a_time_limit(pytestconfig) -> None:
    seconds = float(pytestconfig.getini("timeout"))

    assert 0 < seconds <= 600
    assert f"each fails after {seconds:.0f} seconds" in (TESTS.parent / "CONTRIBUTING.md").read_text()


def test_ctrl_c_ends_a_server_also_where_the_tests_run_without_a_terminal() -> None:
    chosen = TESTS / "unit/dashboard/test_command.py"
    name = f"{chosen}::test_the_command_serves_until_it_is_interrupted"
    ignored = 'trap "" INT; exec "$0" -m pytest -q -p no:cacheprovider "$1"'  # what nohup and CI runners do
    done = run("sh", "-c", ignored, sys.executable, name, cwd=TESTS.parent)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.xdist_group("kept together")
def test_groups_run_in_one_worker(request):
    """Fixtures of a group take minutes; pytest 9.2 with pytest-xdist 3.8 makes them once in every worker."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not distributed by groups")
    assert request.node.nodeid.endswith("@kept together")
