"""The bars of every sample sum up to what the driver counts; what is not known is None with its reason."""

import numpy as np
import pytest

from vramscope.analysis.waterfall import findings, waterfall
from vramscope.loading import load
from vramscope.model.counters import Counters
from vramscope.model.device import Process
from vramscope.model.marks import Note, Steps
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action, Trace

MIB = 1 << 20
GIB = 1 << 30


def samples(n_rows=6, **columns):
    """Samples of a device of 80 GiB with 500 MiB of context and 10 MiB reserved, 4 MiB of it allocated."""
    usual = {
        "time_ns": 1_000_000_000,
        "event": -1,
        "allocated_bytes": 4 * MIB,
        "reserved_bytes": 10 * MIB,
        "device_used_bytes": 510 * MIB,
        "device_total_bytes": 80 * GIB + 600 * MIB,
        "process_used_bytes": 510 * MIB,
        "requested_bytes": 3 * MIB,
        "active_bytes": 4 * MIB,
        "inactive_split_bytes": MIB,
        "device_free_bytes": 80 * GIB - 510 * MIB,
        "others_used_bytes": 0,
        "reserved_drift_bytes": 0,
    }
    full = {name: np.full(n_rows, value) for name, value in usual.items()}
    full["time_ns"] = np.arange(1, n_rows + 1) * 100_000_000
    return Counters.of(**(full | columns))


def amounts(found, row=-1):
    return {bar.name: bar.n_bytes for bar in found.bars(row)}


def test_all_bars_of_a_sample_sum_up_to_the_device():
    found = waterfall(Recording(counters=samples()))
    bars = amounts(found)

    assert bars == {
        "requested": 3 * MIB,
        "rounding": MIB,
        "pending": 0,
        "inactive_split": MIB,
        "releasable": 5 * MIB,
        "private_pools": None,
        "own_outside": 500 * MIB,
        "others": 0,
        "unattributed": 0,
        "free": 80 * GIB - 510 * MIB,
        "driver": 600 * MIB,
    }
    assert sum(filter(None, bars.values())) == 80 * GIB + 600 * MIB
    assert findings(found) == []


def test_nccls_own_figure_is_a_bar_taken_out_of_what_is_outside_of_torch():
    found = waterfall(
        Recording(counters=samples(nccl_bytes=[-1, 0, 300 * MIB, 500 * MIB, 501 * MIB, 300 * MIB]))
    )
    bars = [amounts(found, row) for row in range(6)]

    assert [each.get("nccl") for each in bars] == [None, 0, 300 * MIB, 500 * MIB, None, 300 * MIB]
    assert [each["own_outside"] for each in bars] == [
        500 * MIB,
        500 * MIB,
        200 * MIB,
        0,
        500 * MIB,
        200 * MIB,
    ]
    assert {sum(filter(None, each.values())) for each in bars} == {80 * GIB + 600 * MIB}


def test_a_rank_of_several_says_that_nccls_bytes_are_not_reported():
    found = waterfall(Recording(counters=samples(), process=Process(world_size=2)))
    (bar,) = (bar for bar in found.bars(0) if bar.name == "nccl")

    assert bar.n_bytes is None
    assert bar.source.startswith("not reported")
    assert amounts(found)["own_outside"] == 500 * MIB


@pytest.mark.parametrize("code", ["nvml_process", "nvml_process_memory"])
def test_a_hidden_share_is_none_with_the_reason_and_the_rest_is_given_together(code):
    counters = samples(process_used_bytes=[-1] * 6, others_used_bytes=[-1] * 6)
    found = waterfall(Recording(counters=counters, notes=(Note(code, "the driver hides it"),)))
    bars = {bar.name: bar for bar in found.bars(0)}

    assert bars["own_outside"].n_bytes is bars["others"].n_bytes is None
    assert bars["own_outside"].source == "not available: the driver hides it"
    assert bars["outside"].n_bytes == 500 * MIB
    assert sum(bar.n_bytes or 0 for bar in found.bars(0)) == 80 * GIB + 600 * MIB


def test_used_bytes_are_not_called_outside_of_torch_where_nobody_knows_what_torch_reserved():
    unknown = ("allocated", "reserved", "process_used", "requested", "active", "inactive_split")
    hidden = {f"{name}_bytes": [-1] * 6 for name in (*unknown, "others_used", "reserved_drift")}
    found = waterfall(Recording(counters=samples(**hidden)))
    bars = {bar.name: bar for bar in found.bars(0)}

    assert "outside" not in bars
    assert (bars["used"].n_bytes, bars["used"].source) == (510 * MIB, "NVML")
    assert sum(bar.n_bytes or 0 for bar in found.bars(0)) == 80 * GIB + 600 * MIB


def test_without_a_driver_torchs_part_is_there_and_nothing_else_is_zero():
    unknown = [-1] * 6
    names = (
        "device_used_bytes",
        "device_total_bytes",
        "process_used_bytes",
        "device_free_bytes",
        "others_used_bytes",
    )
    note = Note("nvml_device", "NVML does not report the device: no library")
    found = waterfall(Recording(counters=samples(**dict.fromkeys(names, unknown)), notes=(note,)))
    bars = {bar.name: bar for bar in found.bars(found.fullest)}

    assert sum(bar.n_bytes or 0 for bar in bars.values()) == 10 * MIB
    for name in ("own_outside", "others", "unattributed", "free", "driver"):
        assert bars[name].n_bytes is None
        assert "no library" in bars[name].source


def test_blocks_that_wait_make_requests_unknown_but_not_their_sum():
    found = waterfall(Recording(counters=samples(active_bytes=[5 * MIB] * 6)))
    bars = amounts(found)

    assert bars["requested"] is bars["rounding"] is None
    assert (bars["allocated"], bars["pending"]) == (4 * MIB, MIB)
    assert sum(filter(None, bars.values())) == 80 * GIB + 600 * MIB


def test_a_log_has_the_parts_that_it_says_and_invents_none():
    known = {"allocated_bytes": [3, 4, 5], "reserved_bytes": [7, 7, 9], "time_ns": [0, 1, 2]}
    found = waterfall(Recording(source="log", counters=Counters.of(**known)))
    bars = {bar.name: bar for bar in found.bars(2)}

    assert (bars["allocated"].n_bytes, bars["unallocated"].n_bytes) == (5, 4)
    assert {bar.source for bar in bars.values() if bar.n_bytes is not None} == {"the file"}
    assert {bar.source for bar in bars.values() if bar.n_bytes is None} == {
        "not available: the file does not say"
    }
    alone = Counters.of(reserved_bytes=[7, 9], device_total_bytes=[20, 20], device_used_bytes=[12, 12])
    known = {bar.name: bar.n_bytes for bar in waterfall(Recording(source="log", counters=alone)).bars(1)}
    assert {name: n for name, n in known.items() if n is not None} == {"reserved": 9, "outside": 3, "free": 8}
    assert not found.has_clock
    assert waterfall(Recording(counters=samples())).has_clock


def test_a_message_of_an_error_says_no_parts_of_what_is_reserved(tmp_path):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
        "of 24.00 GiB of which 1.00 GiB is free. Process 7 has 22.00 GiB memory in use. Of the allocated "
        "memory 16.00 GiB is allocated by PyTorch, and 4.00 GiB is reserved by PyTorch but unallocated."
    )
    (tmp_path / "train.log").write_text(text)
    (recording,) = load(tmp_path / "train.log").recordings
    (found,) = (amounts(waterfall(recording), 0),)

    assert found["requested"] is found["inactive_split"] is found["releasable"] is None
    assert (found["allocated"], found["unallocated"]) == (16 * GIB, 4 * GIB)
    assert (found["own_outside"], found["free"]) == (2 * GIB, GIB)


def test_a_trace_of_older_samples_has_bars_as_far_as_they_go():
    old = (
        "requested_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "device_free_bytes",
        "others_used_bytes",
    )
    found = waterfall(Recording(counters=samples(**dict.fromkeys(old, [-1] * 6))))
    bars = amounts(found)

    assert bars["allocated"] == 4 * MIB
    assert bars["own_outside"] == 500 * MIB
    assert bars["others"] == 0
    assert bars["inactive_split"] is bars["driver"] is None


def with_events(pool=0):
    """A segment of 20 MiB before the trace; in it 4 MiB for a request of 3 MiB; the rest is free."""
    initial = Snapshot(
        segments=Segments.of(address=[0x1000], size=[20 * MIB], pool=[pool]),
        blocks=Blocks.of(segment=[0], address=[0x1000], size=[20 * MIB], state=[BlockState.INACTIVE]),
    )
    trace = Trace.of(
        action=[Action.ALLOC, Action.FREE_REQUESTED],
        time_ns=[150_000_000, 350_000_000],
        address=[0x1000] * 2,
        size=[3 * MIB] * 2,
        block_size=[4 * MIB] * 2,
        pool=[pool] * 2,
    )
    counters = samples(
        allocated_bytes=[0, 4 * MIB, 4 * MIB, 0, 0, 0],
        active_bytes=[0, 4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB, 9 * MIB],
        requested_bytes=[0, 3 * MIB, 3 * MIB, 3 * MIB, 3 * MIB, 9 * MIB],
        reserved_bytes=[20 * MIB] * 6,
    )
    pools = ((0, 0), (0, 1)) if pool else ((0, 0),)
    return Recording(initial=initial, trace=trace, counters=counters, pools=pools)


def test_with_events_each_sample_finds_its_instant_or_says_that_there_is_none():
    found = waterfall(with_events())

    assert found.instant.tolist() == [0, 1, 1, 2, 2, -1]
    assert found.pending_bytes.tolist()[:5] == [0, 0, 0, 4 * MIB, 4 * MIB]
    assert found.releasable_bytes.tolist()[:2] == [20 * MIB, 0]
    assert found.inactive_split_bytes.tolist()[1] == 16 * MIB


def test_free_bytes_of_private_pools_are_a_part_of_their_own():
    found = waterfall(with_events(pool=1))

    assert found.private_pools_bytes.tolist()[:2] == [20 * MIB, 16 * MIB]
    assert found.inactive_split_bytes.tolist()[:2] == found.releasable_bytes.tolist()[:2] == [0, 0]


def test_growth_outside_of_torch_is_reported_with_its_moment_and_apart_from_growth_inside():
    level = [500, 700, 700, 1212, 1212, 1212]
    counters = samples(
        process_used_bytes=[(10 + n) * MIB for n in level], device_used_bytes=[(10 + n) * MIB for n in level]
    )
    steps = Steps.of(
        index=[0, 1],
        start_event=[0, 0],
        end_event=[0, 0],
        start_ns=[1, 150_000_000],
        end_ns=[150_000_000, 900_000_000],
    )
    (finding,) = findings(waterfall(Recording(counters=counters, steps=steps)))

    assert (finding.kind, finding.n_bytes) == ("non_torch_growth", 512 * MIB)
    assert finding.evidence["time_ns"] == 400_000_000
    assert finding.evidence["step"] == 1
    assert finding.evidence["reserved_growth_bytes"] == 0


def test_another_process_that_came_and_went_is_reported():
    others = np.array([0, 0, GIB, GIB, GIB, 0])
    counters = samples(others_used_bytes=others, device_used_bytes=510 * MIB + others)
    (finding,) = findings(waterfall(Recording(counters=counters)))

    assert (finding.kind, finding.n_bytes) == ("other_process", GIB)
    assert finding.evidence["still_there_bytes"] == 0


def test_growth_inside_of_torch_is_none_outside():
    reserved = np.array([10, 10, 2000, 2000, 2000, 2000]) * MIB
    counters = samples(
        reserved_bytes=reserved,
        process_used_bytes=reserved + 500 * MIB,
        device_used_bytes=reserved + 500 * MIB,
    )

    assert findings(waterfall(Recording(counters=counters))) == []


def test_samples_taken_while_the_reserved_bytes_moved_claim_no_growth():
    drift = np.array([0, 0, 0, GIB, GIB, 0])
    process = 510 * MIB + drift
    counters = samples(process_used_bytes=process, device_used_bytes=process, reserved_drift_bytes=drift)

    assert findings(waterfall(Recording(counters=counters))) == []


def test_a_recording_without_samples_has_no_rows():
    assert len(waterfall(Recording())) == 0
    assert findings(waterfall(Recording())) == []


@pytest.mark.parametrize("n_steps", [0, 1])
def test_the_context_of_the_process_is_no_growth_where_no_step_was_completed(n_steps):
    reserved = np.array([0, 0, 20, 20, 20, 20]) * MIB
    level = reserved + np.array([0, 0, 500, 500, 560, 560]) * MIB
    counters = samples(reserved_bytes=reserved, process_used_bytes=level, device_used_bytes=level)
    steps = Steps.of(index=[0], start_event=[0], end_event=[0], start_ns=[1], end_ns=[900_000_000])

    found = waterfall(Recording(counters=counters, steps=steps.rows(slice(0, n_steps))))

    assert findings(found) == []


def test_growth_that_no_library_explains_is_reported_without_steps_too():
    level = np.array([500, 500, 500, 500, 2500, 2500]) * MIB
    counters = samples(process_used_bytes=10 * MIB + level, device_used_bytes=10 * MIB + level)

    (finding,) = findings(waterfall(Recording(counters=counters)))

    assert (finding.kind, finding.n_bytes) == ("non_torch_growth", 2000 * MIB)
