"""mode="counters" where there is no GPU, and what cannot be meant."""

import json

import pytest
import torch

from vramscope import cli
from vramscope.capture import samples
from vramscope.capture.nvml import Memory, ProcessMemory
from vramscope.errors import UsageError
from vramscope.loading import load
from vramscope.recorder import record

GIB = 1 << 30


def test_without_a_gpu_steps_are_recorded_and_no_figure_is_claimed(program, tmp_path, capsys):
    with record(tmp_path / "run", mode="counters", quiet=True):
        program(3)
    (recording,) = load(tmp_path / "run").recordings
    assert cli.main(["report", str(tmp_path / "run"), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["recordings"]

    assert len(recording.steps) == 3
    assert len(recording.trace) == len(recording.counters) == 0
    assert {note.code for note in recording.notes} == {"counters_only", "no_device"}
    assert set(shown["peak"].values()) == set(shown["end"].values()) == {None}
    assert shown["waterfall"] is None


def test_commands_that_need_events_say_so_instead_of_finding_nothing(program, tmp_path, capsys):
    run = str(tmp_path / "run")
    with record(run, mode="counters", quiet=True):
        program(9)
    assert cli.main(["leaks", run]) == cli.main(["diff", run, run]) == 0
    out = capsys.readouterr().out

    assert "is not known" in out
    assert "nothing to compare" in out
    assert "nothing grows" not in out
    assert "no difference" not in out


def test_its_hooks_go_with_the_block(program, tmp_path):
    with record(tmp_path / "run", mode="counters", quiet=True):
        program(1)

    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize("wrong", [{"mode": "all"}, {"mode": "counters", "device": "simulated"}])
def test_what_cannot_be_meant_is_refused(wrong, tmp_path):
    with pytest.raises(UsageError):
        record(tmp_path / "run", **wrong)


@pytest.mark.parametrize(("backend", "source"), [("native", ""), ("cudaMallocAsync", "counters")])
def test_an_allocator_without_a_history_is_recorded_by_counters(backend, source, monkeypatch):
    from vramscope.capture import sources

    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)

    assert sources()["cuda"].instead() == source


def test_cuda_malloc_async_counts_no_requests_and_no_pieces(monkeypatch):
    # What its C++ leaves at zero must not look like a figure.
    levels = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes", "inactive_split_bytes")
    all_seven = dict.fromkeys(("current", "peak", "allocated", "freed"), 7)
    counted = {name: {"all": all_seven} for name in levels[:3]}
    counted |= {name: {"all": {"current": 0, "peak": 0}} for name in levels[3:]}
    monkeypatch.setattr(samples, "torch_counters", lambda _: counted)
    monkeypatch.setattr(samples, "backend", lambda: "cudaMallocAsync")
    monkeypatch.setattr(samples, "bus_id", lambda _: "")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    sampler = samples.Sampler(0, "GPU-none", pytest.fail)

    sampler.sample_at_mark(1)
    (row,) = sampler.take().to_pandas().itertuples()

    assert [getattr(row, name) for name in levels] == [7, 7, 7, -1, -1]


class Driver:
    """A driver of a device of 80 GiB; this process takes ``takes.pop()`` just before its share is read."""

    def __init__(self, takes):
        self.takes = takes
        self.held = 4 * GIB

    def memory(self):
        return Memory(self.held + GIB, 79 * GIB - self.held, 80 * GIB)

    def shares(self):
        self.held += self.takes.pop() if self.takes else 0
        return ProcessMemory(self.held, 0)

    def utilization(self):
        return 0


@pytest.mark.parametrize(
    ("takes", "drift"), [([], 0), ([GIB], 0), ([2 * GIB, -GIB], 0), ([GIB, -GIB, -2 * GIB], GIB)]
)
def test_the_drivers_total_and_its_shares_are_of_one_moment_or_the_sample_says_by_how_much_not(
    takes, drift, monkeypatch
):
    monkeypatch.setattr(samples, "bus_id", lambda _: "")
    monkeypatch.setattr(samples, "backend", lambda: "native")
    monkeypatch.setattr(samples, "torch_counters", lambda _: {})
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    sampler = samples.Sampler(0, "GPU-none", pytest.fail)
    sampler._memory = driver = Driver(takes)

    sampler._on_time()
    (row,) = sampler.take().to_pandas().itertuples()

    assert row.reserved_drift_bytes == drift
    assert row.process_used_bytes == driver.held
    assert row.device_used_bytes - row.process_used_bytes == GIB


def test_a_step_that_begins_while_the_background_reads_has_no_level_of_the_step_before(monkeypatch):
    monkeypatch.setattr(samples, "bus_id", lambda _: "")
    monkeypatch.setattr(samples, "backend", lambda: "native")
    sampler = samples.Sampler(0, "GPU-none", pytest.fail)
    at_mark: list[int] = []
    calls: list[int] = []

    def counted(_):
        # The training's own thread takes its turn while the background has not yet stamped what it read.
        calls.append(1)
        level = {"current": 3 + len(at_mark), "peak": 9, "allocated": 9, "freed": 0}
        if len(calls) == 2:  # the reading that is kept
            at_mark.append(samples.time_ns())
            sampler.sample_at_mark(at_mark[0])
        return {"allocated_bytes": {"all": level}, "reserved_bytes": {"all": level}}

    monkeypatch.setattr(samples, "torch_counters", counted)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    sampler._peaks, sampler._has_looked_for_peaks = None, True
    sampler._memory = Driver([])

    sampler._on_time()

    rows = sampler.take().to_pandas()
    assert [3 + (row.time_ns >= at_mark[0]) for row in rows.itertuples()] == rows.allocated_bytes.tolist()
