"""record(every=N) on the genuine allocator: peaks of all steps are torch's, steps with events are whole."""

import json

import numpy as np
import pytest
from standin_fixtures import AFTER, BEFORE

from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.analysis.fit import fit
from vramscope.analysis.fit.answer import FitVerdict, Target
from vramscope.analysis.summary import summarize
from vramscope.loading import load
from vramscope.model.marks import MarkKind
from vramscope.model.snapshot import BlockState
from vramscope.model.trace import Action

pytestmark = pytest.mark.standin

PROGRAM = """
import contextlib, sys, threading
import vramscope
from torch import nn

mode = sys.argv[2]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept, answer = [], []

def step(number):
    x = torch.randn(64 * (1 + number * 7 % 11), 256, device="cuda")
    loss = model(x).pow(2).mean()
    if number > 30 and number % 7 == 3 and mode != "truth":  # the program's own peaks, of some steps
        torch.cuda.reset_peak_memory_stats()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.zeros(10_000, device="cuda"))
    return float(loss.detach())

recorder = contextlib.nullcontext()
asked = []
if mode.startswith("traced"):
    import tracemalloc
    count = torch._C._cuda_memoryStats
    def counted(device):
        asked.extend([1] * (threading.current_thread() is threading.main_thread()))
        return count(device)
    torch._C._cuda_memoryStats = counted
    tracemalloc.start()
if mode in ("full", "every", "auto", "traced", "traced whole"):
    every = {"full": None, "every": 8, "auto": "auto", "traced": None, "traced whole": 1}[mode]
    recorder = vramscope.record(sys.argv[1], quiet=True, every=every)
elif mode == "counters":
    recorder = vramscope.record(sys.argv[1], quiet=True, mode="counters")
with recorder:
    for number in range(66):
        if mode == "truth":
            torch.cuda.reset_peak_memory_stats()
        loss = step(number)
        answer.append([loss, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
answer.append(torch._C._cuda_isHistoryEnabled())
if mode.startswith("traced"):  # what the program asks by itself left out
    print((len(asked) - 66 * 2) / 66)
"""
OFTEN = [0, 1, *range(8, 66, 8)]
TWO = """
def beside():  # trains, and is then there without doing anything
    other = nn.Linear(64, 64).cuda()
    other(torch.randn(8, 64, device="cuda")).sum().backward()
    has_trained.set()
    may_end.wait()

has_trained, may_end = threading.Event(), threading.Event()
thread = threading.Thread(target=beside)
def step(number, alone=step):
    if number == 20:
        thread.start()
        has_trained.wait()
    if number == 40:
        may_end.set()
        thread.join()
    return alone(number)
"""


def test_the_peak_of_a_step_beside_another_training_is_called_a_lower_bound(python, tmp_path):
    before, after = PROGRAM.split("recorder = contextlib.nullcontext()")
    program = f"import threading\n{before}{TWO}\nrecorder = contextlib.nullcontext(){after}"
    (tmp_path / "script.py").write_text(BEFORE + program + AFTER.format(path=str(tmp_path / "answer.json")))
    answers = {}
    for mode in ("truth", "every"):
        done = python(tmp_path / "script.py", tmp_path / mode, mode, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        answers[mode] = json.loads((tmp_path / "answer.json").read_text())
    (recording,) = load(tmp_path / "every").recordings
    found = recording.step_peaks().per_step
    truth = np.array([peak for _, peak, _ in answers["truth"][:-1]])

    # A step that begins or ends beside the other thread; 24 and 32 have all their events.
    beside = [number for number in range(20, 40) if number not in OFTEN]
    assert np.flatnonzero(found.is_lower_bound).tolist() == beside
    is_exact = ~found.is_lower_bound
    assert found.allocated_bytes[is_exact].tolist() == truth[is_exact].tolist()
    assert (found.allocated_bytes[beside] < truth[beside]).all()
    assert [step.index for step in summarize(recording).steps if not step.is_exact] == beside


@pytest.fixture(scope="module")
def runs(python, tmp_path_factory):
    """The answers of each way to run the program, and the recordings."""
    folder = tmp_path_factory.mktemp("every")
    answers, found = {}, {}
    for mode in ("plain", "truth", "full", "every", "auto", "counters", "traced", "traced whole"):
        (folder / "script.py").write_text(BEFORE + PROGRAM + AFTER.format(path=str(folder / "answer.json")))
        done = python(folder / "script.py", folder / mode, mode, cwd=folder)
        assert done.returncode == 0, done.stderr
        answers[mode] = json.loads((folder / "answer.json").read_text())
        answers[f"{mode} asked"] = done.stdout
        if (folder / mode).exists():
            (found[mode],) = load(folder / mode).recordings
    return answers, found


@pytest.mark.parametrize("mode", ["every", "auto", "counters", "traced"])
def test_the_peaks_of_every_step_are_those_of_a_run_that_resets_them(runs, mode):
    answers, found = runs
    peaks = (found[mode].sampled_peaks if mode == "counters" else found[mode].step_peaks)().per_step

    assert peaks.allocated_bytes.tolist() == [row[1] for row in answers["truth"][:-1]]
    assert peaks.reserved_bytes.tolist() == [row[2] for row in answers["truth"][:-1]]


def test_peaks_of_all_four_quantities_and_of_phases_are_those_of_all_events(runs):
    _, found = runs
    every, full = (found[mode].step_peaks() for mode in ("every", "full"))

    for name in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"):
        assert getattr(every.per_step, name).tolist() == getattr(full.per_step, name).tolist()
    of_full = {(s, p): n for s, p, n in _rows(full.per_phase)}
    shared = [(of_full[s, p], n) for s, p, n in _rows(every.per_phase) if (s, p) in of_full]
    assert len(shared) > 4 * len(full.per_step)
    assert all(wanted == n_bytes for wanted, n_bytes in shared)


def _rows(peaks):
    return zip(peaks.step.tolist(), peaks.phase.tolist(), peaks.allocated_bytes.tolist(), strict=True)


def test_the_events_of_a_step_are_those_of_a_recording_of_all_steps(runs):
    _, found = runs
    every, full = found["every"], found["full"]

    for number in OFTEN:
        mine, whole = (_events(each, number) for each in (every, full))
        assert mine == whole, number


def _events(recording, number):
    start, end = recording.steps.start_event[number], recording.steps.end_event[number]
    trace = recording.trace.rows(slice(start, end))
    stacks = [recording.stacks.frames(each) for each in trace.stack_id.tolist()]
    return [*zip(trace.action.tolist(), trace.size.tolist(), trace.block_size.tolist(), stacks, strict=True)]


def test_events_switch_on_and_off_between_steps_and_most_steps_have_none(runs):
    _, found = runs
    marks = found["every"].marks
    value = marks.value[marks.kind == MarkKind.EVENTS].tolist()

    assert value == [0, 1] * (len(value) // 2)
    assert len(found["every"].trace) < len(found["full"].trace) / 4


def test_every_state_follows_from_the_events(runs):
    _, found = runs

    assert {note.code for note in found["every"].notes} == {"some_steps"}
    assert found["every"].timeline().allocated_bytes[-1] == found["full"].timeline().allocated_bytes[-1]


def test_a_block_without_a_line_was_allocated_in_a_step_without_events(runs):
    _, found = runs
    every = found["every"]
    bare = [frames for frames in map(every.stacks.frames, every.trace.stack_id.tolist()) if not frames]
    born = every.trace.rows(every.trace.action == Action.ALLOC)

    assert bare
    assert np.count_nonzero(born.size == 40_000) >= 60


def test_the_leak_has_its_line_and_its_rate_per_step(runs):
    _, found = runs
    (every,), (full,) = (found[mode].leaks().leaks for mode in ("every", "full"))

    assert every.lines[0].frame == full.lines[0].frame
    assert every.bytes_per_step == full.bytes_per_step == 40_448


def test_auto_has_the_leak_and_few_steps(runs):
    _, found = runs
    auto, full = found["auto"], found["full"]
    (leak,), (wanted,) = auto.leaks().leaks, full.leaks().leaks

    assert leak.lines[0].frame == wanted.lines[0].frame
    assert leak.bytes_per_step == pytest.approx(wanted.bytes_per_step, rel=0.02)
    assert len(auto.trace) < len(full.trace) / 2


def test_what_the_program_sees_is_unchanged(runs):
    answers, _ = runs

    assert answers["every"] == answers["auto"] == answers["counters"] == answers["plain"]
    assert answers["traced"] == answers["traced whole"] == answers["plain"]


@pytest.mark.parametrize(("mode", "codes"), [("traced", {"some_steps"}), ("traced whole", set())])
def test_under_tracemalloc_few_of_torchs_slow_dictionaries_are_made(runs, mode, codes):
    """They take 350 µs each then, and the program waits for them: one or two a step, not ten as without."""
    answers, found = runs

    assert float(answers[f"{mode} asked"]) < 2.5
    told = {note.code for note in found[mode].notes} - {"holders_incomplete"}  # it takes longer, too
    assert told == {"tracemalloc"} | codes


def test_under_tracemalloc_marks_have_their_places_by_time(runs):
    _, found = runs
    places = []
    for each in (found["full"], found["traced whole"]):
        marks = each.marks.rows(np.isin(each.marks.kind, (MarkKind.PHASE_BEGIN, MarkKind.PHASE_END)))
        places.append(list(zip(marks.event.tolist(), marks.kind.tolist(), marks.phase.tolist(), strict=True)))

    assert places[0] == places[1]


def test_the_verdict_is_not_that_it_fits_or_that_nothing_differs(runs):
    _, found = runs
    verdicts = found["every"].verdicts()

    assert verdicts.peak_is_exact
    assert [each.code for each in verdicts.missing] == ["some_steps"]


def test_fit_decides_by_torchs_peak_of_all_steps(python, tmp_path):
    program = PROGRAM.replace("number > 30", "number > 99")  # none resets torch's peaks
    (tmp_path / "script.py").write_text(BEFORE + program + AFTER.format(path=str(tmp_path / "answer.json")))
    done = python(tmp_path / "script.py", tmp_path / "run", "auto", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *_, (_, _, most_bytes), _ = json.loads((tmp_path / "answer.json").read_text())
    (recording,) = load(tmp_path / "run").recordings
    found = fit(recording)
    enough, little = (Target("", most_bytes + found.outside_bytes + more) for more in (most_bytes // 20, -1))

    assert found.ending == "not every step has events"
    assert found.recorded_peak_bytes == most_bytes
    assert found.placed[0].verdict is found.recorded_verdict(enough) is FitVerdict.FITS
    assert found.recorded_verdict(little) is not FitVerdict.FITS


def test_fit_decides_nothing_where_the_program_resets_torchs_peaks(runs):
    _, found = runs

    assert fit(found["auto"]).placed[0].verdict is FitVerdict.UNKNOWN


KEPT = """
import sys
import vramscope

kind, answer = sys.argv[2], []
weight = torch.ones(256, 256, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-6)
held = {"x": torch.randn(64, 256, device="cuda")}
with vramscope.record(sys.argv[1], quiet=True, every=8):
    for number in range(90):
        if kind == "comes again":
            held["x"] = torch.randn(64 * (1 + number * 7 % 11), 256, device="cuda")
        else:
            held["x"] = torch.cat([held["x"], torch.randn(64, 256, device="cuda")])
        (held["x"] @ weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("kind", ["comes again", "gets longer"])
def test_what_gets_longer_in_the_steps_with_events_is_held_against_all_steps(python, tmp_path, kind):
    """A length that comes again every eleven steps is longer in each eighth."""
    (tmp_path / "script.py").write_text(BEFORE + KEPT + AFTER.format(path=str(tmp_path / "answer.json")))
    done = python(tmp_path / "script.py", tmp_path / "run", kind, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (recording,) = load(tmp_path / "run").recordings

    found = recording.leaks()

    assert bool(found.leaks or found.batch) == (kind == "gets longer")


FAILS = """
import sys
import vramscope

answer = []
wide = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([wide], lr=1e-6)

def too_much():
    return torch.empty(1 << 46, device="cuda")

def in_backward():
    # The gradient of the row has the shape of the whole, 4 TiB, and is made by autograd's thread.
    wide.expand(1 << 20, 1 << 20)[0].sum().backward()

with vramscope.record(sys.argv[1], quiet=True, every=8):
    for number in range(20):
        (wide * 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        try:
            number == 13 and globals()[sys.argv[2]]()
        except torch.OutOfMemoryError:
            answer.append(number)
"""


@pytest.mark.parametrize(
    ("function", "innermost"), [("too_much", ["too_much", "<module>"]), ("in_backward", [])]
)
def test_what_fails_between_steps_with_events_has_its_line_and_ends_nothing(
    python, tmp_path, function, innermost
):
    (tmp_path / "script.py").write_text(BEFORE + FAILS + AFTER.format(path=str(tmp_path / "answer.json")))
    done = python(tmp_path / "script.py", tmp_path / "run", function, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answer.json").read_text()) == [13]
    (recording,) = load(tmp_path / "run").recordings

    (stack,) = recording.trace.stack_id[recording.trace.action == Action.OOM].tolist()

    assert [frame.function for frame in recording.stacks.frames(stack)][:2] == innermost
    assert len(recording.steps) == 20
    assert not [note.text for note in recording.notes if "stopped" in note.text]


MOVES = """
import random, sys
import vramscope

def now():
    segments = torch.cuda.memory_snapshot()
    blocks = [
        [block["address"], block["size"], block["requested_size"], block["state"]]
        for segment in segments for block in segment["blocks"] if block["state"] != "inactive"
    ]
    return sorted(blocks), sorted([each["address"], each["total_size"]] for each in segments)

rng, held, answer = random.Random(int(sys.argv[2])), [], []
side, pool = torch.cuda.Stream(), torch.cuda.MemPool()
with vramscope.record(sys.argv[1], quiet=True, every=3) as recorder:
    for number in range(60):
        with recorder.phase("forward"):
            for _ in range(rng.randrange(40)):
                if held and rng.random() < 0.5:
                    del held[rng.randrange(len(held))]
                else:
                    size = rng.choice((100, 5_000, 300_000, 1_500_000, 9_000_000, 30_000_000))
                    with torch.cuda.stream(side if rng.random() < 0.2 else torch.cuda.current_stream()):
                        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                    if rng.random() < 0.05:
                        held[-1].record_stream(side)
            if rng.random() < 0.1:
                torch.cuda.empty_cache()
            if number in (20, 21, 30):
                with torch.cuda.use_mem_pool(pool):
                    held.append(torch.empty(400_000, device="cuda"))
        was_on = torch._C._cuda_isHistoryEnabled()
        recorder.step()
        if torch._C._cuda_isHistoryEnabled() and not was_on:
            answer.append(now())
"""


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_stretch_begins_with_the_blocks_and_segments_that_torch_has_then(python, tmp_path, conf, seed):
    (tmp_path / "script.py").write_text(BEFORE + MOVES + AFTER.format(path=str(tmp_path / "answer.json")))
    variables = {"PYTORCH_CUDA_ALLOC_CONF": conf, "STANDIN_EVENT_DELAY": "3"}
    done = python(tmp_path / "script.py", tmp_path / "run", str(seed), cwd=tmp_path, variables=variables)
    assert done.returncode == 0, done.stderr
    (recording,) = load(tmp_path / "run").recordings
    marks = recording.marks
    begins = marks.event[(marks.kind == MarkKind.EVENTS) & (marks.value == 1)].tolist()
    answers = json.loads((tmp_path / "answer.json").read_text())
    assert len(begins) - 1 <= len(answers) >= 19  # the end of the recording begins one more

    for event, (blocks, segments) in zip(begins, answers, strict=False):
        state = state_at(recording.trace, recording.initial, event, Settings())
        used = state.blocks.rows(state.blocks.state != BlockState.INACTIVE)
        words = ("active_allocated", "active_pending_free")
        mine = zip(used.address.tolist(), used.size.tolist(), used.requested_size.tolist(),
                   [words[each] for each in used.state.tolist()], strict=True)  # fmt: skip
        assert sorted(map(list, mine)) == blocks
        if not conf:  # mapped ranges that touch are one of torch's segments
            mine = zip(state.segments.address.tolist(), state.segments.size.tolist(), strict=True)
            assert sorted(map(list, mine)) == segments
