"""Where all bytes are, on the genuine allocator and a driver that counts with it: every bar by itself."""

import json
from pathlib import Path

import pytest
from standin_fixtures import AFTER, BEFORE

from vramscope.analysis.waterfall import findings
from vramscope.loading import load

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.standin
MIB = 1 << 20
GIB = 1 << 30

PROGRAM = """
import ctypes, sys, time
import vramscope
from standin import Board
from torch import nn

cudart = ctypes.CDLL(next(l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l))
model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept, answer = [], []

def step():
    model(torch.randn(64, 1024, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.12)  # a sample at least

def raw_cuda_malloc():
    address = ctypes.c_void_p()
    assert cudart.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(512 << 20)) == 0

with vramscope.record(sys.argv[1], mode=sys.argv[2], quiet=True) as recorder:
    for index in range(16):
        if index == 4:
            raw_cuda_malloc()
        if index == 8:
            Board().add_process(1 << 30)
        if index == 12:
            kept.append(torch.empty(300 << 20, dtype=torch.uint8, device="cuda"))
            del kept[:]
            kept.append(torch.cuda.MemPool())
            with torch.cuda.use_mem_pool(kept[0]):
                kept.append(torch.empty(40 << 20, dtype=torch.uint8, device="cuda"))
            del kept[1:]
        step()
    answer = [Board().used(), torch.cuda.memory_reserved()]
"""


@pytest.fixture(scope="module", params=["events", "counters"])
def recorded(request, python, tmp_path_factory):
    """The mode, its recording, and what the board and torch reported at the end."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "script.py").write_text(BEFORE + PROGRAM + AFTER.format(path=str(folder / "answer.json")))
    done = python(folder / "script.py", folder / "run", request.param, cwd=folder)
    assert done.returncode == 0, done.stderr
    return request.param, load(folder / "run").recordings[0], json.loads((folder / "answer.json").read_text())


def test_the_bars_of_every_sample_sum_up_to_what_the_driver_counts(recorded):
    _, recording, _ = recorded
    found = recording.waterfall()

    assert len(found) > 12
    for row in range(len(found)):
        bars = {bar.name: bar.n_bytes or 0 for bar in found.bars(row)}
        rest = bars.pop("free") + bars.pop("driver")
        used = int(found.used_bytes[row])
        assert abs(sum(bars.values()) - used) <= max(used // 100, 16 * MIB)
        assert abs(sum(bars.values()) + rest - int(found.total_bytes[row])) <= max(used // 100, 16 * MIB)


def test_the_end_is_what_board_and_torch_say(recorded):
    _, recording, (used, reserved) = recorded
    found = recording.waterfall()

    assert int(found.used_bytes[found.last]) == used
    assert int(found.reserved_bytes[found.last]) == reserved


def test_raw_cuda_malloc_moves_what_is_outside_of_torch_and_nothing_else(recorded):
    _, recording, _ = recorded
    found = recording.waterfall()
    own = found.own_outside_bytes

    assert sorted(set(own.tolist())) == [own[0], own[0] + 512 * MIB]


def test_a_second_process_moves_the_bar_of_other_processes_and_nothing_else(recorded):
    _, recording, _ = recorded

    assert sorted(set(recording.waterfall().others_bytes.tolist())) == [0, GIB]


def test_freed_tensors_are_cached_and_a_pools_memory_is_its_own(recorded):
    mode, recording, _ = recorded
    found = recording.waterfall()

    if mode == "events":
        assert int(found.private_pools_bytes[found.last]) == 40 * MIB
        assert int(found.releasable_bytes[found.last]) >= 300 * MIB
        assert (found.instant >= 0).mean() > 0.8
    else:
        assert int(found.private_pools_bytes[found.last]) == -1
        assert int(found.releasable_bytes[found.last]) >= 340 * MIB


def test_both_growths_are_reported_with_their_bytes_and_torchs_own_is_not(recorded):
    _, recording, _ = recorded
    reported = {finding.kind: finding.n_bytes for finding in findings(recording.waterfall())}

    assert reported == {"non_torch_growth": 512 * MIB, "other_process": GIB}


HIDDEN = """
import sys, time
import vramscope
from standin import Board, NOT_SUPPORTED
Board().show_processes(sys.argv[2])
Board().add_process(1 << 30)
torch.ones(1 << 20, device="cuda")
with vramscope.record(sys.argv[1], mode="counters", quiet=True):
    time.sleep(0.25)
answer = 0
"""


@pytest.mark.parametrize("view", ["no bytes", "host pids", "nothing"])
def test_where_containers_and_wddm_hide_shares_they_are_none_and_given_together(run_standin, tmp_path, view):
    run_standin(HIDDEN, str(tmp_path / "run"), view, PYTHONPATH=ROOT)
    found = load(tmp_path / "run").recordings[0].waterfall()
    bars = {bar.name: bar for bar in found.bars(found.last)}

    assert bars["own_outside"].n_bytes is bars["others"].n_bytes is None
    assert bars["own_outside"].source.startswith("not available: the driver")
    assert bars["outside"].n_bytes == GIB + 500 * MIB


TWO_DEVICES = """
import sys, time
import vramscope
held = torch.ones(100 << 20, dtype=torch.uint8, device="cuda")
with vramscope.record(sys.argv[1], mode="counters", quiet=True):
    time.sleep(0.25)
answer = torch.cuda.memory_reserved()
"""


def test_the_device_is_found_by_its_uuid_where_the_numbers_differ(run_standin, tmp_path):
    reserved = run_standin(
        TWO_DEVICES,
        str(tmp_path / "run"),
        STANDIN_DEVICES=3,
        STANDIN_NVML_REVERSED=1,
        CUDA_VISIBLE_DEVICES="2",
        PYTHONPATH=ROOT,
    )
    found = load(tmp_path / "run").recordings[0].waterfall()

    assert int(found.used_bytes[found.last]) == reserved + 500 * MIB
