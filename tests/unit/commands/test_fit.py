"""fit says what would fit: in words, and for machines."""

import json
from importlib import import_module

import pytest

from vramscope import cli
from vramscope.analysis.fit.answer import DryPeak, Rerun, Reruns
from vramscope.commands._crew import crew
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Note, Phase, Phases, Steps
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Action, Trace

MIB = 1 << 20


def trained(sizes, rank: int = 0, **fields) -> Recording:
    """A weight of 8 MiB; each step holds the given number of MiB."""
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
        monkeypatch.setattr(import_module("vramscope.loading"), "load", lambda path: made[path])

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


def test_what_other_batches_need_is_printed_for_each_card(runs, capsys):
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
    assert "change nothing" not in page
    assert "on a card of 1.00 GiB fits a batch of at least 4: the data carry no further" in page
    # 8 and 40 MiB in units of 20 are 60, where segments of their own take 80.
    assert "Fits a card of 1.00 GiB: at most 80.0 MiB reserved, 344 MiB to spare; " in page
    assert "expandable_segments:True reserves 20.0 MiB less" in page


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
        ["--capacity", "24"],
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
    assert lines[1].startswith(
        "Does not fit a card of 1.51 GiB: out of memory at step 1, tried to allocate 9.00 MiB"
    )
    assert lines[1].endswith("with expandable_segments:True it fits")
    assert lines[2].endswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")


def test_stopped_by_ctrl_c_it_says_in_one_line_how_far_it_came(runs, capsys, monkeypatch):
    runs(run=[trained([40, 40])])

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vramscope.analysis.fit.strategies", stopped)

    assert cli.main(["fit", "run", "--json"]) == 130
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "vramscope: stopped; finished: batch; not finished: strategies, settings, cards\n",
    )


@pytest.mark.parametrize(
    ("conf", "since"),
    [
        ("large_segment_size_mb:64", "2.11"),
        ("expandable_segments:True,expandable_segments_reserve:40G", "2.15"),
        ("expandable_segments:True,expandable_segments_reserve_by_class:[load:0.5]", "2.15"),
    ],
)
def test_a_key_of_a_newer_torch_is_refused(runs, capsys, conf, since):
    runs(run=[trained([40], process=Process(torch="2.9.1"))])

    assert cli.main(["fit", "run", "--conf", conf]) == 2
    assert f"torch has it since {since}, and this recording is of 2.9.1" in capsys.readouterr().err


def test_an_address_space_reserve_of_a_new_torch_changes_no_replay(runs, capsys):
    runs(run=[trained([40], process=Process(torch="2.15.0"))])
    plain = asked(capsys, "run", "--conf", "expandable_segments:True")
    reserved = asked(capsys, "run", "--conf", "expandable_segments:True,expandable_segments_reserve:0.5")

    assert {**reserved["conf"], "conf": ""} == {**plain["conf"], "conf": ""}


def test_without_events_there_is_nothing_to_replay(runs):
    runs(run=[Recording(device=Device())])

    assert cli.main(["fit", "run"]) == 2


def test_a_crew_answers_in_order():
    assert list(crew(str, range(7), "counting")) == ["0", "1", "2", "3", "4", "5", "6"]
    assert list(crew(str, [5], "counting")) == ["5"]


# ---------------------------------------------------------------- verdicts that are right, or absent


def segmented(n_mib: int, **fields) -> Recording:
    """One segment of so many MiB, all of it used, and then given back to the cache."""
    rows = [
        (Action.SEGMENT_ALLOC, n_mib),
        (Action.ALLOC, n_mib),
        (Action.FREE_REQUESTED, n_mib),
        (Action.FREE_COMPLETED, n_mib),
    ]
    action, size = zip(*rows, strict=True)
    n_bytes = [each * MIB for each in size]
    trace = Trace.of(action=action, address=[1 << 32] * 4, size=n_bytes, block_size=n_bytes)
    return Recording(**({"trace": trace, "process": Process(torch="2.13.0")} | fields))


def out_of_memory(n_mib: int, asked_mib: int, **fields) -> Recording:
    """One segment in use; the next request fails, and nothing comes after it."""
    rows = [
        (Action.SEGMENT_ALLOC, 1 << 32, n_mib),
        (Action.ALLOC, 1 << 32, n_mib),
        (Action.OOM, 0, asked_mib),
    ]
    action, address, size = zip(*rows, strict=True)
    n_bytes = [each * MIB for each in size]
    trace = Trace.of(action=action, address=address, size=n_bytes, block_size=n_bytes)
    return Recording(**({"trace": trace, "process": Process(torch="2.13.0")} | fields))


def said(capsys, *arguments: str) -> str:
    assert cli.main(["fit", *arguments]) == 0
    return capsys.readouterr().out


def test_of_several_devices_the_one_that_ran_out_comes_first_and_none_is_left_out(runs, capsys):
    device = {"device": Device(index=0, total_bytes=4000 * MIB)}
    other = {"device": Device(index=1, total_bytes=2000 * MIB)}
    runs(run=[segmented(2500, **device), out_of_memory(1000, 1600, **other)])

    found = asked(capsys, "run")

    assert [(each["device"], each["fits"]) for each in found["recordings"]] == [(1, False), (0, True)]
    assert (found["device"], found["recordings"][0]["as_it_is"]["failed_bytes"]) == (1, 1600 * MIB)
    page = said(capsys, "run")
    assert "rank 0, device 1: Does not fit this device of 1.95 GiB" in page
    assert "rank 0, device 0: fits this device of 3.91 GiB" in page


def test_one_device_can_be_asked_about_alone(runs, capsys):
    runs(run=[segmented(100, device=Device(index=each, total_bytes=4000 * MIB)) for each in (0, 1)])

    assert [each["device"] for each in asked(capsys, "run", "--device", "1")["recordings"]] == [1]
    assert cli.main(["fit", "run", "--device", "2"]) == 2


def test_a_run_that_ended_out_of_memory_fits_nothing_for_certain(runs, capsys):
    runs(run=[out_of_memory(1000, 500, device=Device(total_bytes=8000 * MIB))])

    found = asked(capsys, "run", "--capacity", "80GiB")

    assert found["recordings"][0]["fits"] is None
    assert found["smallest_card"]["as_it_is"] is None
    page = said(capsys, "run", "--capacity", "80GiB")
    assert "Whether it fits a card of 80.0 GiB is not known: the recording ends with an allocation" in page
    assert "Fits" not in page


def test_a_limit_of_the_process_holds_for_its_own_device(runs, capsys):
    limit = Note("limit", "1.00 GiB allowed to this process", 1024 * MIB)
    runs(run=[out_of_memory(900, 500, device=Device(total_bytes=80 << 30), notes=(limit,))])

    found = asked(capsys, "run")

    assert found["limit_bytes"] == 1024 * MIB
    assert found["cards"][0]["as_it_is"]["capacity_bytes"] == 1024 * MIB
    assert found["recordings"][0]["fits"] is False
    page = said(capsys, "run", "--capacity", "160GiB,40GiB")
    assert "the program limits itself to 1.00 GiB, 1.2 % of its device" in page
    assert "2.00 GiB of a card of 160 GiB" in page
    assert "512 MiB of a card of 40.0 GiB" in page


def test_the_limit_that_was_chosen_is_not_mistaken_for_what_was_recorded(runs, capsys):
    # 1000 MiB in one segment, then 1500 in another: with 2000 MiB the first is released, and it just fits.
    rows = [
        (action, number << 32, size)
        for number, size in ((1, 1000), (2, 1500))
        for action in (Action.SEGMENT_ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    ]
    action, address, size = zip(*rows, strict=True)
    n_bytes = [each * MIB for each in size]
    trace = Trace.of(action=action, address=address, size=n_bytes, block_size=n_bytes)
    runs(run=[Recording(trace=trace, process=Process(torch="2.13.0"))])

    found = asked(capsys, "run", "--capacity", "2600MiB")

    assert found["cards"][0]["verdict"] == "tight"
    assert found["settings"]["is_reproduced"]
    assert "an estimate:" not in said(capsys, "run", "--capacity", "2600MiB")


def test_below_what_was_reserved_nothing_is_promised_where_the_replay_does_not_explain_it(runs, capsys):
    # 3000 MiB were reserved before the recording began, for 100 MiB that it shows.
    initial = Snapshot(
        segments=Segments.of(address=[9 << 40], size=[3000 * MIB]),
        blocks=Blocks.of(segment=[0], address=[9 << 40], size=[3000 * MIB], state=[BlockState.INACTIVE]),
    )
    runs(run=[segmented(100, initial=initial)])

    page = said(capsys, "run", "--capacity", "2GiB")

    assert "3.03 GiB were reserved when it was recorded, of which the replay explains 100 MiB" in page
    assert "change nothing" not in page.splitlines()[1]
    assert asked(capsys, "run", "--capacity", "2GiB")["recordings"][0]["fits"] is None
    assert asked(capsys, "run", "--capacity", "24GiB")["recordings"][0]["fits"] is True


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": Device(kind="cpu")}, "does not apply"),
        ({"notes": (Note("host_memory", "this is the host's memory"),)}, "does not apply"),
        ({"notes": (Note("no_layout", "no layout here"),)}, "what would fit is not known: no layout here"),
        ({"notes": (Note("made_up_segments", "made up"),)}, "what would fit is not known: made up"),
    ],
)
def test_where_the_source_cannot_say_it_there_is_the_reason_and_no_answer(runs, capsys, fields, reason):
    runs(run=[segmented(100, **fields)])

    assert cli.main(["fit", "run", "--capacity", "24GiB"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err


def test_mappings_are_not_counted_as_segments(runs, capsys):
    runs(run=[trained([20])])

    found = asked(capsys, "run", "--conf", "expandable_segments:True")["conf"]

    # 28 MiB: two units of 20 MiB.
    assert (found["segments"], found["mappings"]) == (0, 2)


def test_nothing_is_taken_off_a_simulated_device(runs, capsys):
    simulated = Device(kind="simulated", total_bytes=500 * MIB)
    runs(run=[segmented(400, device=simulated, source="simulated")])

    found = asked(capsys, "run")

    assert found["recordings"][0]["fits"] is True
    assert found["cards"][0]["as_it_is"]["capacity_bytes"] == 500 * MIB


def test_what_ran_on_its_own_device_fits_it_whatever_is_assumed_to_lie_outside(runs, capsys):
    # 600 MiB are assumed to lie outside: 900 would be left, and 1200 were reserved.
    runs(run=[segmented(1200, device=Device(total_bytes=1500 * MIB))])

    found = asked(capsys, "run")

    assert found["recordings"][0]["fits"] is True
    assert found["cards"][0]["as_it_is"]["capacity_bytes"] == 1200 * MIB


# ------------------------------------------------------- what was before, and what is not there any more


def late(cached_mib: int, live_mib: int, used_mib: int = 0, **fields) -> Recording:
    """Begins with one segment of each; then *used_mib* are allocated out of the cached one."""
    segments, blocks = (
        ((1 << 40, live_mib), (2 << 40, cached_mib)),
        (BlockState.ALLOCATED, BlockState.INACTIVE),
    )
    address, size = zip(*segments, strict=True)
    n_bytes = [each * MIB for each in size]
    initial = Snapshot(
        segments=Segments.of(address=address, size=n_bytes, is_large=[True, True]),
        blocks=Blocks.of(
            segment=[0, 1], address=address, size=n_bytes, requested_size=n_bytes, state=list(blocks)
        ),
    )
    n_used = [used_mib * MIB] * (2 if used_mib else 0)
    trace = Trace.of(
        action=[Action.ALLOC, Action.FREE_COMPLETED][: len(n_used)],
        address=[2 << 40] * len(n_used),
        size=n_used,
        block_size=n_used,
    )
    return Recording(**({"trace": trace, "initial": initial, "process": Process(torch="2.13.0")} | fields))


def test_what_was_cached_before_the_recording_counts(runs, capsys):
    # 300 of 4300 MiB are cached when it begins, and nothing of the recording uses more than 100 of them.
    runs(run=[late(300, 4000, 100)])

    found = asked(capsys, "run")
    page = said(capsys, "run")

    assert found["settings"]["as_it_is"]["peak_reserved_bytes"] == 4300 * MIB
    assert found["settings"]["as_it_is"]["peak_allocated_bytes"] == 4100 * MIB
    assert found["settings"]["is_reproduced"]
    # 200 of 4300 MiB are 4.7 %.
    assert "settings cannot be compared" in found["settings"]["reason"]
    assert "no setting" not in page
    assert "change nothing" not in page


def test_a_little_that_was_cached_before_bounds_what_a_setting_can_save(runs, capsys):
    runs(run=[late(140, 4000, 100)])

    reason = asked(capsys, "run")["settings"]["reason"]

    assert reason.startswith("change nothing: reserved is at most 40.0 MiB above allocated")


def test_a_saving_is_named_however_small_the_program_is(runs, capsys):
    # 2 MiB of every segment of 20 lie free; expandable segments take 180 MiB in 9 pieces.
    rows = [(Action.ALLOC, number << 32, 9 * MIB) for number in range(20)]
    action, address, size = zip(*rows, strict=True)
    runs(run=[Recording(trace=Trace.of(action=action, address=address, size=size, block_size=size))])

    found = asked(capsys, "run")["settings"]

    assert found["as_it_is"]["peak_reserved_bytes"] == 200 * MIB
    assert found["advised"] == "expandable_segments:True"
    assert "saves 20.0 MiB" in found["reason"]


def test_without_a_card_nothing_is_called_fitting(runs, capsys):
    runs(run=[trained([20, 20, 40, 40])])

    found = asked(capsys, "run")

    assert {trial["fits"] for trial in found["settings"]["trials"]} == {None}
    table = said(capsys, "run").partition("Settings of the allocator")[2].partition("Another batch")[0]
    assert "fits" not in table


FULL = {
    "device": Device(kind="simulated", total_bytes=100 * MIB),
    "source": "simulated",
    "notes": (Note("simulated_oom", "the simulated device was full", 100 * MIB),),
}


def test_a_run_that_ran_out_of_memory_fits_no_device_of_that_size(runs, capsys):
    # The simulated device was full, and recording went on without a limit: 120 MiB are allocated.
    rows = [(action, n << 32, 60) for n in (1, 2) for action in (Action.SEGMENT_ALLOC, Action.ALLOC)]
    action, address, size = zip(*rows, strict=True)
    n_bytes = [each * MIB for each in size]
    trace = Trace.of(action=action, address=address, size=n_bytes, block_size=n_bytes)
    runs(run=[Recording(trace=trace, **FULL)])

    found = asked(capsys, "run")

    assert found["recordings"][0]["fits"] is False
    assert "Does not fit this device of 100 MiB" in said(capsys, "run")


def test_nor_does_it_where_the_replay_alone_would_go_on(runs, capsys):
    # By the replay 40 MiB fit a device of 100; but memory ran out when it was recorded.
    runs(run=[segmented(40, **FULL)])

    found = asked(capsys, "run", "--capacity", "100MiB,90MiB,2GiB")

    assert [card["as_it_is"]["fits"] for card in found["cards"]] == [False, False, True]
    assert "memory ran out there when it was recorded" in said(capsys, "run")


def test_a_program_that_caught_its_failures_is_not_said_to_fit_that_device(runs, capsys):
    rows = [(Action.SEGMENT_ALLOC, 100), (Action.ALLOC, 100), (Action.OOM, 500), (Action.FREE_COMPLETED, 100)]
    rows += [(Action.ALLOC, 100)]
    action, size = zip(*rows, strict=True)
    n_bytes = [each * MIB for each in size]
    trace = Trace.of(action=action, address=[1 << 32] * len(rows), size=n_bytes, block_size=n_bytes)
    runs(run=[Recording(trace=trace, device=Device(total_bytes=1000 * MIB), process=Process(torch="2.13.0"))])

    found = asked(capsys, "run")

    assert found["recordings"][0]["fits"] is not True


INCOMPLETE = {
    "damaged": ({"notes": (Note("damaged", "…", 9, "events"),)}, "damaged or incomplete"),
    "gap": ({"notes": (Note("gap", "…", 7),)}, "events are missing in a gap"),
    "died": ({"notes": (Note("died", "…"),)}, "the process is gone and wrote no end"),
    "stopped": ({"notes": (Note("stopped", "…"),)}, "writing stopped before the run ended"),
    "running": ({"outcome": Outcome.RUNNING}, "the run is still running"),
    "failed": ({"outcome": Outcome.FAILED}, "an exception ended the program"),
    "estimate": ({"notes": (Note("prediction", "…", 1),)}, "an estimate or lower bounds"),
}


@pytest.mark.parametrize(("fields", "reason"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_what_is_incomplete_fits_nothing_for_certain(runs, capsys, fields, reason):
    runs(run=[trained([20] * 8, device=Device(total_bytes=80 << 30), **fields)])

    found = asked(capsys, "run", "--capacity", "80GiB")
    page = said(capsys, "run", "--capacity", "80GiB")

    assert found["recordings"][0]["fits"] is None
    assert reason in found["recordings"][0]["reason"]
    assert found["smallest_card"]["as_it_is"] is None
    assert "Whether it fits a card of 80.0 GiB is not known" in page
    assert "change nothing" not in page
    assert " fits\n" not in page
    assert "Reserves at most" not in said(capsys, "run")


def counted(**fields) -> Recording:
    """Torch's counters while 24 MiB of 96 MiB are used; steps without events rose to 40 of 96 MiB."""
    counters = Counters.of(
        time_ns=[0, 10, 20],
        allocated_bytes=[24 * MIB] * 3,
        reserved_bytes=[96 * MIB] * 3,
        allocated_peak_bytes=[24 * MIB, 40 * MIB, 40 * MIB],
        reserved_peak_bytes=[96 * MIB] * 3,
    )
    return Recording(counters=counters, **fields)


def test_a_run_by_counters_says_how_much_room_is_enough(runs, capsys):
    runs(whole=[counted(notes=(Note("counters_only", ""),))], cut=[counted(notes=(Note("died", ""),))])

    said = {name: cli.main(["fit", name]) and capsys.readouterr().err for name in ("whole", "cut")}

    assert "96.0 MiB for the allocator are enough for it as it is" in said["whole"]
    assert "enough" not in said["cut"]


def test_a_card_smaller_than_what_an_incomplete_run_held_is_too_small_all_the_same(runs, capsys):
    runs(run=[trained([2000] * 8, **INCOMPLETE["gap"][0])])

    assert asked(capsys, "run", "--capacity", "1GiB")["recordings"][0]["fits"] is False


def test_of_memory_that_grows_it_is_said_that_a_longer_run_needs_more(runs, capsys):
    """Each of twelve steps keeps 4 MiB; in the other program the twelve steps are alike."""
    rows = [(Action.ALLOC, number << 32, 4 * MIB) for number in range(12)]
    action, address, size = zip(*rows, strict=True)
    steps = Steps.of(index=range(12), start_event=range(12), end_event=range(1, 13))
    trace = Trace.of(action=action, address=address, size=size, block_size=size)
    runs(grows=[Recording(trace=trace, steps=steps)], alike=[trained([4] * 12)])

    assert asked(capsys, "grows")["growth"].startswith("4.00 MiB more with every step")
    assert asked(capsys, "alike")["growth"] is None
    assert "a longer run needs more" in said(capsys, "grows")
    assert "a longer run" not in said(capsys, "alike")


def test_a_rerun_shards_over_the_given_cards_and_shows_what_a_range_is_about(runs, capsys, monkeypatch):
    runs(run=[trained([40, 40])])
    cards = []

    def rerun(_recording, command, _target, n_cards, _note):
        cards.append((command, n_cards))
        plain = DryPeak(900 * MIB, 900 * MIB, 950 * MIB, 900 * MIB, 950 * MIB, True, "checked")
        shards = DryPeak(94 * MIB, 700 * MIB, 104 * MIB, 100 * MIB, 110 * MIB, True, "estimate", "NCCL")
        open_end = DryPeak(94 * MIB, None, 104 * MIB, 100 * MIB, 110 * MIB, None, "cannot_tell", "a kernel")
        rows = Rerun("shards", "fully_shard", shards), Rerun("kernels", "by hand", open_end)
        return Reruns("train.py", "H100", 1 << 36, plain, rows, n_wanted=2)

    monkeypatch.setattr(import_module("vramscope.prediction.what_ifs"), "rerun", rerun)

    assert cli.main(["fit", "run", "--rerun=train.py", "--gpus", "4"]) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert cards == [("train.py", 4)]
    assert "shards −800 MiB about 100 MiB about 110 MiB fits fully_shard" in lines
    assert "kernels cannot tell at least 94.0 MiB at least 104 MiB cannot tell by hand" in lines
