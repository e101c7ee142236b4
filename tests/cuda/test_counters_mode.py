"""mode="counters" on the genuine allocator: its figures are torch's, and it leaves nothing in the program."""

import json

import pytest
from standin_fixtures import AFTER, BEFORE

from vramscope.loading import load
from vramscope.model.marks import Phase

pytestmark = pytest.mark.standin

PROGRAM = """
import sys, time
import vramscope
from torch import nn
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters())

def step(batch):
    model(torch.randn(batch, 512, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()

def tops():
    # What max_memory_allocated() says after each step; each batch is larger, so each step makes a new peak.
    found = []
    for batch in (64, 4096, 8192, 16384, 16384):
        step(batch)
        found.append(torch.cuda.max_memory_allocated())
    return found

if sys.argv[2] == "counters":
    with vramscope.record(sys.argv[1], mode="counters", quiet=True) as recorder:
        with recorder.phase("warm"):
            time.sleep(0.25)
        found = tops()
        is_recording = torch._C._cuda_isHistoryEnabled()
    hooks = nn.modules.module._global_forward_pre_hooks
    answer = [found, is_recording, len(hooks)]
else:
    answer = [tops(), False, 0]
"""


@pytest.fixture(scope="module")
def runs(python, tmp_path_factory):
    """The answers with and without us, and the recording."""
    answers = []
    folder = tmp_path_factory.mktemp("counters")
    for mode in ("plain", "counters"):
        (folder / "script.py").write_text(BEFORE + PROGRAM + AFTER.format(path=str(folder / "answer.json")))
        done = python(folder / "script.py", folder / "run", mode, cwd=folder)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads((folder / "answer.json").read_text()))
    return answers, load(folder / "run").recordings[0]


STEPWISE = """
import contextlib, sys
import vramscope
from torch import nn
mode = sys.argv[2]
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters())
recorder = contextlib.nullcontext()
if mode == "counted":
    recorder = vramscope.record(sys.argv[1], mode="counters", quiet=True)

def peaks():
    both = [torch.cuda.memory_stats()]
    if hasattr(torch.accelerator, "memory_stats"):
        both.append(torch.accelerator.memory_stats())
    return [{k: v for k, v in stats.items() if k.endswith(".peak")} for stats in both]

answer = []
pool = torch.cuda.MemPool() if hasattr(torch.cuda, "MemPool") else None

def in_a_private_pool(n_floats):
    if pool is not None:
        with torch.cuda.use_mem_pool(pool):
            torch.zeros(n_floats, device="cuda")

for step, batch in enumerate((4096, 64, 8192, 64, 128, 2048)):
    if mode == "truth":  # its peaks are those of the step
        torch.cuda.reset_peak_memory_stats()
    with recorder:
        loss = model(torch.randn(batch, 512, device="cuda")).pow(2).mean()
        in_a_private_pool((1, 9, 3, 2, 40, 1)[step] << 20)
        if step == 2 and mode != "truth":
            torch.cuda.reset_peak_memory_stats()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if mode == "truth":
        answer.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
    else:
        answer.append([peaks(), torch.cuda.max_memory_allocated()])
        if step == 3:
            torch.cuda.reset_peak_memory_stats()
"""


@pytest.fixture(scope="module")
def stepwise(python, tmp_path_factory):
    """What the program sees without us and with us, the peaks of its steps, and the recording."""
    answers = {}
    folder = tmp_path_factory.mktemp("stepwise")
    for mode in ("plain", "counted", "truth"):
        (folder / "script.py").write_text(BEFORE + STEPWISE + AFTER.format(path=str(folder / "answer.json")))
        done = python(folder / "script.py", folder / "run", mode, cwd=folder)
        assert done.returncode == 0, done.stderr
        answers[mode] = json.loads((folder / "answer.json").read_text())
    return answers, load(folder / "run").recordings[0]


def test_what_the_program_sees_of_torchs_peaks_is_unchanged(runs):
    (plain, counted), _ = runs

    assert counted[0] == plain[0]


def test_it_keeps_no_history_and_leaves_no_hook(runs):
    (_, counted), _ = runs

    assert counted[1:] == [False, 0]


def test_the_peak_of_a_step_that_made_a_new_one_is_exact(runs):
    (plain, _), recording = runs
    found = recording.sampled_peaks().per_step

    assert found.allocated_bytes.tolist()[:4] == plain[0][:4]
    assert found.is_exact.tolist()[:4] == [True] * 4


def test_the_peak_of_every_step_is_exact_though_the_program_resets_its_peaks(stepwise):
    answers, recording = stepwise
    found = recording.sampled_peaks().per_step

    assert found.allocated_bytes.tolist() == [allocated for allocated, _ in answers["truth"]]
    assert found.reserved_bytes.tolist() == [reserved for _, reserved in answers["truth"]]
    assert found.is_exact.all()


def test_the_program_sees_every_peak_of_torchs_as_without_us(stepwise):
    answers, _ = stepwise

    assert answers["counted"] == answers["plain"]


def test_the_peak_of_a_step_is_exact_without_a_new_one(runs):
    (plain, _), recording = runs
    found = recording.sampled_peaks().per_step

    assert found.is_exact.all()
    assert found.allocated_bytes[4] <= plain[0][4]


def test_steps_and_phases_are_there_and_no_events(runs):
    _, recording = runs

    assert recording.source == "counters"
    assert len(recording.trace) == 0
    assert len(recording.steps) == 5
    assert set(recording.phases.phase.tolist()) >= {
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
        Phase.USER,
    }
    assert [note.code for note in recording.notes] == ["counters_only"]


def test_the_driver_was_asked_ten_times_a_second_at_most_and_steps_by_torchs_counters(runs):
    _, recording = runs
    counters = recording.counters
    asked = counters.time_ns[counters.device_used_bytes >= 0]
    duration_s = (int(counters.time_ns[-1]) - int(counters.time_ns[0])) / 1e9

    assert 3 <= len(asked) <= 10 * duration_s + 3
    assert len(counters) > len(asked) + 2 * len(recording.phases)
