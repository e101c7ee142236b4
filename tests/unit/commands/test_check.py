"""check and diff say what is counted by hand, and exit as a CI server needs it."""

import json
import re
from dataclasses import replace
from importlib import import_module
from xml.etree import ElementTree as ET

import pytest

from vramscope import cli
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note, Steps
from vramscope.model.recording import Recording, Run
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace

MIB = 2**20


def grown(extra: int = 0, rank: int = 0) -> Recording:
    """A segment of 20 MiB, in a step 10 MiB of a weight and 4 MiB plus *extra* of an activation in it."""
    builder = StackBuilder()
    weight = builder.add([("<module>", "/home/me/train.py", 5)])
    activation = builder.add([("forward", "/home/me/model.py", 31)])
    trace = Trace.of(
        action=[Action.SEGMENT_ALLOC, Action.ALLOC, Action.ALLOC],
        time_ns=[1000, 2000, 3000],
        address=[0, 0, 10 * MIB],
        size=[20 * MIB, 10 * MIB, 4 * MIB + extra],
        block_size=[20 * MIB, 10 * MIB, 4 * MIB + extra],
        stack_id=[0, weight, activation],
    )
    steps = Steps.of(index=[0], start_event=[0], end_event=[3])
    return Recording(
        trace=trace, stacks=builder.build(), steps=steps, process=Process(rank=rank), device=Device()
    )


@pytest.fixture
def runs(monkeypatch):
    """``runs(name=recordings)``: what is at these paths."""

    def offer(**known: list[Recording]) -> None:
        made = {name: Run(name, name, tuple(recordings)) for name, recordings in known.items()}
        monkeypatch.setattr(import_module("vramscope.loading"), "load", lambda path: made[path])

    return offer


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--max-peak", "14MiB"], 0),
        (["--max-peak", "13MiB"], 3),
        (["--max-reserved", "20MiB"], 0),
        (["--max-reserved", "19MiB"], 3),
        (["--max-peak", "14MiB", "--max-reserved", "1MiB"], 3),
    ],
)
def test_a_limit_allows_what_it_names_and_forbids_more(runs, options, code):
    runs(run=[grown()])

    assert cli.main(["check", "run", *options]) == code


@pytest.mark.parametrize(("percent", "code"), [("30", 0), ("29.9", 3)])
def test_fragmentation_is_what_lay_free_when_the_driver_was_asked_for_more(runs, percent, code):
    # 6 of 20 MiB are a free piece of a segment in use when another 10 MiB are asked for.
    columns = {name: column.tolist() for name, column in grown().trace.columns()}
    row = {"action": Action.SEGMENT_ALLOC, "address": 1 << 30, "size": 10 * MIB, "block_size": 10 * MIB}
    trace = Trace.of(**{name: [*column, row.get(name, 0)] for name, column in columns.items()})
    runs(run=[Recording(trace=trace)])

    assert cli.main(["check", "run", "--max-fragmentation", percent]) == code


def test_growth_against_an_earlier_run_names_the_line_and_its_bytes(runs, capsys):
    runs(base=[grown()], run=[grown(MIB)])

    assert cli.main(["check", "run", "--against", "base", "--max-growth", "5"]) == 3

    # 1 of 14 MiB are 7.14 %.
    out = capsys.readouterr().out
    assert "+7.14 %" in out
    assert "+1.00 MiB me/model.py:31 forward" in out
    assert cli.main(["check", "run", "--against", "base", "--max-growth", "7.2"]) == 0
    assert cli.main(["check", "base", "--against", "run"]) == 0


def test_every_rank_is_held_against_the_limit_and_listed_for_the_server(runs, tmp_path, capsys):
    runs(run=[grown(rank=0), grown(2 * MIB, rank=1)])
    file = tmp_path / "checks.xml"

    assert cli.main(["check", "run", "--max-peak", "15MiB", "--junit", str(file), "--json"]) == 3

    suite = ET.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["max-peak (rank 1, device 0)"]
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [(check["rank"], check["passed"], check["value"]) for check in checks] == [
        (0, True, 14 * MIB),
        (1, False, 16 * MIB),
    ]


# What Jenkins' and Ant's schemas ask of a report of one suite: attributes that are numbers, and others.
JUNIT = {
    "testsuite": ({"tests", "failures", "errors", "skipped", "time"}, {"name"}, {"testcase"}),
    "testcase": ({"time"}, {"name", "classname"}, {"failure"}),
    "failure": (set(), {"message", "type"}, set()),
}


@pytest.mark.parametrize("limit", ["15MiB", "1MiB", "1GiB"])
def test_the_servers_list_is_as_the_schema_of_junit_wants_it(runs, tmp_path, limit):
    runs(run=[grown(rank=0), grown(2 * MIB, rank=1)])
    file = tmp_path / "checks.xml"

    cli.main(["check", "run", "--max-peak", limit, "--junit", str(file)])

    suite = ET.parse(file).getroot()
    assert suite.tag == "testsuite"
    for element in suite.iter():
        numbers, words, inside = JUNIT[element.tag]
        assert set(element.attrib) == numbers | words
        assert all(float(element.attrib[name]) >= 0 for name in numbers)
        assert all(element.attrib[name] for name in words)
        assert {child.tag for child in element} <= inside
    assert int(suite.attrib["tests"]) == len(suite) == len({case.get("name") for case in suite})
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))


def test_a_file_of_verdicts_is_overwritten_only_where_asked(runs, tmp_path, capsys):
    runs(run=[grown()])
    file = tmp_path / "checks.xml"
    file.write_text("mine")

    assert cli.main(["check", "run", "--max-peak", "1GiB", "--junit", str(file)]) == 2
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert cli.main(["check", "run", "--max-peak", "1GiB", "--junit", str(file), "--force"]) == 0
    assert ET.parse(file).getroot().tag == "testsuite"


def evaluated(evaluation: int) -> Recording:
    """The step of `grown`, and after it an evaluation of so many bytes more."""
    columns = {name: column.tolist() for name, column in grown().trace.columns()}
    row = {"action": Action.ALLOC, "address": 30 * MIB, "size": evaluation, "block_size": evaluation}
    segment = {"action": Action.SEGMENT_ALLOC, "address": 30 * MIB, "size": 99 * MIB, "block_size": 99 * MIB}
    added = [
        {"time_ns": 4000, "stack_id": 0} | segment,
        {"time_ns": 5000, "stack_id": int(grown().trace.stack_id[2])} | row,
    ]
    trace = Trace.of(
        **{name: [*column, *(each.get(name, 0) for each in added)] for name, column in columns.items()}
    )
    return replace(grown(), trace=trace)


def test_an_evaluation_that_grew_is_growth_of_the_peak(runs, capsys):
    runs(base=[evaluated(20 * MIB)], run=[evaluated(60 * MIB)])

    assert cli.main(["check", "run", "--against", "base"]) == 3
    out = capsys.readouterr().out
    assert cli.main(["diff", "base", "run"]) == 0
    shown = capsys.readouterr().out

    # 14 MiB of the step and 20 or 60 of the evaluation.
    assert "peak 74.0 MiB, +117.65 % against 34.0 MiB" in out
    assert "+40.0 MiB me/model.py:31 forward outside of steps" in out
    assert re.search(r"\+40.0 MiB +34.0 MiB +74.0 MiB +outside +allocated", shown)


def test_a_rank_that_the_earlier_run_lacks_has_not_passed(runs, capsys):
    runs(base=[grown(rank=0), grown(rank=1)], run=[grown(rank=0), grown(rank=7)])

    assert cli.main(["check", "run", "--against", "base"]) == 3
    assert "(rank 7, device 0): not known" in capsys.readouterr().out


def test_of_samples_the_highest_counts_and_is_called_sampled(runs, capsys):
    counters = Counters.of(time_ns=[1, 2], allocated_bytes=[5 * MIB, 3 * MIB])
    runs(run=[Recording(counters=counters)])

    assert cli.main(["check", "run", "--max-peak", "4MiB"]) == 3
    assert "at least 5.00 MiB allocated (sampled)" in capsys.readouterr().out


def test_what_a_recording_cannot_tell_has_not_passed(runs, capsys):
    runs(run=[Recording(counters=Counters.of(time_ns=[1], allocated_bytes=[1], reserved_bytes=[-1]))])

    assert cli.main(["check", "run", "--max-reserved", "1TiB"]) == 3
    assert cli.main(["check", "run", "--max-fragmentation", "100"]) == 3
    assert capsys.readouterr().out.count("not known") == 2


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--max-peak", "much"],
        ["--max-growth", "3"],
        ["--max-fragmentation", "-1"],
        ["--max-fragmentation", "nan"],
    ],
)
def test_a_limit_that_cannot_be_meant_is_asked_wrongly(runs, options):
    runs(run=[grown()])

    assert cli.main(["check", "run", *options]) == 2


def test_nothing_to_hold_a_limit_against_is_no_pass(runs):
    runs(run=[])

    assert cli.main(["check", "run", "--max-peak", "1GiB"]) == 2


# --------------------------------------------------------------------------------------------- diff


def test_diff_of_equal_runs_is_one_sentence(runs, capsys):
    runs(a=[grown()], b=[grown()])

    assert cli.main(["diff", "a", "b"]) == 0
    assert "no difference" in capsys.readouterr().out
    assert cli.main(["diff", "a", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparisons"][0]["changes"] == []


def test_diff_of_two_without_allocations_says_that_there_is_nothing_to_compare(runs, capsys):
    runs(a=[Recording()], b=[Recording()])

    assert cli.main(["diff", "a", "b"]) == 0
    assert "nothing to compare" in capsys.readouterr().out


def test_diff_names_the_line_the_category_and_the_bytes(runs, capsys):
    runs(a=[grown()], b=[grown(MIB)])

    assert cli.main(["diff", "a", "b", "--json"]) == 0

    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    lines = [change for change in comparison["changes"] if change["kind"] == "line"]
    assert [(line["bytes"], line["where"]) for line in lines] == [
        (MIB, {"file": "/home/me/model.py", "line": 31, "function": "forward"})
    ]
    assert cli.main(["diff", "a", "b"]) == 0
    assert "+1.00 MiB" in capsys.readouterr().out


def test_ranks_are_compared_with_themselves(runs, capsys):
    runs(a=[grown(rank=0), grown(rank=1)], b=[grown(rank=1), grown(MIB, rank=0)])

    assert cli.main(["diff", "a", "b", "--json"]) == 0

    comparisons = json.loads(capsys.readouterr().out)["comparisons"]
    assert {each["rank"]: bool(each["changes"]) for each in comparisons} == {0: True, 1: False}


def test_every_device_is_compared_and_one_without_a_partner_is_named(runs, capsys):
    def on(device: int, extra: int = 0) -> Recording:
        return replace(grown(extra), device=Device(index=device))

    runs(a=[on(0), on(1)], b=[on(0), on(1, MIB), on(2)])

    assert cli.main(["diff", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert cli.main(["diff", "a", "b", "--device", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)

    assert "rank 0, device 2: only in b, and not compared" in out
    assert out.index("rank 0, device 0\n") < out.index("rank 0, device 1\n") < out.index("+1.00 MiB")
    assert [(each["rank"], each["device"]) for each in shown["comparisons"]] == [(0, 1)]
    assert shown["only_in_b"] == []


def test_lines_of_the_same_name_are_distinguished(runs, capsys):
    def three(extra: int) -> Recording:
        builder = StackBuilder()
        torch = "/opt/lib/python3.11/site-packages/torch/nn/functional.py"
        calls = [("linear", "a"), ("gelu", "a"), ("linear", "b")]
        stacks = [
            builder.add([(via, torch, 1), ("forward", f"/home/me/{folder}/oom.py", 17)])
            for via, folder in calls
        ]
        size = [(10 + extra * number) * MIB for number in (1, 2, 3)]
        trace = Trace.of(
            action=[Action.ALLOC] * 3,
            address=[0, 1 << 30, 2 << 30],
            size=size,
            block_size=size,
            stack_id=stacks,
        )
        return Recording(trace=trace, stacks=builder.build())

    runs(a=[three(0)], b=[three(1)])

    assert cli.main(["diff", "a", "b"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "oom.py:17" in line]
    assert [row.split("  ")[-1].strip() for row in rows] == [
        "b/oom.py:17 forward: linear",
        "a/oom.py:17 forward: gelu",
        "a/oom.py:17 forward: linear",
    ]


def test_runs_without_a_rank_in_common_are_asked_wrongly(runs):
    runs(a=[grown(rank=0), grown(rank=1)], b=[grown(rank=2)])

    assert cli.main(["diff", "a", "b"]) == 2


def test_of_a_recording_that_lacks_events_no_difference_is_said_of_what_was_recorded(runs, capsys):
    gap = replace(grown(), notes=(Note("gap", "events are missing", 7),))
    runs(a=[grown()], b=[gap])

    assert cli.main(["diff", "a", "b"]) == 0
    assert "in what was recorded" in capsys.readouterr().out
    assert cli.main(["diff", "a", "b", "--json"]) == 0
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (comparison["is_decided"], comparison["changes"]) == (False, [])
    assert comparison["reason"] == "of the second events are missing in a gap"
