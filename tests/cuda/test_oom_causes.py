"""Ways to run out of memory on the genuine allocator: each is told by its cause, with torch's figures."""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramscope.analysis.oom import ANALYSIS, oom
from vramscope.load import load
from vramscope.model.finding import Finding

pytestmark = pytest.mark.standin

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

BEGIN = """
import time, vramscope
MIB = 1 << 20

def take(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")

def sampled():
    time.sleep(0.35)  # the driver is asked ten times a second

take(1)
run = vramscope.record("RUN", quiet=True)
error = ""
"""
END = """
answer = str(error)
"""

SEEDS = {
    "capacity": """
        kept = []
        try:
            with run:
                sampled()
                while True:
                    kept.append(take(100))
        except torch.OutOfMemoryError as caught:
            error = caught
    """,
    "oversize": """
        try:
            with run:
                kept = take(100)
                sampled()
                take(1600)
        except torch.OutOfMemoryError as caught:
            error = caught
    """,
    # Segments of 20 MiB with 15 and 5 each; the 15 go: three quarters of everything is free, in pieces.
    "fragmentation": """
        try:
            with run:
                pairs = [(take(7), take(2)) for _ in range(140)]
                small = [pair[1] for pair in pairs]
                del pairs
                sampled()
                take(900)
        except torch.OutOfMemoryError as caught:
            error = caught
    """,
    "other_process": """
        kept = []
        try:
            with run:
                sampled()
                while True:
                    kept.append(take(100))
        except torch.OutOfMemoryError as caught:
            error = caught
    """,
    "private_pool": """
        try:
            with run:
                pool = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(pool):
                    graph = [take(100) for _ in range(10)]
                    del graph
                kept = take(200)
                sampled()
                take(500)
        except torch.OutOfMemoryError as caught:
            error = caught
    """,
    "leak": """
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []
        try:
            with run:
                sampled()
                while True:
                    out = model(torch.randn(8192, 1024, device="cuda"))
                    out.sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    kept.append(out.detach())
        except torch.OutOfMemoryError as caught:
            error = caught
    """,
    "non_torch_growth": """
        import ctypes
        runtime = ctypes.CDLL("libcudart.so.13")
        kept = []
        try:
            with run:
                kept.append(take(100))
                sampled()
                assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(700 * MIB)) == 0
                sampled()
                while True:
                    kept.append(take(100))
        except torch.OutOfMemoryError as caught:
            error = caught
    """,
}


def failed(run_standin: Callable[..., Any], board: Any, tmp_path: Path, name: str, conf: str = "") -> str:
    """torch's message; the run is recorded in ``run``."""
    if name == "other_process":
        board.add_process(1 << 30)
    script = BEGIN.replace("RUN", str(tmp_path / "run")) + textwrap.dedent(SEEDS[name]) + END
    message = run_standin(
        script,
        board=board,
        PYTHONPATH=ROOT,
        STANDIN_TOTAL_MIB=2048,
        PYTORCH_CUDA_ALLOC_CONF=conf,
    )
    return str(message)


def the_finding(tmp_path: Path) -> Finding:
    (recording,) = load(tmp_path / "run").recordings
    assert ANALYSIS.findings is not None
    (finding,) = ANALYSIS.findings(oom(recording))
    return finding


@pytest.mark.parametrize("name", SEEDS)
def test_each_seeded_failure_is_told_by_its_cause(run_standin, board, tmp_path, name):
    message = failed(run_standin, board, tmp_path, name)

    finding = the_finding(tmp_path)

    assert finding.cause == name
    # What torch says itself: allocated, and reserved but unallocated, to two decimals.
    told = re.search(r"memory (\S+ \S+) is allocated by PyTorch.* and (\S+ \S+) is reserved by", message)
    assert told is not None, message
    allocated, unallocated = map(bytes_of, told.groups())
    rounding = 0.01 * (unit_of(told[1]) + unit_of(told[2]))
    assert finding.evidence["reserved"] == pytest.approx(allocated + unallocated, abs=rounding)
    if name != "private_pool":  # there torch counts all of the pool as allocated
        assert finding.evidence["allocated"] == pytest.approx(allocated, abs=rounding)


def test_expandable_segments_run_out_of_capacity(run_standin, board, tmp_path):
    failed(run_standin, board, tmp_path, "capacity", conf="expandable_segments:True")

    assert the_finding(tmp_path).cause == "capacity"


def test_small_blocks_everywhere_keep_expandable_segments_from_giving_memory_back(
    run_standin, board, tmp_path
):
    failed(run_standin, board, tmp_path, "fragmentation", conf="expandable_segments:True")

    finding = the_finding(tmp_path)
    assert finding.cause == "fragmentation"
    # Of each 9 MiB the 7 are free: 980 of 1260.
    assert finding.evidence["free_here"] >= 140 * 7 * MIB
    assert "expandable" not in (finding.advice or "")


UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}


def unit_of(text: str) -> int:
    return UNITS[text.split()[1]]


def bytes_of(text: str) -> float:
    return float(text.split(maxsplit=1)[0]) * unit_of(text)
