"""Ways to run out of memory on the genuine allocator: each is reported with its cause and torch's figures."""

import json
import re
from pathlib import Path

import pytest

from vramscope.analysis.oom import ANALYSIS, oom
from vramscope.loading import load
from vramscope.model.finding import Finding

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-fit")]

MIB = 1 << 20
CAUSES = (
    "capacity",
    "oversize",
    "fragmentation",
    "other_process",
    "private_pool",
    "leak",
    "non_torch_growth",
    "outside_torch",
)
"""The seeds of ``scripts/oom_seeds.py`` are named after what they are."""


def the_finding(folder: Path, name: str) -> Finding:
    answer = folder / f"{name}.json"
    assert answer.exists(), (folder / f"{name}.stderr").read_text()
    (recording,) = load(folder / name).recordings
    assert ANALYSIS.findings is not None
    (finding,) = ANALYSIS.findings(oom(recording))
    return finding


@pytest.mark.parametrize("name", CAUSES)
def test_each_seeded_failure_is_given_its_cause(fit_runs, name):
    finding = the_finding(fit_runs, name)

    message = json.loads((fit_runs / f"{name}.json").read_text())
    assert finding.cause == name
    # What torch says itself: allocated, and reserved but unallocated, to two decimals.
    message_bytes = re.search(
        r"memory (\S+ \S+) is allocated by PyTorch.* and (\S+ \S+) is reserved by", message
    )
    assert message_bytes is not None, message
    allocated, unallocated = map(bytes_of, message_bytes.groups())
    rounding = 0.01 * (unit_of(message_bytes[1]) + unit_of(message_bytes[2]))
    assert finding.evidence["reserved"] == pytest.approx(allocated + unallocated, abs=rounding)
    if name != "private_pool":  # there torch counts all of the pool as allocated
        assert finding.evidence["allocated"] == pytest.approx(allocated, abs=rounding)


def test_expandable_segments_run_out_of_capacity(fit_runs):
    assert the_finding(fit_runs, "capacity-expandable").cause == "capacity"


def test_small_blocks_everywhere_keep_expandable_segments_from_giving_memory_back(fit_runs):
    finding = the_finding(fit_runs, "fragmentation-expandable")

    assert finding.cause == "fragmentation"
    # Of each 9 MiB the 7 are free: 980 of 1260.
    assert finding.evidence["free_here"] >= 140 * 7 * MIB
    assert "expandable" not in (finding.advice or "")


def test_a_failure_on_a_thread_of_autograd_is_at_the_line_that_called_backward(fit_runs):
    """The thread has no Python stack; the traceback of the error has the line."""
    finding = the_finding(fit_runs, "backward")

    assert finding.line == int((fit_runs / "backward.line").read_text())
    assert finding.function == "backward"
    assert finding.evidence["in_backward"]


UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}


def unit_of(text: str) -> int:
    return UNITS[text.split()[1]]


def bytes_of(text: str) -> float:
    return float(text.split(maxsplit=1)[0]) * unit_of(text)
