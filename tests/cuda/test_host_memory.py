"""Host memory beside the device's: pinned memory as torch counts it, resident memory as the kernel does."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from standin_fixtures import AFTER, BEFORE, IS_BEFORE_2_13, NEWEST_TORCH, Forks, launcher_of

from vramscope.analysis.summary import pinned_words
from vramscope.analysis.timeline import timeline
from vramscope.loading import load
from vramscope.model.marks import MarkKind

pytestmark = pytest.mark.standin
ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, time
import vramscope

def kernel_resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))

def pinned():
    stats = torch.cuda.host_memory_stats()
    names = ("allocated", "active") if "active_bytes.current" in stats else ("reserved", "allocated")
    return [stats[name + "_bytes.current"] for name in names]

if not hasattr(torch.cuda, "host_memory_stats"):
    sys.exit(77)  # before 2.7
answer = []
with vramscope.record(sys.argv[1], mode=sys.argv[2], quiet=True) as recorder:
    kept = torch.ones(10, device="cuda")
    held = torch.empty(512 << 20, dtype=torch.uint8, pin_memory=True)
    time.sleep(0.3)
    answer.append(pinned())
    del held
    touched = bytearray(b"1" * (300 << 20))
    time.sleep(0.3)
    answer += [pinned(), kernel_resident()]
"""


@pytest.mark.parametrize("mode", ["events", "counters"])
def test_pinned_and_resident_memory_are_series_of_their_own(python, tmp_path, mode):
    (tmp_path / "script.py").write_text(BEFORE + PROGRAM + AFTER.format(path=str(tmp_path / "answer.json")))
    done = python(tmp_path / "script.py", tmp_path / "run", mode, cwd=tmp_path)
    if done.returncode == 77:
        pytest.skip("this torch does not count pinned memory")
    assert done.returncode == 0, done.stderr
    (while_held, after, resident) = json.loads((tmp_path / "answer.json").read_text())
    counters = load(tmp_path / "run").recordings[0].counters
    sampled = counters.rows(counters.host_resident_bytes >= 0)

    assert while_held == [512 << 20, 512 << 20]
    assert sampled.host_pinned_bytes.max() == while_held[0]
    # Before 2.13 torch counts what is handed back as in use for ever.
    while_held[1], after[1] = (-1, -1) if IS_BEFORE_2_13 else (while_held[1], after[1])
    assert sampled.host_pinned_active_bytes.max() == while_held[1]
    assert [sampled.host_pinned_bytes[-1], sampled.host_pinned_active_bytes[-1]] == after
    # What torch has pinned it keeps; from when on a freed part counts as not in use differs by version.
    assert after[0] == 512 << 20
    # Threads that end meanwhile give back some MiB; the array alone is 300.
    assert abs(int(sampled.host_resident_bytes[-1]) - resident) < 50 << 20


SHORT_STEPS = """
import sys
import vramscope

if not hasattr(torch.cuda, "host_memory_stats"):
    sys.exit(77)  # before 2.7
with vramscope.record(sys.argv[1], quiet=True):
    weight = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    kept, answer = [], None
    for _ in range(12):
        pinned = torch.empty(9 << 20, dtype=torch.uint8, pin_memory=True)
        kept.append(pinned) if sys.argv[2] == "kept" else pinned.to("cuda", non_blocking=True)
        del pinned
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("way", ["kept", "handed back"])
def test_pinned_memory_is_sampled_in_each_of_the_first_steps(python, tmp_path, way):
    (tmp_path / "script.py").write_text(
        BEFORE + SHORT_STEPS + AFTER.format(path=str(tmp_path / "answer.json"))
    )
    done = python(tmp_path / "script.py", tmp_path / "run", way, cwd=tmp_path)
    if done.returncode == 77:
        pytest.skip("this torch does not count pinned memory")
    (recording,) = load(tmp_path / "run").recordings
    found = [each.n_bytes for each in recording.findings() if each.kind == "pinned_growth"]

    # Each of 9 MiB takes 16, and eleven come after the first step; the first sample may have one of these.
    assert found in ([[10 * 16 << 20], [11 * 16 << 20]] if way == "kept" else [[]])


PINNING = """
import random, sys, threading
import vramscope

def counted():
    stats = torch.cuda.host_memory_stats()
    return stats["active_bytes.current"], stats["allocated_bytes.current"]

def pins(n_bytes):
    return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)

def work(seed, n, peak):
    rng, kept = random.Random(seed), []
    for _ in range(n):
        if rng.random() < 0.6:
            kept.append(pins(rng.choice([1, 100, 5000, 3 << 20, 9 << 20, 65 << 20])))
        elif kept:
            given = kept.pop(rng.randrange(len(kept)))
            torch.empty(given.shape, dtype=torch.uint8, device="cuda").copy_(given, non_blocking=True)
            del given
        if rng.random() < 0.02:
            torch._C._host_emptyCache()
        if peak is not None:
            peak[:] = map(max, peak, counted())
    return kept

before = pins(7 << 20)
torch.ones(1, device="cuda")
with vramscope.record(sys.argv[1], quiet=True) as recorder:
    peak = list(counted())
    kept = work(1, 300, peak)
    if sys.argv[2] == "threads":
        threads = [threading.Thread(target=work, args=(seed, 400, None)) for seed in (2, 3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    del before
    answer = [*peak, *counted()]
if sys.argv[2] == "twice":
    paused = [pins(100 << 20), pins(50)]
    with recorder:
        del paused[0]
        torch.ones(1, device="cuda")
        answer = [*peak, *counted()]
"""


@pytest.mark.parametrize("way", ["once", "twice", "threads"])
def test_pinned_memory_by_event_equals_torchs_own_counters(tmp_path, way):
    (tmp_path / "script.py").write_text(BEFORE + PINNING + AFTER.format(path=str(tmp_path / "answer.json")))
    forks = Forks(launcher_of(NEWEST_TORCH))
    try:
        # A block that is entered while a busy disk stalls is not recorded, which is said: then once more.
        for attempt in range(5):
            run = tmp_path / f"run-{attempt}"
            done = forks.run(tmp_path / "script.py", run, way, cwd=tmp_path, variables={"PYTHONPATH": ROOT})
            if "the disk stalled" not in done.stderr:
                break
    finally:
        forks.close()
    assert done.returncode == 0, done.stderr
    *peak, in_use, held = json.loads((tmp_path / "answer.json").read_text())
    (recording,) = load(run).recordings
    pinned = recording.pinned
    totals = timeline(pinned)

    assert (totals.allocated_bytes[-1], totals.reserved_bytes[-1]) == (in_use, held)
    assert (MarkKind.GAP in pinned.marks.kind) == (way == "twice")  # what nobody saw is said
    shown = recording.summary().pinned
    assert sum(row.n_bytes for row in shown.live) == shown.peak_bytes == totals.allocated_bytes.max()
    if way == "once":
        assert [totals.allocated_bytes.max(), totals.reserved_bytes.max()] == peak
        (line,) = {row.frames[0].function for row in shown.live if row.frames}
        assert line == "pins"
    assert not {"gap", "replay_differs"} & {note.code for note in recording.notes}


REGISTERED = """
import sys, time
import vramscope

with vramscope.record(sys.argv[1], quiet=True):
    torch.ones(1, device="cuda")
    given = torch.empty(300 << 20, dtype=torch.uint8)
    torch.cuda.cudart().cudaHostRegister(given.data_ptr(), given.numel(), 0)
    held = torch.empty(9 << 20, dtype=torch.uint8, pin_memory=True)
    answer = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    time.sleep(0.3)
torch.cuda.cudart().cudaHostUnregister(given.data_ptr())
"""


def test_what_cuda_host_register_pins_is_in_the_events_and_not_in_torchs_counters(tmp_path):
    (tmp_path / "script.py").write_text(
        BEFORE + REGISTERED + AFTER.format(path=str(tmp_path / "answer.json"))
    )
    command = [launcher_of(NEWEST_TORCH), tmp_path / "script.py", tmp_path / "run"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=500)
    (recording,) = load(tmp_path / "run").recordings

    assert json.loads((tmp_path / "answer.json").read_text()) == 16 << 20  # a power of two
    assert recording.counters.host_pinned_bytes.max() == 16 << 20
    shown = recording.summary().pinned
    assert [row.n_bytes for row in shown.live] == [300 << 20, 16 << 20]
    assert "cudaHostRegister" in pinned_words(recording, shown)[1]
