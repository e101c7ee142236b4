"""The README's story of a leak: what the command says is what the script does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "sample_traces" / "gan_retain_graph.py").read_text(encoding="utf-8").splitlines()


def leaks(*arguments):
    vramscope = Path(sys.executable).with_name("vramscope")
    command = [vramscope, "leaks", "sample_traces/gan-retain-graph", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def finding():
    (found,) = json.loads(leaks("--json"))["findings"]
    return found


def test_the_cause_is_what_the_script_does_wrong(finding):
    assert finding["cause"] == "retain_graph"
    assert any("backward(retain_graph=True)" in line for line in SCRIPT)


def test_the_holder_is_the_list_and_the_line_that_appends_to_it(finding):
    kept = finding["evidence"]["kept_at"]

    assert finding["holder"] == "history"
    assert SCRIPT[kept["line"] - 1].strip() == kept["code"] == "history.append(loss_d)"


def test_the_lines_are_those_of_the_discriminators_forward_and_its_batches(finding):
    """Of each batch its first layer saves the image, 256 KiB: the real one, the forged one, and the hidden
    layers of both."""
    lines = [SCRIPT[line["line"] - 1].strip() for line in finding["evidence"]["lines"]]

    assert sorted(line.partition(" = ")[0] for line in lines) == ["fake", "loss_d", "real"]


def test_the_growth_is_what_was_added_up_by_hand(finding):
    expected = json.loads((ROOT / "sample_traces" / "gan-retain-graph.expected.json").read_text())

    assert finding["bytes_per_step"] == expected["kept_bytes_per_step"]
