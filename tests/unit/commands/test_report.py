"""report and info say what a recording small enough to count by hand holds."""

import json
import re
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from vramscope import cli
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Labels, MarkKind, Marks, Note, Phase, Phases, Steps
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace

MIB = 2**20
BASE = 0x7000_0000_0000
FORWARD, BACKWARD, EVAL = 1, 2, int(Phase.EVAL)

# What each event does to (requested, allocated, active) bytes, after a segment of 20 MiB:
EVENTS = [
    (Action.SEGMENT_ALLOC, BASE, 20 * MIB, 20 * MIB, 0),
    (Action.ALLOC, BASE, 1000, 1024, "layer"),  # 1000, 1024, 1024
    (Action.ALLOC, BASE + 1024, 2048, 2048, "loss"),  # 3048, 3072, 3072
    (Action.FREE_REQUESTED, BASE + 1024, 2048, 2048, 0),  # 3048, 1024, 3072
    (Action.FREE_COMPLETED, BASE + 1024, 2048, 2048, 0),  # 1000, 1024, 1024
    (Action.ALLOC, BASE + 1024, 512, 512, "layer"),  # 1512, 1536, 1536
    (Action.FREE_REQUESTED, BASE + 1024, 512, 512, 0),  # 1512, 1024, 1536: pending
]


def by_hand(**changes) -> Recording:
    builder = StackBuilder()
    torch = "/opt/lib/python3.11/site-packages/torch/nn/functional.py"
    stacks = {
        "layer": builder.add([("linear", torch, 5), ("forward", "/home/me/net/model.py", 31)]),
        "loss": builder.add([("mse_loss", torch, 9), ("<module>", "/home/me/net/train.py", 12)]),
        0: 0,
    }
    action, address, size, block_size, names = zip(*EVENTS, strict=True)
    fields = {
        "trace": Trace.of(
            action=action,
            time_ns=range(1_000_000_000, 1_000_000_000 + 1000 * len(EVENTS), 1000),
            address=address,
            size=size,
            block_size=block_size,
            stack_id=[stacks[name] for name in names],
        ),
        "stacks": builder.build(),
        "steps": Steps.of(index=[0, 1], start_event=[1, 5], end_event=[5, 7]),
        "phases": Phases.of(
            phase=[FORWARD, BACKWARD, FORWARD], step=[0, 0, 1], start_event=[1, 2, 5], end_event=[2, 5, 7]
        ),
        "device": Device(index=1, name="Pretend GPU", total_bytes=80 * 2**30),
        "process": Process(rank=3, torch="2.13.0"),
    }
    return Recording(**(fields | changes))


def loading(monkeypatch, *recordings: Recording, **run) -> None:
    """Every path seems to hold these recordings."""
    loaded = Run("gpt2", "traces/gpt2", recordings, **run)
    monkeypatch.setattr(import_module("vramscope.loading"), "load", lambda _: loaded)


def report(monkeypatch, capsys, recording: Recording, *options: str, **run) -> str:
    loading(monkeypatch, recording, **run)

    assert cli.main(["report", "traces/gpt2", *options]) == 0
    return capsys.readouterr().out


def cells(out: str, start: str) -> list[str]:
    """The cells of the one row of a table that starts so."""
    (line,) = (line for line in out.splitlines() if line.strip().startswith(start))
    return re.split(r"\s{2,}", line.strip())


def test_json_is_schema_1_as_counted_by_hand(monkeypatch, capsys):
    shown = json.loads(report(monkeypatch, capsys, by_hand(), "--json"))

    assert shown == {
        "schema": 1,
        "recordings": [
            {
                "rank": 3,
                "device": 1,
                "restart": 0,
                "source": "snapshot",
                "events": 7,
                "starts_late": False,
                "gaps": 0,
                "end": {
                    "requested_bytes": 1512,
                    "allocated_bytes": 1024,
                    "active_bytes": 1536,
                    "reserved_bytes": 20 * MIB,
                },
                "peak": {
                    "requested_bytes": 3048,
                    "allocated_bytes": 3072,
                    "active_bytes": 3072,
                    "reserved_bytes": 20 * MIB,
                },
                "steps": [
                    {
                        "index": 0,
                        "peak_allocated_bytes": 3072,
                        "is_exact": True,
                        "has_detail": True,
                        "phases": [
                            {"phase": "forward", "peak_allocated_bytes": 1024},
                            {"phase": "backward", "peak_allocated_bytes": 3072},
                        ],
                    },
                    {
                        "index": 1,
                        "peak_allocated_bytes": 1536,
                        "is_exact": True,
                        "has_detail": True,
                        "phases": [{"phase": "forward", "peak_allocated_bytes": 1536}],
                    },
                ],
                "outside_steps": {
                    "index": None,
                    "peak_allocated_bytes": 0,
                    "is_exact": True,
                    "has_detail": True,
                    "phases": [],
                },
                # Made in forward and alive in backward; made and dead in backward.
                "live_at_peak": [
                    {
                        "bytes": 2048,
                        "blocks": 1,
                        "share": 2048 / 3072,
                        "category": "temporary",
                        "module": None,
                        "where": {"file": "/home/me/net/train.py", "line": 12, "function": "<module>"},
                        "frames": [{"file": "/home/me/net/train.py", "line": 12, "function": "<module>"}],
                        "holder": None,
                    },
                    {
                        "bytes": 1024,
                        "blocks": 1,
                        "share": 1024 / 3072,
                        "category": "activation",
                        "module": None,
                        "where": {"file": "/home/me/net/model.py", "line": 31, "function": "forward"},
                        "frames": [{"file": "/home/me/net/model.py", "line": 31, "function": "forward"}],
                        "holder": None,
                    },
                ],
                "private_pools_at_peak": [],
                "annotations_at_peak": [],
                "pinned_at_peak": None,
                "categories_at_peak": {"temporary": 2048, "activation": 1024},
                "category_own_peaks": {"temporary": 2048, "activation": 1024},
                "samples_peak": {},
                "peak_is_exact": True,
                "growth": {
                    "verdict": "too few steps",
                    "text": "too few steps to say whether anything grows: 2 of the 7 that it takes",
                    "is_decided": False,
                },
                "missing": [],
                "outcome": "file",
                "prediction": None,
                "forecast": None,
                "waterfall": None,
                "driver_calls": {
                    "calls": 1,
                    "reserved_bytes": 20 * MIB,
                    "returned_bytes": 0,
                    "retries": 0,
                    "reserved_by": [{"bytes": 20 * MIB, "calls": 1, "where": None}],
                    "largest_rise": {
                        "event": 0,
                        "step": None,
                        "bytes": 20 * MIB,
                        "requested_bytes": 1000,
                        "free_bytes": 0,
                        "largest_free_bytes": 0,
                        "where": None,
                        "text": "cudaMalloc reserved 20.0 MiB for 1000 B requested (no stack recorded): "
                        "nothing of the reserved memory that could serve it was free.",
                    },
                },
                "notes": [],
            }
        ],
        "ranks": None,
        "findings": [],
    }


def test_the_terminal_says_the_same_in_words(monkeypatch, capsys):
    out = report(monkeypatch, capsys, by_hand(), outcome=Outcome.FINISHED)

    assert "gpt2 (finished)" in out
    assert "rank 3, device 1, Pretend GPU 80.0 GiB" in out
    assert "7 events, 6 µs, 2 steps, torch 2.13.0" in out
    assert cells(out, "at the end") == ["at the end", "1.48 KiB", "1.00 KiB", "1.50 KiB", "20.0 MiB"]
    assert "step 0 backward" in out
    assert "train.py:12 <module>: mse_loss" in out
    assert "model.py:31 forward: linear" in out


def test_where_no_stack_is_recorded_there_is_no_table_of_lines(monkeypatch, capsys):
    bare = by_hand(stacks=StackBuilder().build(), phases=Phases.of(), steps=Steps.of())
    bare = replace(bare, trace=replace(bare.trace, stack_id=np.zeros(len(EVENTS), "i4")))
    out = report(monkeypatch, capsys, bare)

    assert "Peak 3.00 KiB allocated; by whom is not recorded" in out
    assert "no stack recorded" not in out
    assert "by the line that allocated it" not in out


def test_what_holds_most_comes_first_and_the_rest_is_summed_up(monkeypatch, capsys):
    out = report(monkeypatch, capsys, by_hand(), "--top", "1")

    assert "2.00 KiB  66.7 %" in out
    assert "1.00 KiB  33.3 %" in out
    assert "1 more place (--top 2)" in out
    assert "model.py:31" not in out


def test_notes_come_before_any_figure(monkeypatch, capsys):
    note = Note("gap", "3 events are missing after event 2", 3)
    out = report(monkeypatch, capsys, by_hand(notes=(note,)))
    shown = json.loads(report(monkeypatch, capsys, by_hand(notes=(note,)), "--json"))

    assert out.index("! 3 events are missing") < out.index("at the end")
    assert shown["recordings"][0]["gaps"] == 1
    assert shown["recordings"][0]["notes"] == [
        {"code": "gap", "text": "3 events are missing after event 2", "value": 3}
    ]


def test_memory_in_use_before_the_trace_is_a_late_start(monkeypatch, capsys):
    segments = Segments.of(address=[BASE], size=[2 * MIB], is_large=[False])
    blocks = Blocks.of(
        address=[BASE, BASE + 512],
        size=[512, 2 * MIB - 512],
        requested_size=[500, 0],
        state=[BlockState.ALLOCATED, BlockState.INACTIVE],
    )
    late = Recording(initial=Snapshot(segments=segments, blocks=blocks))
    (shown,) = json.loads(report(monkeypatch, capsys, late, "--json"))["recordings"]

    assert shown["starts_late"] is True
    assert shown["end"] == shown["peak"]
    assert shown["end"] == {
        "requested_bytes": 500,
        "allocated_bytes": 512,
        "active_bytes": 512,
        "reserved_bytes": 2 * MIB,
    }


def test_a_simulated_recording_says_so_wherever_it_is_shown(monkeypatch, capsys):
    simulated = by_hand(source="simulated", device=Device(kind="simulated"))

    assert "simulated" in report(monkeypatch, capsys, simulated)
    assert "simulated" in report(monkeypatch, capsys, simulated, "--markdown")
    assert '"source": "simulated"' in report(monkeypatch, capsys, simulated, "--json")


def test_known_categories_are_printed_in_bytes_that_sum_to_the_peak(monkeypatch, capsys):
    labels = Labels.of(event=[3], address=[BASE], category=[1])
    (shown,) = json.loads(report(monkeypatch, capsys, by_hand(labels=labels), "--json"))["recordings"]

    assert shown["categories_at_peak"]["parameter"] == 1024
    assert sum(shown["categories_at_peak"].values()) == 3072


def test_a_category_is_printed_at_the_peak_and_at_its_own(monkeypatch, capsys):
    # 1024 bytes of it go before the peak of all; at its own instant it holds them and 512 more.
    rows = [(0, BASE, 512), (0, BASE + 512, 1024), (1, BASE + 512, 1024), (2, BASE + 512, 1024)]
    rows.append((0, BASE + 4096, 4096))
    trace = Trace.of(**{n: [row[i] for row in rows] for i, n in enumerate(("action", "address", "size"))})
    trace = replace(trace, block_size=trace.size)
    labels = Labels.of(event=[1, 2, 5], address=[BASE, BASE + 512, BASE + 4096], category=[1, 1, 2])
    recording = Recording(trace=trace, labels=labels)

    out = report(monkeypatch, capsys, recording)
    (shown,) = json.loads(report(monkeypatch, capsys, recording, "--json"))["recordings"]

    assert cells(out, "parameter") == ["parameter", "512 B", "11.1 %", "1.50 KiB"]
    assert cells(out, "buffer") == ["buffer", "4.00 KiB", "88.9 %", "4.00 KiB"]
    assert shown["categories_at_peak"] == {"buffer": 4096, "parameter": 512}
    assert shown["category_own_peaks"] == {"buffer": 4096, "parameter": 1536}


def test_ranks_are_put_beside_one_another_at_the_moment_of_their_common_peak(monkeypatch, capsys):
    """Rank 3 is at 3072 bytes from 2 to 3 µs; rank 4, 10 µs later, when rank 3 has 1024 left."""
    later = by_hand(process=Process(rank=4, torch="2.13.0"))
    later = replace(later, trace=replace(later.trace, time_ns=later.trace.time_ns + 10_000))
    later = replace(later, trace=later.trace.rows(slice(0, 3)))
    loading(monkeypatch, by_hand(), later)

    assert cli.main(["report", "traces/gpt2"]) == 0
    out = capsys.readouterr().out
    assert cli.main(["report", "traces/gpt2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["ranks"]

    assert "All 2 together: 4.00 KiB allocated at their common peak" in out
    ended = ["rank 3", "1.00 KiB (not recorded then)", "25.0 %", "20.0 MiB", "3.00 KiB", "step 0 backward"]
    assert cells(out, "rank 3  ") == ended
    assert cells(out, "rank 4  ")[1:5] == ["3.00 KiB", "75.0 %", "20.0 MiB", "3.00 KiB"]
    assert "not evenly spread" not in out
    assert (shown["allocated_bytes"], shown["time_ns"]) == (4096, 1_000_012_000)
    assert shown["rows"][0] == {
        "rank": 3,
        "device": 1,
        "allocated_bytes": 1024,
        "reserved_bytes": 20 * MIB,
        "own_peak_allocated_bytes": 3072,
        "is_within": False,
    }


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_rank_with_a_second_copy_on_the_device_of_another_is_named(monkeypatch, capsys, is_shared):
    """Rank 4 has 1 KiB on another device than its own, which is that of rank 5, or nobody's."""
    small = by_hand(trace=by_hand().trace.rows(slice(0, 2)))
    first, second, third = (Device(index=at, uuid=f"GPU-{at}") for at in range(3))
    own = by_hand(process=Process(rank=4), device=second)
    copy = replace(small, process=Process(rank=4), device=first if is_shared else third)
    loading(monkeypatch, own, copy, by_hand(process=Process(rank=5), device=first))

    assert cli.main(["report", "traces/gpt2", "--markdown"]) == 0

    assert ("rank 4 holds 1.00 KiB on device 0" in capsys.readouterr().out) is is_shared


def test_a_rank_that_needs_more_than_the_others_is_named(monkeypatch, capsys):
    small = by_hand(trace=by_hand().trace.rows(slice(0, 2)))
    other = replace(small, process=Process(rank=4))
    loading(monkeypatch, small, other, by_hand(process=Process(rank=5)))

    assert cli.main(["report", "traces/gpt2", "--markdown"]) == 0

    assert "rank 5 peaks 2.00 KiB above the median of all" in capsys.readouterr().out


def test_without_labels_and_phases_no_category_is_claimed(monkeypatch, capsys):
    bare = by_hand(phases=Phases.of(), steps=Steps.of())
    (shown,) = json.loads(report(monkeypatch, capsys, bare, "--json"))["recordings"]

    assert shown["categories_at_peak"] is None
    assert "by category" not in report(monkeypatch, capsys, bare)


def test_samples_alone_are_reported_as_the_drivers_view_without_zeros_of_torch(monkeypatch, capsys):
    counters = Counters.of(
        time_ns=[1, 3],
        event=[-1, -1],
        allocated_bytes=[-1, -1],
        reserved_bytes=[-1, -1],
        device_used_bytes=[3 * MIB, 2 * MIB],
        device_total_bytes=[-1, -1],
        process_used_bytes=[-1, -1],
        utilization_percent=[0, 7],
    )
    sampled = Recording(counters=counters)

    (shown,) = json.loads(report(monkeypatch, capsys, sampled, "--json"))["recordings"]
    out = report(monkeypatch, capsys, sampled)

    assert shown["samples_peak"] == {"device_used_bytes": 3 * MIB, "utilization_percent": 7}
    assert cells(out, "device used") == ["device used", "3.00 MiB", "at the start", "2.00 MiB"]
    assert cells(out, "utilization") == ["utilization", "7 %", "after 2 ns", "7 %"]
    assert "2 samples" in out
    assert "peak" not in out


def test_parts_of_reserved_memory_are_left_out_where_the_source_has_no_layout(monkeypatch, capsys):
    note = Note("no_layout", "not reported")

    assert "20.0 MiB reserved when" in report(monkeypatch, capsys, by_hand())
    assert "reserved when" not in report(monkeypatch, capsys, by_hand(notes=(note,)))


def test_an_empty_recording_is_reported_as_such(monkeypatch, capsys):
    (shown,) = json.loads(report(monkeypatch, capsys, Recording(), "--json"))["recordings"]
    out = report(monkeypatch, capsys, Recording())

    assert shown["events"] == 0
    assert set(shown["peak"].values()) == {0}
    assert "0 events" in out


def test_a_run_without_recordings_says_so(monkeypatch, capsys):
    loading(monkeypatch)

    assert cli.main(["report", "x"]) == 0
    assert "no recordings" in capsys.readouterr().out


def test_how_the_run_ended_is_printed(monkeypatch, capsys):
    out = report(monkeypatch, capsys, by_hand(), outcome=Outcome.FAILED, error="ValueError: no batch")

    assert "gpt2 (failed)" in out
    assert "! ValueError: no batch" in out


def test_many_steps_are_cut_to_the_telling_ones(monkeypatch, capsys):
    steps = Steps.of(index=range(100), start_event=[0] * 99 + [5], end_event=[0] * 42 + [3] + [0] * 56 + [7])
    out = report(monkeypatch, capsys, by_hand(steps=steps, phases=Phases.of()))

    assert "88 more steps, none higher" in out
    assert [line.split()[0] for line in out.splitlines() if line.strip().startswith("42 ")] == ["42"]


def test_markdown_has_the_tables(monkeypatch, capsys):
    out = report(monkeypatch, capsys, by_hand(), "--markdown")

    assert out.startswith("# gpt2 (a file)\n")
    assert "| at the end | 1.48 KiB | 1.00 KiB | 1.50 KiB | 20.0 MiB |" in out
    assert "| 0 | 3.00 KiB | 1.00 KiB | 3.00 KiB |" in out


@pytest.mark.parametrize("options", [["--top", "0"], ["--top", "-1"]])
def test_a_table_of_no_rows_is_asked_wrongly(monkeypatch, options):
    loading(monkeypatch, by_hand())

    assert cli.main(["report", "x", *options]) == 2


def test_info_counts_what_is_in_the_file(monkeypatch, capsys):
    loading(monkeypatch, by_hand(), outcome=Outcome.DIED, started_ns=5)

    assert cli.main(["info", "x", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (recording,) = shown["recordings"]
    assert (shown["schema"], shown["outcome"], shown["started_ns"], shown["ended_ns"]) == (1, "died", 5, None)
    assert recording["events_by_action"] == {
        "alloc": 3,
        "free_requested": 2,
        "free_completed": 1,
        "segment_alloc": 1,
    }
    assert (recording["events"], recording["steps"], recording["stacks"]) == (7, 2, 2)
    assert recording["capacity_bytes"] == 80 * 2**30
    assert recording["python"] is None


def test_info_in_words_names_versions_and_counts(monkeypatch, capsys):
    loading(monkeypatch, by_hand())

    assert cli.main(["info", "x"]) == 0
    out = capsys.readouterr().out
    assert "2.13.0" in out
    assert "alloc 3, free_requested 2" in out
    assert "80.0 GiB" in out


def in_module(path: str, recording: Recording) -> Recording:
    """The recording with a module of that path running all the time."""
    marks = Marks.of(kind=[MarkKind.MODULE], event=[0], name=[1], names=("", path))
    return replace(recording, marks=marks)


def test_the_module_stands_beside_the_line(monkeypatch, capsys):
    inside = in_module("transformer.h.3.mlp", by_hand())

    out = report(monkeypatch, capsys, inside)
    (shown,) = json.loads(report(monkeypatch, capsys, inside, "--json"))["recordings"]

    assert "net/model.py:31 forward: linear  [transformer.h.3.mlp]" in out
    assert {row["module"] for row in shown["live_at_peak"]} == {"transformer.h.3.mlp"}


def test_the_module_stands_beside_the_line_of_a_memory_error(monkeypatch, capsys):
    failed = in_module("transformer.h.3.mlp", out_of_memory(by_hand(device=Device(total_bytes=64 * MIB))))
    last = failed.trace.stack_id.copy()
    last[-1] = failed.trace.stack_id[1]
    failed = replace(failed, trace=replace(failed.trace, stack_id=last))

    out = report(monkeypatch, capsys, failed)
    (finding,) = json.loads(report(monkeypatch, capsys, failed, "--json"))["findings"]

    assert "(net/model.py:31 in transformer.h.3.mlp)" in out
    assert finding["module"] == "transformer.h.3.mlp"
    assert failed.oom().holders[-1].words == "1.00 KiB from net/model.py:31 in transformer.h.3.mlp"


def test_the_live_set_has_no_place_where_only_a_library_is_known(monkeypatch, capsys):
    library = "/opt/lib/python3.11/site-packages/accelerate/optimizer.py"
    builder = StackBuilder()
    alone, mine = builder.add([("step", library, 5)]), builder.add([("main", "/home/me/train.py", 9)])
    stack_id = np.array([0, alone, mine, 0, 0, alone, 0], "i4")
    made = by_hand(stacks=builder.build(), trace=replace(by_hand().trace, stack_id=stack_id))

    (shown,) = json.loads(report(monkeypatch, capsys, made, "--json"))["recordings"]
    out = report(monkeypatch, capsys, made)

    assert [row["where"] and row["where"]["file"] for row in shown["live_at_peak"]] == [
        "/home/me/train.py",
        None,
    ]
    assert shown["live_at_peak"][1]["frames"] == [{"file": library, "line": 5, "function": "step"}]
    assert "(library) accelerate/optimizer.py:5 step" in out


def out_of_memory(recording: Recording) -> Recording:
    """The same, ended by an allocation that failed."""
    trace = recording.trace
    columns = {name: column.tolist() for name, column in trace.columns()}
    last = {name: values[-1] for name, values in columns.items()}
    last |= {"action": int(Action.OOM), "size": 64 * MIB, "block_size": 64 * MIB, "address": 0}
    return replace(
        recording, trace=Trace.of(**{name: [*values, last[name]] for name, values in columns.items()})
    )


def test_the_device_that_ran_out_of_memory_comes_first(monkeypatch, capsys):
    full = by_hand(device=Device(index=0, total_bytes=21 * MIB))
    failed = out_of_memory(by_hand(device=Device(index=1, total_bytes=40 * MIB)))
    loading(monkeypatch, full, failed)

    assert cli.main(["report", "traces/gpt2"]) == 0
    out = capsys.readouterr().out
    assert cli.main(["report", "traces/gpt2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)

    assert out.index("out of memory") < out.index("All 2 together") < out.index("\nrank 3, device 1")
    assert out.index("\nrank 3, device 1") < out.index("\nrank 3, device 0")
    first = shown["findings"][0]
    assert (first["kind"], first["rank"], first["device"]) == ("oom", 3, 1)


def test_a_device_without_a_later_event_was_recorded_all_the_same(monkeypatch, capsys):
    later = by_hand(device=Device(index=2))
    later = replace(later, trace=replace(later.trace, time_ns=later.trace.time_ns + 10_000))
    loading(monkeypatch, by_hand(), later)

    assert cli.main(["report", "traces/gpt2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ranks"]["rows"]

    assert [row["is_within"] for row in rows] == [True, True]


def test_one_rank_or_device_alone_is_reported_where_asked(monkeypatch, capsys):
    loading(monkeypatch, by_hand(), by_hand(process=Process(rank=4)))

    assert cli.main(["report", "traces/gpt2", "--rank", "4"]) == 0
    out = capsys.readouterr().out
    assert cli.main(["report", "traces/gpt2", "--device", "7"]) == 2

    assert "rank 4, device 1" in out
    assert "rank 3" not in out


@pytest.mark.parametrize("options", [[], ["--markdown"]])
def test_a_report_on_many_ranks_is_a_page(monkeypatch, capsys, options):
    note = Note("gap", "3 events are missing after event 2", 3)
    many = [out_of_memory(by_hand(process=Process(rank=rank), notes=(note,))) for rank in range(64)]
    loading(monkeypatch, *many)

    assert cli.main(["report", "traces/gpt2", *options]) == 0
    out = capsys.readouterr().out

    assert len(out.splitlines()) <= 60
    assert out.count("out of memory") == 1
    assert "ranks 0-63" in out
    assert "54 more rows" in out


def test_a_peak_outside_of_every_step_is_in_the_table_of_steps(monkeypatch, capsys):
    evaluation = Phases.of(phase=[FORWARD, EVAL], step=[0, -1], start_event=[1, 2], end_event=[2, 5])
    made = by_hand(steps=Steps.of(index=[0], start_event=[1], end_event=[2]), phases=evaluation)

    out = report(monkeypatch, capsys, made)
    (shown,) = json.loads(report(monkeypatch, capsys, made, "--json"))["recordings"]

    assert cells(out, "outside ") == ["outside", "3.00 KiB", "3.00 KiB"]
    assert "the peak of the run, 3.00 KiB, lies outside of every step" in out
    assert shown["outside_steps"]["peak_allocated_bytes"] == 3072
    assert shown["outside_steps"]["phases"] == [{"phase": "eval", "peak_allocated_bytes": 3072}]


def test_a_peak_in_an_annotation_has_the_annotations_name(monkeypatch, capsys):
    mine = Phases.of(
        phase=[int(Phase.USER)], step=[-1], start_event=[1], end_event=[7], name=[1], names=("", "attention")
    )

    out = report(monkeypatch, capsys, by_hand(steps=Steps.of(), phases=mine))

    assert cells(out, "peak in") == ["peak in", "attention", "attention", "attention", "event 1"]


def test_private_pools_in_use_at_the_peak_are_shown(monkeypatch, capsys):
    trace = by_hand().trace
    private = replace(trace, pool=np.ones(len(trace), "i4"))
    made = by_hand(trace=private, pools=((0, 0), (0, 3)))

    out = report(monkeypatch, capsys, made)
    (shown,) = json.loads(report(monkeypatch, capsys, made, "--json"))["recordings"]

    assert cells(out, "(0, 3)")[:3] == ["(0, 3)", "20.0 MiB", "3.00 KiB"]
    assert shown["private_pools_at_peak"] == [
        {
            "pool": [0, 3],
            "reserved_bytes": 20 * MIB,
            "allocated_bytes": 3072,
            "kind": "unknown",
            "place": None,
        }
    ]
    assert "Private pools" not in report(monkeypatch, capsys, by_hand())


def test_a_place_is_stated_once(monkeypatch, capsys):
    builder = StackBuilder()
    mine = builder.add([("step", "/home/me/train.py", 7)])
    size = [100 * MIB, MIB, 100 * MIB, 100 * MIB]
    trace = Trace.of(
        action=[Action.SEGMENT_ALLOC, Action.ALLOC, Action.SEGMENT_ALLOC, Action.ALLOC],
        time_ns=range(1000, 1004),
        address=[BASE, BASE, BASE + 200 * MIB, BASE + 200 * MIB],
        size=size,
        block_size=size,
        stack_id=[0, mine, 0, 0],
    )

    out = report(monkeypatch, capsys, Recording(trace=trace, stacks=builder.build()))

    (line,) = (line for line in out.splitlines() if "pinned by" in line)
    assert line.count("me/train.py:7") == 1
