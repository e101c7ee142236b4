"""A test with a baseline fails where it takes more than the file says; --vram-update writes it."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

TEST = """
import pytest, torch

@pytest.mark.vram_limit(baseline="vram.json", tolerance={tolerance})
def test_step():
    torch.ones({elements}, 1024, 1024)
"""
MIB = 1 << 20


@pytest.fixture
def run(tmp_path):
    """``run(elements, *options)``: the report of a project whose test allocates so many times 4 MiB."""

    def run(elements, *options, tolerance=1):
        (tmp_path / "test_it.py").write_text(TEST.format(elements=elements, tolerance=tolerance))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:dash",
            "-p",
            "no:cacheprovider",
            *options,
            ".",
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)

    return run


def test_a_test_without_a_peak_in_the_file_fails_and_says_how_to_write_it(run):
    done = run(1)

    assert done.returncode == 1
    assert "vram.json has no peak of this test (simulated): pytest --vram-update" in done.stdout


def test_the_file_has_the_peak_and_the_same_test_passes(run, tmp_path):
    updated, again = run(2, "--vram-update"), run(2)
    content = json.loads((tmp_path / "vram.json").read_text())

    assert (updated.returncode, again.returncode) == (0, 0)
    assert content == {"schema": 1, "tests": {"test_it.py::test_step": {"simulated": 8 * MIB}}}


SEVERAL = """
import pytest, torch

@pytest.mark.vram_limit(baseline="vram.json", tolerance=1)
def test_far_above():
    torch.ones(3, 1024, 1024)

@pytest.mark.vram_limit(baseline="vram.json", tolerance=60)
def test_within():
    torch.ones(3, 1024, 1024)

@pytest.mark.vram_limit(baseline="vram.json", tolerance=0)
def test_below():
    torch.ones(1, 1024, 1024)
"""


def test_more_than_the_file_has_fails_beyond_the_tolerance(run, tmp_path):
    peaks = {
        f"test_several.py::test_{name}": {"simulated": 8 * MIB} for name in ("far_above", "within", "below")
    }
    (tmp_path / "vram.json").write_text(json.dumps({"schema": 1, "tests": peaks}))
    (tmp_path / "test_several.py").write_text(SEVERAL)
    done = run(2, "--deselect", "test_it.py")

    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout
    assert "12.0 MiB allocated at once, 8.00 MiB in vram.json" in done.stdout


def test_a_file_that_is_no_baseline_is_named(run, tmp_path):
    (tmp_path / "vram.json").write_text("[1]")

    assert "vram.json: no baseline" in run(1).stdout
