"""What of a recording is complete, and which verdicts that leaves: each case made by hand."""

from dataclasses import replace
from importlib import import_module

import pytest

from vramscope import cli
from vramscope.analysis.verdicts import GrowthVerdict, Verdict, why_not
from vramscope.analysis.verdicts.missing import Part, missing_parts
from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.marks import Note, Phase, Phases, Steps
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.model.trace import Action, Trace

MIB = 1 << 20


def steady(n_steps: int = 12, leaked_mib: int = 0, **fields) -> Recording:
    """Each step allocates 4 MiB and frees them; *leaked_mib* more stay in each."""
    rows, starts = [], []
    for number in range(n_steps):
        starts.append(len(rows))
        rows += [(action, number << 40, 4 * MIB) for action in (0, 1, 2)]
        rows += [(Action.ALLOC, (number << 40) + (1 << 30), leaked_mib * MIB)] if leaked_mib else []
    action, address, size = zip(*rows, strict=True)
    ends = [*starts[1:], len(rows)]
    made = {
        "trace": Trace.of(action=action, address=address, size=size, block_size=size),
        "steps": Steps.of(index=range(n_steps), start_event=starts, end_event=ends),
        "phases": Phases.of(
            phase=[Phase.FORWARD] * n_steps, step=range(n_steps), start_event=starts, end_event=ends
        ),
        "outcome": Outcome.FINISHED,
    }
    return Recording(**(made | fields))


def failed(recording: Recording) -> Recording:
    """The same, whose last request was refused."""
    columns = {name: [*column.tolist(), 0] for name, column in recording.trace.columns()}
    columns["action"][-1], columns["size"][-1] = Action.OOM, MIB
    return replace(recording, trace=Trace.of(**columns))


INCOMPLETE = {
    "damaged": {"notes": (Note(NoteCode.DAMAGED, "…", 9, "events"),)},
    "initial state lost": {"notes": (Note(NoteCode.MISSING_FILE, "…", 9, "states"),)},
    "manifest edited": {"notes": (Note(NoteCode.DAMAGED, "…"),)},
    "gap": {"notes": (Note(NoteCode.GAP, "…", 7),)},
    "events missing": {"notes": (Note(NoteCode.MISSING_EVENTS, "…", 11_280),)},
    "batches missing": {"notes": (Note(NoteCode.MISSING_BATCHES, "…", 2),)},
    "contradiction": {"notes": (Note(NoteCode.COUNTERS_DIFFER, "…", 5),)},
    "died": {"notes": (Note(NoteCode.DIED, "…"),), "outcome": Outcome.DIED},
    "stopped": {"notes": (Note(NoteCode.STOPPED, "…"),)},
    "recorder failed": {"notes": (Note(NoteCode.RECORDING_FAILED, "…"),)},
    "running": {"outcome": Outcome.RUNNING},
    "an exception ended": {"outcome": Outcome.FAILED},
}
COMPLETE = {
    "finished": {},
    "a file": {"outcome": Outcome.FILE},
    "starts late": {"notes": (Note(NoteCode.STARTS_LATE, "…", 5),)},
    "thinned": {"notes": (Note(NoteCode.THINNED, "…", 5),)},
    "without stacks": {"notes": (Note(NoteCode.NO_STACK, "…", 5),)},
    "full simulated device": {"notes": (Note(NoteCode.SIMULATED_OOM, "…", 5),)},
    "names damaged": {"notes": (Note(NoteCode.DAMAGED, "…", 5, "labels"),)},
    "samples damaged": {"notes": (Note(NoteCode.CUT_FILE, "…", 5, "samples"),)},
}


@pytest.fixture
def runs(monkeypatch):
    """``runs(name=recordings)``: what is at these paths."""

    def offer(notes=(), **known: Recording) -> None:
        made = {name: Run(name, name, (each,), notes=notes) for name, each in known.items()}
        monkeypatch.setattr(import_module("vramscope.loading"), "load", lambda path: made[path])

    return offer


@pytest.mark.parametrize("fields", INCOMPLETE.values(), ids=INCOMPLETE)
def test_no_verdict_rests_on_what_is_missing(runs, capsys, fields):
    recording = steady(**fields)
    runs(run=recording)

    missing = missing_parts(recording)

    assert why_not(missing, Verdict.LIMIT)
    assert why_not(missing, Verdict.FIT)
    assert not recording.verdicts().growth.is_decided
    assert cli.main(["check", "run", "--max-peak", "1GiB"]) == 3
    out = capsys.readouterr().out
    assert "at least 4.00 MiB" in out
    assert missing[0].text in out
    assert cli.main(["leaks", "run", "--fail-on-leak"]) == 3
    assert "--allow-incomplete" in capsys.readouterr().err
    for command in (["check", "run", "--max-peak", "1GiB"], ["leaks", "run", "--fail-on-leak"]):
        assert cli.main([*command, "--allow-incomplete"]) == 0


@pytest.mark.parametrize("fields", COMPLETE.values(), ids=COMPLETE)
def test_what_takes_nothing_from_a_verdict_leaves_it(runs, fields):
    recording = steady(**fields)
    runs(run=recording)

    assert missing_parts(recording) == ()
    assert recording.verdicts().growth.verdict is GrowthVerdict.NOTHING
    assert cli.main(["check", "run", "--max-peak", "4MiB"]) == 0
    assert cli.main(["leaks", "run", "--fail-on-leak"]) == 0


@pytest.mark.parametrize("fields", INCOMPLETE.values(), ids=INCOMPLETE)
def test_a_limit_that_a_lower_bound_exceeds_is_broken_for_certain(runs, capsys, fields):
    runs(run=steady(**fields))

    assert cli.main(["check", "run", "--max-peak", "3MiB", "--allow-incomplete"]) == 3
    assert "FAILED" in capsys.readouterr().out


def test_a_leak_is_a_leak_in_an_incomplete_recording_too(runs):
    recording = steady(leaked_mib=1, **INCOMPLETE["gap"])
    runs(run=recording)

    assert recording.verdicts().growth.verdict is GrowthVerdict.LEAKS
    assert cli.main(["leaks", "run", "--fail-on-leak", "--allow-incomplete"]) == 3


def test_steps_that_are_lost_decide_nothing_about_growth_and_leave_the_peak():
    recording = steady(notes=(Note(NoteCode.CUT_FILE, "…", 3, "marks"),))

    assert [each.part for each in missing_parts(recording)] == [Part.STEPS]
    assert why_not(missing_parts(recording), Verdict.LIMIT) == ""
    assert recording.verdicts().growth.verdict is GrowthVerdict.UNKNOWN
    assert recording.verdicts().peak_is_exact


def test_until_a_run_was_broken_off_nothing_grew():
    growth = steady(**INCOMPLETE["died"]).verdicts().growth

    assert growth.text == "nothing grew from step to step as far as it was written"
    assert growth.verdict is GrowthVerdict.NOTHING


def test_a_run_that_ends_out_of_memory_keeps_no_limit(runs):
    runs(run=failed(steady()))

    assert cli.main(["check", "run", "--max-peak", "1GiB"]) == 3


def test_too_few_steps_pass_no_check_for_leaks(runs, capsys):
    runs(run=steady(6))

    assert cli.main(["leaks", "run", "--fail-on-leak"]) == 3
    assert "6 of the 7 that it takes" in capsys.readouterr().err


@pytest.mark.parametrize("code", [NoteCode.RANKS_MISSING, NoteCode.RANK_UNREADABLE, NoteCode.RANKS_DIFFER])
def test_ranks_that_are_missing_pass_nothing(runs, capsys, code):
    runs(notes=(Note(code, "7 of 8 ranks are here"),), run=steady())

    assert cli.main(["check", "run", "--max-peak", "1GiB"]) == 3
    assert "7 of 8 ranks are here" in capsys.readouterr().out
    assert cli.main(["leaks", "run", "--fail-on-leak"]) == 3


def test_samples_between_which_there_may_have_been_more_pass_no_limit(runs):
    counters = Counters.of(time_ns=[1, 2], allocated_bytes=[5 * MIB, 3 * MIB])
    runs(run=Recording(counters=counters))

    assert cli.main(["check", "run", "--max-peak", "6MiB"]) == 3
    assert cli.main(["check", "run", "--max-peak", "6MiB", "--allow-incomplete"]) == 0


def test_growth_against_a_run_that_lacks_events_is_not_known(runs, capsys):
    runs(base=steady(**INCOMPLETE["gap"]), run=steady())

    assert cli.main(["check", "run", "--against", "base"]) == 3
    assert "of the earlier run events are missing in a gap" in capsys.readouterr().out


def test_how_many_events_are_missing_is_said_first():
    notes = (*INCOMPLETE["damaged"]["notes"], *INCOMPLETE["events missing"]["notes"])

    assert missing_parts(steady(notes=notes))[0].text == "11,280 of its events or more are missing"


def test_of_an_estimate_no_limit_is_certain_and_growth_is():
    estimate = steady(notes=(Note(NoteCode.PREDICTION, "…", 1),))

    assert why_not(missing_parts(estimate), Verdict.LIMIT)
    assert not estimate.verdicts().peak_is_exact
    assert estimate.verdicts().growth.is_decided
