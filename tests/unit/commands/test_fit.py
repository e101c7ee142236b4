"""fit says what would fit: in words, and for machines."""

import json
from importlib import import_module

import pytest

from vramscope import cli
from vramscope.commands._crew import crew
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.recording import Recording, Run
from vramscope.model.trace import Action, Trace

MIB = 1 << 20


def trained(sizes, rank: int = 0, **fields) -> Recording:
    """A weight of 8 MiB; each step holds as many MiB as it is told."""
    rows, starts = [(Action.ALLOC, 0, 8)], []
    for number, size in enumerate(sizes, start=1):
        starts.append(len(rows))
        rows += [(action, number << 32, size) for action in (0, 1, 2)]
    action, address, size = zip(*rows, strict=True)
    n_bytes = [each * MIB for each in size]
    ends = [*starts[1:], len(rows)]
    known = {
        "trace": Trace.of(action=action, address=address, size=n_bytes, block_size=n_bytes),
        "steps": Steps.of(index=range(len(sizes)), start_event=starts, end_event=ends),
        "phases": Phases.of(
            phase=[Phase.FORWARD] * len(sizes), step=range(len(sizes)), start_event=starts, end_event=ends
        ),
        "process": Process(rank=rank),
    }
    return Recording(**(known | fields))


@pytest.fixture
def runs(monkeypatch):
    """``runs(name=recordings)``: what is at these paths."""

    def offer(**known: list[Recording]) -> None:
        made = {name: Run(name, name, tuple(recordings)) for name, recordings in known.items()}
        monkeypatch.setattr(import_module("vramscope.load"), "load", lambda path: made[path])

    return offer


def asked(capsys, *arguments: str):
    assert cli.main(["fit", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_card_fits_what_its_allocator_can_have(runs, capsys):
    outside = Counters.of(
        time_ns=[1], process_used_bytes=[30 * MIB], reserved_bytes=[20 * MIB], device_used_bytes=[30 * MIB]
    )
    runs(run=[trained([40, 40], counters=outside)])

    found = asked(capsys, "run", "--capacity", "70MiB,69MiB")

    # 8 MiB take a segment of 20, 40 have one of their own, and 10 are outside of the allocator.
    assert (found["outside_bytes"], found["outside_is_measured"]) == (10 * MIB, True)
    assert [card["as_it_is"]["fits"] for card in found["cards"]] == [True, False]
    assert found["cards"][1]["as_it_is"]["failed_bytes"] == 40 * MIB


def test_what_other_batches_need_is_told_for_each_card(runs, capsys):
    runs(run=[trained([20, 20, 40, 40])], base=[trained([20, 20, 20])])

    found = asked(capsys, "run", "--batch", "1,1,2,2", "--capacity", "700MiB")

    assert found["batch"]["sizes"] == [1, 2]
    # 600 MiB are assumed to be outside: 100 are left for 8 and 20 for each; the data carry to 4.
    assert found["batch"]["largest"] == [{"capacity_bytes": 700 * MIB, "size": 4, "is_limited_by_data": True}]
    with_other = asked(capsys, "run", "--with", "base", "--batch", "1,1,2,2;1")
    assert with_other["batch"]["steps"] == 5


def test_the_page_says_it_in_words(runs, capsys):
    runs(run=[trained([20, 20, 40, 40])])

    assert cli.main(["fit", "run", "--batch", "1,1,2,2", "--capacity", "1GiB"]) == 0

    page = capsys.readouterr().out
    assert "assumed: the recording does not say" in page
    assert "change nothing" in page
    assert "on a card of 1.00 GiB fits at least 4 (samples): the data carry no further" in page
    assert "Fits a card of 1.00 GiB: at most 80.0 MiB reserved, 344 MiB to spare; change nothing" in page


def test_one_setting_alone_can_be_asked_for(runs, capsys):
    runs(run=[trained([20])])

    found = asked(capsys, "run", "--conf", "expandable_segments:True")

    # 28 MiB in units of 20.
    assert found["conf"]["peak_reserved_bytes"] == 40 * MIB
    assert found["settings"] is None


@pytest.mark.parametrize(
    "options",
    [
        ["--capacity", "large"],
        ["--batch", "1,2"],
        ["--batch", "x"],
        ["--batch", "0"],
        ["--rank", "3"],
        ["--gpus", "1"],
        ["--conf", "roundup_power2_divisions:3"],
        ["--conf", "max_split_size:64"],
        ["--conf", "expandable_segments:True,bogus:1"],
        ["--capacity", "25"],
        ["--capacity", "0GiB"],
        ["--fraction", "1.5"],
        ["--empty-cache", "epoch"],
    ],
)
def test_what_cannot_be_meant_is_asked_wrongly(runs, options):
    runs(run=[trained([20, 20, 20])])

    assert cli.main(["fit", "run", *options]) == 2


def test_cards_are_asked_about_by_name(runs, capsys):
    runs(run=[trained([40])])

    found = asked(capsys, "run", "--capacity", "4090,40GB")

    assert [card["card"][:17] for card in found["cards"]] == ["the RTX 3090/4090", "the A100 40 GB (3"]
    assert found["cards"][1]["capacity_bytes"] < 40 << 30
    assert found["smallest_card"]["as_it_is"]["name"] == "T4 16 GB"
    assert "estimate" in found["smallest_card"]["basis"]


def test_where_memory_runs_out_the_first_line_says_where_and_what_helps(runs, capsys):
    # Blocks of 9 MiB: two in a segment of 20; what is left of each serves nobody.
    rows = [(Action.ALLOC, number << 32, 9 * MIB) for number in range(100)]
    action, address, size = zip(*rows, strict=True)
    trace = Trace.of(action=action, address=address, size=size, block_size=size)
    steps = Steps.of(index=[0, 1], start_event=[0, 50], end_event=[50, 100])
    runs(run=[Recording(trace=trace, steps=steps)])

    assert cli.main(["fit", "run", "--capacity", "1550MiB"]) == 0

    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[1].startswith("Does not fit a card of 1.51 GiB: out of memory at step 1, 9.00 MiB asked for")
    assert lines[1].endswith("with expandable_segments:True it fits")
    assert lines[2].endswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")


def test_stopped_by_ctrl_c_it_says_in_one_line_how_far_it_came(runs, capsys, monkeypatch):
    runs(run=[trained([40, 40])])

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vramscope.analysis.strategies.strategies", stopped)

    assert cli.main(["fit", "run", "--json"]) == 130
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "vramscope: stopped; finished: settings, cards, batch; not finished: strategies\n",
    )


def test_a_key_of_a_newer_torch_is_refused(runs, capsys):
    runs(run=[trained([40], process=Process(torch="2.9.1"))])

    assert cli.main(["fit", "run", "--conf", "large_segment_size_mb:64"]) == 2
    assert "torch has it since 2.11, and this recording is of 2.9.1" in capsys.readouterr().err


def test_without_events_there_is_nothing_to_replay(runs):
    runs(run=[Recording(device=Device())])

    assert cli.main(["fit", "run"]) == 2


def test_a_crew_answers_in_order():
    assert list(crew(str, range(7), "counting")) == ["0", "1", "2", "3", "4", "5", "6"]
    assert list(crew(str, [5], "counting")) == ["5"]
