"""CUDA's history, recorded, ends where torch's own counters do; on the genuine allocator without a GPU."""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest

from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.analysis.step_peaks import step_peaks
from vramscope.loading import load
from vramscope.model.marks import MarkKind, Phase
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.standin

PROGRAM = """
import json, sys, torch, vramscope
from torch import nn
torch.backends.cudnn.enabled = False
torch.manual_seed(0)
older = torch.ones(1000, 1000, device="cuda")
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def step():
    model(torch.randn(64, 256, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()

def counters():
    stats = torch.cuda.memory_stats()
    names = ("requested", "allocated", "active", "reserved")
    return {name: stats[f"{name}_bytes.all.current"] for name in names}
"""

# torch aborts where the interpreter ends while autograd's thread still lets go of its last backward.
AT_EXIT = """
import time
time.sleep(0.3)
"""


@pytest.fixture
def run_on_cuda(forks, tmp_path):
    """``run_on_cuda(code, **environment)`` records in ``run``; gives what the code printed as JSON lines."""

    def run(code, **environment):
        program = PROGRAM + textwrap.dedent(code) + AT_EXIT
        done = forks.run_code(program, cwd=tmp_path, variables={"PYTHONPATH": ROOT} | environment)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def ends(timeline, instant=-1):
    return {
        name: int(getattr(timeline, f"{name}_bytes")[instant])
        for name in ("requested", "allocated", "active", "reserved")
    }


@pytest.mark.parametrize(
    "conf",
    [
        "",
        "expandable_segments:True",
        pytest.param("roundup_power2_divisions:4", marks=pytest.mark.exhaustive),
    ],
)
def test_the_timeline_ends_at_torchs_counters(run_on_cuda, tmp_path, conf):
    (expected,) = run_on_cuda(
        """
        with vramscope.record("run"):
            for _ in range(5):
                step()
        print(json.dumps(counters()))
        """,
        PYTORCH_CUDA_ALLOC_CONF=conf,
    )
    (recording,) = load(tmp_path / "run").recordings

    assert recording.source == "cuda"
    assert ends(recording.timeline()) == expected
    assert len(recording.steps) == 5


def test_every_mark_is_at_the_counters_of_its_moment(run_on_cuda, tmp_path):
    *expected, _ = run_on_cuda(
        """
        with vramscope.record("run") as recorder:
            for _ in range(5):
                kept = [torch.ones(1000 * n, device="cuda") for n in range(1, 5)]
                step()
                recorder.mark("here")
                print(json.dumps(counters()))
        print(json.dumps(counters()))
        """
    )
    (recording,) = load(tmp_path / "run").recordings
    marks, timeline = recording.marks, recording.timeline()
    here = marks.event[marks.name == marks.names.index("here")]

    assert [ends(timeline, int(instant)) for instant in here] == expected


def test_phases_and_labels_of_a_step(run_on_cuda, tmp_path):
    run_on_cuda(
        """
        with vramscope.record("run"):
            step()
        """
    )
    (recording,) = load(tmp_path / "run").recordings

    assert recording.phases.phase.tolist() == [
        Phase.FORWARD,
        Phase.LOSS,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
        Phase.ZERO_GRAD,
    ]
    assert {"0.weight", "gradient of 0.weight", "exp_avg of 0.weight"} <= set(recording.labels.names)
    assert recording.counters.device_total_bytes[-1] > 0


@pytest.mark.parametrize("call", ["torch.cuda.empty_cache", "torch.accelerator.memory.empty_cache"])
def test_the_line_that_empties_the_cache_is_known(run_on_cuda, tmp_path, call):
    run_on_cuda(
        f"""
        # Before torch 2.9 the accelerator has no such function.
        empty = {call} if hasattr(torch.accelerator, "memory") else torch.cuda.empty_cache

        def tidy():
            empty()

        original = torch._C._cuda_emptyCache
        with vramscope.record("run"):
            block = torch.empty(1 << 24, device="cuda")
            del block
            tidy()
            step()
        assert torch._C._cuda_emptyCache is original
        """
    )
    (recording,) = load(tmp_path / "run").recordings
    trace = recording.trace
    (released,) = np.flatnonzero(trace.action == Action.SEGMENT_FREE)

    names = [frame.function for frame in recording.stacks.frames(int(trace.stack_id[released]))]
    assert {"empty_cache", "tidy"} <= set(names)
    is_free = np.isin(trace.action, (Action.FREE_REQUESTED, Action.FREE_COMPLETED))
    assert not trace.stack_id[is_free].any()
    assert trace.stack_id[trace.action == Action.ALLOC].any()


def test_a_block_per_step_is_one_trace_with_what_came_between(run_on_cuda, tmp_path):
    expected, _ = run_on_cuda(
        """
        for n in range(1, 5):
            with vramscope.record("run"):
                step()
                if n == 4:
                    print(json.dumps(counters()))
            between = torch.ones(300 * n, 1000, device="cuda")
        print(json.dumps(counters()))
        """
    )
    (recording,) = load(tmp_path / "run").recordings

    assert ends(recording.timeline()) == expected
    assert len(recording.steps) == 4
    assert "gap" in [note.code for note in recording.notes]
    marks = recording.marks
    pauses = marks.rows(marks.kind == MarkKind.GAP)
    entered = marks.time_ns[marks.kind == MarkKind.ENTER]
    # Three pauses, in each of which memory changed: each ends where the next block begins, and before the
    # one after it.
    assert pauses.value.tolist() == [0, 0, 0]
    assert (entered[:-1] < pauses.time_ns).all()
    assert (pauses.time_ns[:-1] < entered[2:]).all()
    assert (np.diff(pauses.event) > 0).all()


def test_a_ring_that_fills_is_read_on_the_way(run_on_cuda, tmp_path):
    (expected,) = run_on_cuda(
        """
        import vramscope.capture.cuda.history
        vramscope.capture.cuda.history.MAX_ENTRIES = 400
        with vramscope.record("run"):
            for _ in range(30):
                step()
        print(json.dumps(counters()))
        """
    )
    (recording,) = load(tmp_path / "run").recordings

    assert ends(recording.timeline()) == expected
    assert len(recording.trace) > 1000
    assert len(recording.steps) == 30


@pytest.mark.parametrize(("stays_full", "n_more"), [("", 7000), ("1", 1000)])
def test_many_new_entries_are_read_long_before_the_ring_is_half_full(run_on_cuda, stays_full, n_more):
    found = run_on_cuda(
        """
        import os
        import vramscope.capture.cuda.history as history
        begin = history._beginnings
        with vramscope.record("run") as recorder:
            if os.environ["STAYS_FULL"]:
                history._beginnings = lambda n: []  # as if another thread allocated during each reading
            capture = recorder._pipeline.capture
            capture._ring_guard.stop()  # it looks when this program says so
            capture.catch_up()
            for n_made in 7000, int(os.environ["N_MORE"]):  # three entries each
                before = len(recorder.load().recordings[0].trace)
                for _ in range(n_made):
                    torch.empty(5000, device="cuda")
                capture._check_ring()
                print(len(recorder.load().recordings[0].trace) - before)
            history._beginnings = begin
        """,
        STAYS_FULL=stays_full,
        N_MORE=str(n_more),
    )

    assert found == [3 * 7000, 3 * n_more]


def test_a_history_that_the_program_keeps_is_left_to_it(run_on_cuda, tmp_path):
    expected, entries = run_on_cuda(
        """
        torch.cuda.memory._record_memory_history()
        before = torch.ones(5000, device="cuda")
        with vramscope.record("run"):
            step()
        print(json.dumps(counters()))
        print(len(torch.cuda.memory._snapshot()["device_traces"][0]))
        """
    )
    (recording,) = load(tmp_path / "run").recordings

    assert ends(recording.timeline()) == expected
    assert entries > 20
    assert "shared_history" in [note.code for note in recording.notes]


def test_out_of_memory_passes_through_and_is_recorded(run_on_cuda, tmp_path):
    (raised,) = run_on_cuda(
        """
        try:
            with vramscope.record("run"):
                step()
                torch.empty(1 << 40, device="cuda")
        except torch.OutOfMemoryError as error:
            print(json.dumps(type(error).__name__))
        """
    )
    run = load(tmp_path / "run")

    assert raised == "OutOfMemoryError"
    assert run.outcome is Outcome.FAILED
    assert run.error.startswith("OutOfMemoryError: CUDA out of memory")
    assert len(run.recordings[0].trace) > 20


def test_a_caught_error_under_a_memory_fraction_records_the_limit(run_on_cuda, tmp_path):
    fraction, total_bytes = run_on_cuda(
        """
        with vramscope.record("run"):
            step()
            torch.cuda.set_per_process_memory_fraction(0.25)
            for _ in range(2):
                try:
                    torch.empty(1 << 40, device="cuda")
                except torch.OutOfMemoryError as error:
                    assert " allowed" in str(error)
            ask = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: None)
            print(json.dumps(ask()))
            print(json.dumps(torch.cuda.get_device_properties(0).total_memory))
        """
    )
    if fraction is None:
        pytest.skip("this torch does not report the fraction")
    (recording,) = load(tmp_path / "run").recordings

    assert fraction == 0.25
    assert [note.value for note in recording.notes if note.code == "limit"] == [total_bytes // 4]


@pytest.mark.parametrize("mode", ["events", "counters"])
def test_the_limit_of_a_process_is_recorded_while_it_runs(run_on_cuda, mode: str) -> None:
    fraction, total_bytes, limits = run_on_cuda(
        f"""
        import time
        ask = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: None)
        with vramscope.record("run", mode={mode!r}) as recorder:
            step()
            torch.cuda.set_per_process_memory_fraction(0.25)
            found, end = [], time.monotonic() + 60
            while not found and ask() is not None and time.monotonic() < end:
                step()
                recorder.flush()
                (recording,) = recorder.load().recordings
                found = [note.value for note in recording.notes if note.code == "limit"]
            print(json.dumps(ask()))
            print(json.dumps(torch.cuda.get_device_properties(0).total_memory))
            print(json.dumps(found))
        """
    )
    if fraction is None:
        pytest.skip("this torch does not report the fraction")

    assert fraction == 0.25
    assert limits == [total_bytes // 4]


@pytest.mark.parametrize("options", [{"every": 4}, {"mode": "counters"}])
def test_a_flush_by_the_program_leaves_the_order_of_what_is_written(run_on_cuda, tmp_path, options) -> None:
    """The recorder's own thread is slow to write, and the program flushes, switches events on and off."""
    (steps,) = run_on_cuda(
        f"""
        import random, threading, time
        from vramscope.store.write.writer import Writer

        append, main, draw = Writer.append, threading.main_thread(), random.Random(3)

        def slow(self, table, device):
            if threading.current_thread() is not main:
                time.sleep(0.03)
            append(self, table, device)

        Writer.append = slow
        peaks = []
        with vramscope.record("run", **{options!r}) as recorder:
            for number in range(200):
                torch.cuda.reset_peak_memory_stats()
                torch.empty(draw.randint(1, 4000), 256, device="cuda")
                step()
                recorder.step()
                peaks.append(torch.cuda.max_memory_allocated())
                if number % 10 == 5:
                    recorder.flush()
        print(json.dumps(peaks))
        """
    )
    (recording,) = load(tmp_path / "run").recordings
    found = step_peaks(recording) if "every" in options else sampled_peaks(recording)

    assert found.per_step.allocated_bytes.tolist() == steps


@pytest.mark.parametrize("options", [{"every": 4}, {"mode": "counters"}])
def test_a_later_sample_that_is_written_first_changes_no_peak(run_on_cuda, tmp_path, options) -> None:
    """While a sample at a mark has its time and no row yet, another thread samples, and that is written."""
    (steps,) = run_on_cuda(
        f"""
        from vramscope.capture.samples import Sampler

        keep, is_between = Sampler._keep, []

        def late(self, *row):
            if len(row) == 4 and not is_between:  # of a mark, with the peaks since the one before
                is_between.append(True)
                self._on_time()
                recorder._pipeline.capture.flush()
                is_between.clear()
            keep(self, *row)

        peaks = []
        with vramscope.record("run", **{options!r}) as recorder:
            Sampler._keep = late
            for number in range(40):
                torch.cuda.reset_peak_memory_stats()
                torch.empty(1 + number * 777 % 4000, 256, device="cuda")
                step()
                recorder.step()
                peaks.append(torch.cuda.max_memory_allocated())
        print(json.dumps(peaks))
        """
    )
    (recording,) = load(tmp_path / "run").recordings
    found = sampled_peaks(recording) if "mode" in options else step_peaks(recording)

    assert found.per_step.allocated_bytes.tolist() == steps
    assert (np.diff(recording.counters.time_ns) >= 0).all()


def test_nothing_of_ours_stays_with_the_allocator(run_on_cuda):
    during, after = run_on_cuda(
        """
        with vramscope.record("run"):
            step()
            print(json.dumps(torch._C._cuda_isHistoryEnabled()))
        print(json.dumps(torch._C._cuda_isHistoryEnabled()))
        """
    )

    assert during
    assert not after


def codes(recording):
    return [note.code for note in recording.notes]


def test_a_ring_far_too_small_leaves_a_gap_of_known_size_and_true_figures(run_on_cuda, tmp_path):
    made, *expected = run_on_cuda(
        """
        import vramscope.capture.cuda.history
        vramscope.capture.cuda.history.MAX_ENTRIES = 200

        def n_entries():
            stats = torch._C._cuda_memoryStats(0)
            counts = [stats[kind]["all"][way] for kind, way in (
                ("allocation", "allocated"), ("allocation", "freed"), ("active", "freed"),
                ("segment", "allocated"), ("segment", "freed"))]
            return sum(counts)

        with vramscope.record("run") as recorder:
            before = n_entries()
            kept = []
            for n in range(3000):
                kept.append(torch.empty(100 + n, device="cuda"))
                if n % 3 == 0:
                    kept.pop(0)
            recorder.mark("after")
            after = counters()
            step()
            print(n_entries() - before)
        print(json.dumps(after))
        print(json.dumps(counters()))
        """
    )
    (recording,) = load(tmp_path / "run").recordings
    timeline, marks = recording.timeline(), recording.marks
    gaps = [note for note in recording.notes if note.code == "gap"]
    after = int(marks.event[marks.name == marks.names.index("after")][0])

    assert gaps
    assert all(note.value > 0 for note in gaps)
    assert sum(note.value for note in gaps) < made
    assert [ends(timeline, after), ends(timeline)] == expected


RACE = """
from vramscope.capture.cuda import history
history.FEWEST_EMPTIED = 100
begin_alone, kept = history._beginnings, []

def allocate():
    # What the operator of another thread would do meanwhile, without the interpreter's lock.
    if races:
        kept.append(torch.empty(777, device="cuda"))

def beginnings(n):
    begin = begin_alone(n)
    return [allocate, *begin] if before else [*begin, allocate]

races = False
with vramscope.record("run") as recorder:
    history._beginnings, races = beginnings, True
    for _ in range(3):
        for _ in range(40):
            step()
        recorder._pipeline.capture._reader.read()
    races = False
    history._beginnings = begin_alone
print(json.dumps(len(kept)))
print(json.dumps(counters()))
"""


def test_an_allocation_right_after_the_ring_was_emptied_is_not_lost(run_on_cuda, tmp_path):
    n_races, expected = run_on_cuda("before = False" + RACE)
    (recording,) = load(tmp_path / "run").recordings

    assert n_races >= 3
    assert not [note for note in recording.notes if note.code in ("gap", "replay_differs")]
    assert int((recording.trace.size == 777 * 4).sum()) == n_races
    assert ends(recording.timeline()) == expected


def test_an_allocation_just_before_the_ring_was_emptied_is_a_gap_of_one_event(run_on_cuda, tmp_path):
    n_races, expected = run_on_cuda("before = True" + RACE)
    (recording,) = load(tmp_path / "run").recordings
    gaps = [note.value for note in recording.notes if note.code == "gap"]

    assert n_races >= 2
    assert gaps == [1] * len(gaps)
    marks, trace = recording.marks, recording.trace
    shown = marks.rows(marks.kind == MarkKind.GAP)
    assert shown.value.tolist() == gaps
    # The lost allocation is among the events that the state of the allocator added just before the mark.
    for event in shown.event.tolist():
        assert 777 * 4 in trace.size[trace.time_ns == trace.time_ns[event - 1]][:event]
    assert 1 <= len(gaps) <= n_races
    # The state of the allocator shows the lost allocation.
    assert int((recording.trace.size == 777 * 4).sum()) == n_races
    assert ends(recording.timeline()) == expected


def test_a_history_that_the_program_starts_and_stops_inside_costs_no_event(run_on_cuda, tmp_path):
    theirs, *expected = run_on_cuda(
        """
        with vramscope.record("run") as recorder:
            step()
            torch.cuda.memory._record_memory_history(max_entries=5000)
            step()
            print(len(torch.cuda.memory._snapshot()["device_traces"][0]))
            torch.cuda.memory._record_memory_history(enabled=None)
            step()
            recorder.mark("here")
            print(json.dumps(counters()))
        print(json.dumps(counters()))
        """
    )
    (recording,) = load(tmp_path / "run").recordings

    assert theirs > 20
    assert [ends(recording.timeline())] * 2 == expected
    assert "gap" not in codes(recording)
    assert len(recording.steps) == 3


def test_a_history_that_the_program_switches_off_is_noticed(run_on_cuda, tmp_path):
    *_, expected = run_on_cuda(
        """
        from vramscope.capture.cuda import history as _history
        with vramscope.record("run"):
            step()
            _history.stop()
            kept = torch.ones(100_000, device="cuda")
            step()
        print(json.dumps(counters()))
        """
    )
    (recording,) = load(tmp_path / "run").recordings

    assert ends(recording.timeline()) == expected
    assert {"history_stopped", "gap"} <= set(codes(recording))


def test_every_device_that_is_used_is_recorded(run_on_cuda, tmp_path):
    first, second = run_on_cuda(
        """
        def counters(device):
            stats = torch.cuda.memory_stats(device)
            return {name: stats[f"{name}_bytes.all.current"] for name in
                    ("requested", "allocated", "active", "reserved")}

        with vramscope.record("run") as recorder:
            step()
            other = torch.ones(1000, 1000, device="cuda:1")
            step()
            more = torch.ones(1000, device="cuda:1")
            recorder.mark("here")
            del other
        print(json.dumps(counters(0)))
        print(json.dumps(counters(1)))
        """,
        STANDIN_DEVICES="3",
    )
    recordings = load(tmp_path / "run").recordings
    one = recordings[1]
    here = int(one.marks.event[one.marks.name == one.marks.names.index("here")][0])

    assert [recording.device.index for recording in recordings] == [0, 1]
    assert [ends(recording.timeline()) for recording in recordings] == [first, second]
    assert one.device.name
    assert one.timeline().allocated_bytes[here] > 4_000_000 > second["allocated"]


def test_running_out_of_memory_is_on_disk_before_the_program_hears_of_it(run_on_cuda, tmp_path):
    seen, n_errors, n_bytes, gone = run_on_cuda(
        """
        import pathlib
        from vramscope.loading import load

        def fail():
            try:
                torch.empty(1 << 40, device="cuda")
            except torch.OutOfMemoryError:
                return True

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, gradient):
                return torch.empty(1 << 40, device="cuda")

        def size():
            return sum(path.stat().st_size for path in pathlib.Path("run").rglob("*.arrows"))

        with vramscope.record("run"):
            step()
            fail()
            (recording,) = load("run").recordings
            print(json.dumps([int((recording.trace.action == 7).sum()), recording.final.event,
                              len(recording.trace), len(recording.marks.event[recording.marks.kind == 6])]))
            before = size()
            print(json.dumps([fail() for _ in range(200)].count(True)))
            print(json.dumps(size() - before))
            try:
                Fails.apply(torch.ones(10, device="cuda", requires_grad=True)).sum().backward()
            except torch.OutOfMemoryError as error:
                print(json.dumps(type(error).__name__))
        """
    )
    (recording,) = load(tmp_path / "run").recordings

    assert seen == [1, seen[2], seen[2], 1]
    assert n_errors == 200
    assert n_bytes < 1_000_000
    assert gone == "OutOfMemoryError"
    assert int((recording.trace.action == 7).sum()) == 202


def test_events_come_to_disk_while_a_block_without_steps_goes_on(run_on_cuda):
    (on_disk,) = run_on_cuda(
        """
        import time
        from vramscope.loading import load
        with vramscope.record("run"):
            kept = [torch.ones(1000, device="cuda") for _ in range(50)]
            time.sleep(2.5)
            (recording,) = load("run").recordings
            print(len(recording.trace))
        """
    )

    assert on_disk >= 50


def test_reading_the_history_imports_no_compiler(standin, tmp_path):
    """torch would import torch._inductor with the first snapshot that has Python frames: 4 s, 800 modules."""
    program = """
import sys, torch, vramscope
from vramscope.capture.cuda import history as _history
_history.start(1000)
kept = torch.ones(10, device="cuda")
(entry, *_) = _history.take([0]).ring(0)
print(len(entry["frames"]) > 0, "torch._inductor" in sys.modules, hasattr(torch, "_inductor"))
"""
    done = subprocess.run(
        [str(standin), "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )

    assert done.stdout.split() == ["True", "False", "True"], done.stderr
