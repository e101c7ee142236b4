"""A profiler's trace gives its own totals back, whatever shape it has; damaged ones are refused."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import captures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.analysis import analyses
from vramscope.cli import main
from vramscope.errors import FormatError
from vramscope.formats.kineto import read, sniff
from vramscope.loading import load
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording, Run
from vramscope.model.trace import Action

SAMPLE = captures.OTHERS / "kineto_t2x_a100_part_gpu.json"
A, B, C = 0x7F00_0000_0000, 0x7F00_0000_0200, 0x7F00_0010_0000

# Time in µs, address, bytes, and the totals after it. 300 were there before; C (200 of them) is freed.
MOVES = [
    (1.5, A, 1024, 1324, 2048),
    (2.5, B, 512, 1836, 2048),
    (3.0, C, -200, 1636, 2048),
    (4.0, A, -1024, 612, 2048),
    (5.0, A, 4096, 4708, 8192),
    (6.0, A, -4096, 612, 4096),
]


def new_event(
    ts: float, address: int, n_bytes: int, total: int, reserved: int, **args: int
) -> dict[str, Any]:
    event_args = {"Addr": address, "Bytes": n_bytes, "Total Allocated": total, "Total Reserved": reserved}
    return {
        "ph": "i",
        "name": "[memory]",
        "ts": ts,
        "args": {**event_args, "Device Type": 1, "Device Id": 0, **args},
    }


def old_event(ts: float, n_bytes: int, kind: int = 1, index: int = 0) -> dict[str, Any]:
    args = {"Bytes": n_bytes, "Device Type": kind, "Device Id": index}
    return {"ph": "i", "name": "[memory]", "ts": ts, "args": args}


def opened(folder: Path, events: list[Any], pack: Any = bytes, **header: Any) -> Run:
    path = folder / "job.pt.trace.json"
    data = pack(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}).encode())
    path.write_bytes(data)
    assert sniff(data[: 1 << 16], path)
    return read(path)


def only(run: Run) -> Recording:
    (recording,) = run.recordings
    return recording


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def codes(recording: Recording) -> set[str]:
    return {note.code for note in recording.notes}


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, b"\xef\xbb\xbf".__add__], ids=["plain", "gzip", "mark"]
)
def test_totals_are_those_of_the_trace_and_memory_from_before_is_counted(tmp_path, pack):
    base = 1_700_000_000_000_000_000
    run = opened(tmp_path, [new_event(*move) for move in MOVES], pack, baseTimeNanoseconds=base)
    recording = only(run)
    totals, peak = recording.timeline(), recording.peak()

    assert (run.name, totals.allocated_bytes[0], totals.reserved_bytes[0]) == ("job", 300, 2048)
    assert (peak.allocated.n_bytes, peak.reserved.n_bytes) == (4708, 8192)
    assert (totals.allocated_bytes[-1], totals.reserved_bytes[-1]) == (612, 4096)
    assert recording.trace.time_ns[[0, -1]].tolist() == [base + 1500, base + 6000]
    assert run.started_ns == base + 1500
    assert {"starts_late", "no_layout", "no_stacks"} <= codes(recording)


def test_blocks_live_from_their_allocation_to_their_free_even_at_one_address(tmp_path):
    recording = only(opened(tmp_path, [new_event(*move) for move in MOVES]))
    found = recording.lifetimes()
    of_a = found.rows(found.address == A)

    assert of_a.block_size.tolist() == [1024, 4096]
    assert (of_a.free_event > of_a.alloc_event).all()
    assert sorted(found.block_size[found.alloc_event == -1].tolist()) == [100, 200]


def test_devices_become_recordings_of_their_own_and_the_hosts_memory_is_left_out(tmp_path):
    events = [old_event(1, 512, 1, 1), old_event(2, 64, 0, -1), old_event(3, 1024, 1, 0)]
    run = opened(
        tmp_path,
        events,
        deviceProperties=[{"id": 1, "name": "NVIDIA A100", "totalGlobalMem": 42346610688}],
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
    )

    assert [recording.device.index for recording in run.recordings] == [0, 1]
    assert [recording.peak().allocated.n_bytes for recording in run.recordings] == [1024, 512]
    assert (run.recordings[1].device.name, run.recordings[1].device.total_bytes) == (
        "NVIDIA A100",
        42346610688,
    )
    assert {(r.process.rank, r.process.world_size) for r in run.recordings} == {(3, 8)}
    assert [(note.code, note.value) for note in run.notes] == [("cpu_left_out", 1)]


def test_the_hosts_memory_is_shown_where_there_is_no_other(tmp_path):
    recording = only(opened(tmp_path, [old_event(2, 64, 0, -1)]))

    assert (recording.device.kind, recording.device.index) == ("cpu", 0)
    assert "host_memory" in {note.code for note in recording.notes}
    assert recording.peak().allocated.n_bytes == 64


def test_traces_without_addresses_pair_by_size_and_say_so(tmp_path):
    moves = [100, 200, -100, 100, -300, -200]  # the 300 were there before
    recording = only(opened(tmp_path, [old_event(at, n) for at, n in enumerate(moves)]))

    assert recording.timeline().allocated_bytes[0] == 300
    assert recording.peak().allocated.n_bytes == 700 - 100
    assert recording.timeline().allocated_bytes[-1] == 100
    assert (recording.lifetimes().free_event >= 0).sum() == 3
    assert "no_totals" in codes(recording)


def test_missing_events_are_noted(tmp_path):
    kept = [move for at, move in enumerate(MOVES) if at != 1]
    recording = only(opened(tmp_path, [new_event(*move) for move in kept]))

    assert [note.value for note in recording.notes if note.code == "contradiction"] == [1]


def test_steps_and_optimizers_of_the_profiler_are_steps_and_phases(tmp_path):
    noted = {"ph": "X", "cat": "user_annotation"}
    regions = [
        {**noted, "name": "ProfilerStep#0", "ts": 10.0, "dur": 20.0},
        {**noted, "name": "ProfilerStep#1", "ts": 32.5, "dur": 30.0},
        {**noted, "name": "Optimizer.step#Adam.step", "ts": 45.0, "dur": 10.0},
        {**noted, "name": "ProfilerStep#9", "ts": 10.0, "dur": 10.0, "cat": "gpu_user_annotation"},
    ]
    events = [new_event(10 * ts, *rest) for ts, *rest in MOVES]
    recording = only(opened(tmp_path, [*regions, *events]))
    action = recording.trace.action.tolist()

    assert len(recording.steps) == 2
    assert recording.step_peaks().per_step.allocated_bytes.tolist() == [1836, 4708]
    assert [Phase(p) for p in recording.phases.phase.tolist()] == [Phase.OPTIMIZER]
    start, end = recording.phases.start_event[0], recording.phases.end_event[0]
    assert [Action(a) for a in action[start:end]] == [Action.SEGMENT_MAP, Action.ALLOC]


def test_every_analysis_answers(tmp_path):
    recording = only(opened(tmp_path, [new_event(*move) for move in MOVES]))

    for analysis in analyses().values():
        result = analysis.run(recording)
        assert analysis.findings is None or analysis.findings(result) is not None


moves = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 1 << 40), st.integers(0, 1 << 41)), min_size=1)


@settings(max_examples=60, deadline=None)
@given(moves, st.integers(0, 1 << 40))
def test_any_history_gives_back_its_totals(tmp_path_factory, moves, before):
    live: dict[int, int] = {}
    total, events, levels, reserves = before, [], [before], []
    for at, (slot, size, spare) in enumerate(moves):
        n_bytes = -live.pop(slot) if slot in live else size
        if n_bytes > 0:
            live[slot] = size
        total += n_bytes
        levels.append(total)
        reserves.append(total + spare)
        events.append(new_event(at, A + slot * 512, n_bytes, total, reserves[-1]))
    recording = only(opened(tmp_path_factory.mktemp("any"), events))
    totals = recording.timeline()
    after = np.flatnonzero(np.isin(recording.trace.action, (Action.ALLOC, Action.FREE_REQUESTED))) + 1

    assert totals.allocated_bytes[0] == before
    assert totals.allocated_bytes[after].tolist() == levels[1:]
    assert totals.reserved_bytes[after].tolist() == reserves
    assert recording.peak().reserved.n_bytes == max(reserves)
    assert recording.by_stack(instant=len(recording.trace)).total_bytes == total


BROKEN: list[tuple[Any, str]] = [
    ({"traceEvents": []}, "profile_memory=True"),
    ({"traceEvents": {}}, "no list traceEvents"),
    ({"schemaVersion": 1}, "no list traceEvents"),
    ({"traceEvents": [{"ph": "i", "name": "[memory]", "ts": 1}]}, "args of memory event 0"),
    ({"traceEvents": [old_event(1, "many")]}, "Bytes is 'many'"),  # type: ignore[arg-type]
    ({"traceEvents": [old_event(1, True)]}, "Bytes is 'True'"),
    ({"traceEvents": [old_event(1, 1 << 70)]}, "Bytes is"),
    ({"traceEvents": [old_event("soon", 1)]}, "ts is 'soon'"),  # type: ignore[arg-type]
    ({"traceEvents": [old_event(math.nan, 1)]}, "ts is 'nan'"),
    ({"traceEvents": [old_event(math.inf, 1)]}, "ts is 'inf'"),
    ({"traceEvents": [old_event(-1, 1)]}, "ts is '-1'"),
    ({"traceEvents": [old_event(1, 1 << 60), old_event(2, 1 << 61)]}, "add up to"),
    ({"traceEvents": [old_event(1, 1)], "baseTimeNanoseconds": "now"}, "baseTimeNanoseconds"),
]


@pytest.mark.parametrize(("content", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_what_is_no_trace_of_memory_is_refused_with_the_reason(tmp_path, content, words):
    assert words in refusal(tmp_path / "x.json", json.dumps(content).encode())


WHOLE = json.dumps({"schemaVersion": 1, "traceEvents": [new_event(*move) for move in MOVES]}).encode()


@pytest.mark.parametrize("length", range(0, len(WHOLE) - 1, 97))
def test_a_trace_cut_anywhere_is_refused(tmp_path, length):
    assert "damaged JSON" in refusal(tmp_path / "x.json", WHOLE[:length])


def test_hostile_files_are_refused(tmp_path):
    deep = b'{"traceEvents":' + b"[" * 200_000
    packed = gzip.compress(b'{"traceEvents":[' + b" " * (64 << 20))
    odd = b'{"traceEvents":["\xff"]}'

    assert "damaged JSON" in refusal(tmp_path / "deep.json", deep)
    assert "unpack to more than" in refusal(tmp_path / "bomb.json.gz", packed)
    assert "damaged JSON" in refusal(tmp_path / "odd.json", odd)
    assert "damaged gzip" in refusal(tmp_path / "cut.json.gz", gzip.compress(WHOLE)[:-9])


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'["traceEvents"]', b"traceEvents", b"\x1f\x8b\x08"])
def test_strangers_are_left_alone(data):
    assert not sniff(data, Path("x.json"))


def test_a_real_trace_has_the_peaks_that_its_events_name():
    if not SAMPLE.exists():
        pytest.skip("no shared snapshots")
    peak = only(load(SAMPLE)).peak()

    assert peak.allocated.n_bytes == 13_155_807_744
    assert peak.reserved.n_bytes == 13_356_761_088


def test_a_real_trace_is_at_each_event_where_the_event_says():
    if not SAMPLE.exists():
        pytest.skip("no shared snapshots")
    event_args = [
        e["args"] for e in json.loads(SAMPLE.read_bytes())["traceEvents"] if e["name"] == "[memory]"
    ]
    gpu = [args for args in event_args if args["Device Type"] == 1]
    recording = only(load(SAMPLE))
    totals = recording.timeline()
    after = np.flatnonzero(np.isin(recording.trace.action, (Action.ALLOC, Action.FREE_REQUESTED))) + 1

    assert totals.allocated_bytes[after].tolist() == [args["Total Allocated"] for args in gpu]
    assert totals.reserved_bytes[after].tolist() == [args["Total Reserved"] for args in gpu]
    assert recording.device.name == "NVIDIA A100-PCIE-40GB"
    assert [note.code for note in load(SAMPLE).notes] == ["cpu_left_out"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_bare_list_of_events_is_a_trace_too(tmp_path: Path, pack: Any) -> None:
    """A bare list of events, cut out of a trace; Chrome opens both forms."""
    events = [new_event(*move) | {"pid": 1, "tid": 2} for move in MOVES]
    path = tmp_path / "list.json"
    path.write_bytes(pack(json.dumps(events).encode()))
    (recording,) = load(path).recordings
    totals = recording.timeline()

    assert totals.allocated_bytes[1:].tolist()[-1] == 612
    assert recording.peak().allocated.n_bytes == 4708


def test_a_list_of_other_objects_is_no_trace(tmp_path: Path) -> None:
    head = json.dumps([{"name": "x", "ts": 1}]).encode()

    assert not sniff(head, tmp_path / "x.json")


def test_a_trace_without_totals_claims_no_exact_totals_and_no_reserved_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [old_event(1, 512), old_event(2, 1024), old_event(3, -512)]
    (recording,) = opened(tmp_path, events).recordings
    texts = " ".join(note.text for note in recording.notes)
    main(["report", str(tmp_path / "job.pt.trace.json"), "--json"])
    (found,) = json.loads(capsys.readouterr().out)["recordings"]
    main(["report", str(tmp_path / "job.pt.trace.json")])
    page = capsys.readouterr().out

    assert "totals are exact" not in texts
    assert not recording.has_reserved
    assert found["end"]["reserved_bytes"] is None
    assert found["peak"]["reserved_bytes"] is None
    assert found["end"]["allocated_bytes"] == 1024
    assert "unknown" in page


def test_a_trace_with_totals_knows_what_was_reserved(tmp_path: Path) -> None:
    (recording,) = opened(tmp_path, [new_event(*move) for move in MOVES]).recordings

    assert recording.has_reserved
