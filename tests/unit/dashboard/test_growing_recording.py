"""What is added to while a run grows is what a new count gives."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import findings, held
from vramscope.dashboard.answers.lagging import Lag, LaggingAnswers
from vramscope.dashboard.answers.live import LiveRecording
from vramscope.dashboard.data import Data
from vramscope.dashboard.figures.drawing.series import (
    EVENTS,
    TIME,
    ruler,
)
from vramscope.dashboard.runs import Pace

from vramscope.analysis.churn import retry_events
from vramscope.following import growing as growing_module
from vramscope.following.growing import Following
from vramscope.loading import load
from vramscope.model.recording import Outcome, Recording
from vramscope.model.snapshot import BlockState
from vramscope.model.trace import Action

MIB = 1 << 20


def busy(program: Any, seed: int, n_deeds: int) -> None:
    """Blocks come and go at random; some wait after their free, and sometimes the cache is given back."""
    rng = np.random.default_rng(seed)
    live: list[tuple[int, int]] = []
    waiting: list[tuple[int, int]] = []
    for deed in rng.integers(0, 20, n_deeds).tolist():
        if deed < 9:
            live.append(program.malloc(MIB, program.stack("f", deed)))
        elif deed < 16 and live:
            block = live.pop(int(rng.integers(len(live))))
            program.event(Action.FREE_REQUESTED, *block)
            waiting.append(block)
        elif deed < 19 and waiting:
            program.event(Action.FREE_COMPLETED, *waiting.pop(0))
        elif deed == 19:
            program.event(Action.SEGMENT_FREE, 1 << 50, 2 * MIB)
            program.event(Action.SEGMENT_ALLOC, 1 << 50, 2 * MIB)


@pytest.fixture
def random_run(tmp_path: Path, open_program: Any) -> Recording:
    program = open_program(tmp_path / "run")
    program.begin(reserved=8192 * MIB)
    program.event(Action.SEGMENT_ALLOC, 1 << 50, 2 * MIB)
    busy(program, 0, 4000)
    program.flush()
    return load(tmp_path / "run").recordings[0]


def versions(whole: Recording) -> Iterator[Recording]:
    """The recording as it was when so many events were there."""
    n_events = len(whole.trace)
    for end in (0, 1, 2, 3, 50, 51, 900, 2500, n_events - 1, n_events):
        yield replace(whole, trace=whole.trace.rows(slice(end)))


def followed(live: LiveRecording, recording: Recording) -> Following:
    """What follows the recording, up to this version of it."""
    with live.following(recording) as following:
        return following


@pytest.mark.parametrize("at_once", [1 << 19, 100])
def test_levels_times_and_the_fullest_instants_are_those_of_the_whole(
    random_run: Recording, at_once: int
) -> None:
    growing = LiveRecording(next(versions(random_run)), at_once=at_once)
    for now in versions(random_run):
        found, truth = growing.totals(now), now.timeline()
        for name, column in truth.columns():
            assert np.array_equal(getattr(found, name), column), name
        for name in ("allocated", "reserved"):
            assert followed(growing, now).fullest(now, name) == getattr(truth, f"{name}_bytes").argmax()


@pytest.mark.parametrize("at_once", [1 << 19, 100])
@pytest.mark.parametrize("axis", [TIME, EVENTS])
def test_positions_and_retries_are_those_of_the_whole(random_run: Recording, axis: str, at_once: int) -> None:
    growing = LiveRecording(next(versions(random_run)), at_once=at_once)
    for now in versions(random_run):
        found, truth = growing.ruler(now, axis), ruler(now, now.timeline(), axis)

        assert (found.axis, found.origin) == (truth.axis, truth.origin)
        assert np.array_equal(found.instants, truth.instants)
        assert np.array_equal(followed(growing, now).retries(now), retry_events(now))
    assert len(retry_events(random_run)) > 10


def test_who_holds_what_is_live_is_what_the_lifetimes_say(random_run: Recording) -> None:
    growing = LiveRecording(random_run)
    for instant in range(0, len(random_run.trace) + 1, 97):
        found, truth = growing.stacks_at(random_run, instant), random_run.by_stack(instant=instant)
        rows = [
            set(zip(*(column.tolist() for _, column in each.columns()), strict=True))
            for each in (found, truth)
        ]

        assert rows[0] == rows[1]
        assert found.instant == instant


def test_states_are_found_as_events_come_not_when_one_is_asked_for(
    random_run: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, index = [], growing_module.StateIndex

    def noticed(trace: Any, state: Any) -> Any:
        looked_at.append(len(trace))
        return index(trace, state)

    monkeypatch.setattr(growing_module, "StateIndex", noticed)
    growing = Following(next(versions(random_run)), at_once=100, chapter=200)
    for now in versions(random_run):
        growing.totals(now)
    for instant in range(0, len(random_run.trace) + 1, 997):
        found, truth = growing.state_at(random_run, instant), random_run.by_stack(instant=instant)
        allocated = found.blocks.state == BlockState.ALLOCATED
        assert int(found.blocks.size[allocated].sum()) == int(truth.bytes.sum())
    assert max(looked_at) < len(random_run.trace) / 2


def test_a_reader_of_an_older_version_sees_the_older_data(random_run: Recording) -> None:
    *_, older, newest = versions(random_run)
    growing = LiveRecording(older)
    growing.totals(newest)

    assert np.array_equal(growing.totals(older).allocated_bytes, older.timeline().allocated_bytes)
    assert followed(growing, older).fullest(older, "allocated") == older.timeline().allocated_bytes.argmax()
    assert np.array_equal(followed(growing, older).retries(older), retry_events(older))


def test_events_that_a_cap_removed_make_it_begin_again(random_run: Recording) -> None:
    growing = LiveRecording(random_run)
    growing.totals(random_run)
    state = random_run.checkpoints[0] if random_run.checkpoints else random_run.initial
    later = replace(
        random_run,
        trace=random_run.trace.rows(slice(1000, None)),
        initial=state,
        past=replace(random_run.past, n_events=1000),
    )

    assert np.array_equal(growing.totals(later).allocated_bytes, later.timeline().allocated_bytes)


def test_levels_go_on_where_events_are_missing(random_run: Recording) -> None:
    kept = np.random.default_rng(3).random(len(random_run.trace)) < 0.9
    holes = replace(random_run, trace=random_run.trace.rows(kept))
    growing = LiveRecording(next(versions(holes)))
    for now in versions(holes):
        for quantity in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"):
            found, truth = growing.totals(now), now.timeline()
            assert np.array_equal(getattr(found, quantity), getattr(truth, quantity))


@pytest.mark.parametrize("at_once", [1 << 19, 100])
def test_a_clock_that_goes_back_is_put_in_order(random_run: Recording, at_once: int) -> None:
    time_ns = random_run.trace.time_ns.copy()
    time_ns[[700, 2600]] = time_ns[[650, 2000]]
    odd = replace(random_run, trace=replace(random_run.trace, time_ns=time_ns))
    growing = LiveRecording(next(versions(odd)), at_once=at_once)
    for now in versions(odd):
        assert np.array_equal(growing.ruler(now, TIME).instants, ruler(now, now.timeline(), TIME).instants)


def test_new_events_are_counted_without_the_old_ones(
    random_run: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, count = [], growing_module.next_piece

    def noticed(course: Any, trace: Any) -> Any:
        counted.append(len(trace))
        return count(course, trace)

    monkeypatch.setattr(growing_module, "next_piece", noticed)
    growing = LiveRecording(next(versions(random_run)))
    for now in versions(random_run):
        for _ in range(3):
            growing.totals(now)
            growing.ruler(now, TIME)

    assert sum(counted) == len(random_run.trace)


def test_what_was_live_at_a_past_instant_is_asked_once(tmp_path: Path, open_program: Any) -> None:
    program = open_program(tmp_path / "live")
    program.begin()
    program.step()
    data = Data(tmp_path)
    (name,) = data.runs.paths()
    before = held(data, data.view(Address(run=name)), 7)
    program.flush()
    data.refresh(name)

    assert held(data, data.view(Address(run=name)), 7) is before


def test_findings_are_those_of_what_was_searched_and_whole_when_the_run_ended(
    tmp_path: Path, open_program: Any
) -> None:
    program = open_program(tmp_path / "live")
    program.begin()
    for _ in range(12):
        program.step()
    data = Data(tmp_path, pace=Pace(refresh_s=0.0, share=1e9))
    (name,) = data.runs.paths()

    def said() -> int:
        data.refresh(name)
        return int(findings(data, data.view(Address(run=name))).instant)

    first = said()
    program.step()

    assert first <= said() <= len(load(tmp_path / "live").recordings[0].trace)
    program.writer.close(Outcome.FINISHED)
    assert said() == len(load(tmp_path / "live").recordings[0].trace) > first


def test_what_takes_the_whole_recording_delays_nothing_else(tmp_path: Path, open_program: Any) -> None:
    program = open_program(tmp_path / "live")
    program.begin()
    program.step()
    data = Data(tmp_path)
    (name,) = data.runs.paths()
    view = data.view(Address(run=name))
    opened = data._open[name]
    data.answers(view).lagging("long", lambda: data.derive(view, "inside", lambda _: sum(range(200_000))))

    assert opened.spent_s == 0.0
    data.derive(view, "outside", lambda _: sum(range(200_000)))
    assert opened.spent_s > 0.0


def test_an_answer_that_takes_long_is_computed_by_one_thread_while_others_show_the_last_one(
    random_run: Recording,
) -> None:
    n_events = len(random_run.trace)
    answers = LaggingAnswers()
    early = replace(random_run, trace=random_run.trace.rows(slice(n_events // 2)))
    assert answers.ask("many", early, lambda: "early", Lag()) == "early"
    begun, go_on, made = Event(), Event(), []

    def slow() -> str:
        made.append("late")
        begun.set()
        assert go_on.wait(30)
        return "late"

    def never() -> str:
        raise AssertionError("computed twice")

    def until_it_is_computed_again() -> None:
        # An answer is retained for fifty times its own CPU time; a question within that time gets it.
        end_s = monotonic() + 30
        while not begun.is_set() and monotonic() < end_s:
            answers.ask("many", random_run, slow, Lag())

    thread = Thread(target=until_it_is_computed_again)
    thread.start()
    assert begun.wait(30)
    meanwhile = [answers.ask("many", random_run, never, Lag()) for _ in range(3)]
    go_on.set()
    thread.join()

    assert meanwhile == ["early"] * 3
    assert answers.ask("many", random_run, never, Lag()) == "late"
    assert made == ["late"]


def test_a_run_that_is_opened_late_is_taken_in_parts_that_add_up(random_run: Recording) -> None:
    late, truth = LiveRecording(random_run, at_once=333), random_run.timeline()

    for name, column in truth.columns():
        assert np.array_equal(getattr(late.totals(random_run), name), column), name
    assert np.array_equal(followed(late, random_run).retries(random_run), retry_events(random_run))
    assert np.array_equal(late.ruler(random_run, TIME).instants, ruler(random_run, truth, TIME).instants)


def test_an_answer_that_nobody_waits_for_comes_later(random_run: Recording) -> None:
    answers, go_on, made = LaggingAnswers(), Event(), Event()
    apart = Lag(meanwhile="nothing yet")
    early = replace(random_run, trace=random_run.trace.rows(slice(len(random_run.trace) // 2)))
    assert answers.ask("many", early, lambda: "early", Lag()) == "early"

    def slow() -> str:
        assert go_on.wait(30)
        made.set()
        return "late"

    def asked() -> str:
        found: str = answers.ask("many", random_run, slow, apart)
        return found

    # The thread cannot end before this one lets it.
    assert [asked() for _ in range(5)] == ["early"] * 5
    go_on.set()
    end_s = monotonic() + 30
    while asked() != "late" and monotonic() < end_s:
        made.wait(0.05)

    assert asked() == "late"


def test_the_last_failed_allocation_is_found_as_the_run_grows(random_run: Recording) -> None:
    action = random_run.trace.action.copy()
    rows = np.arange(10, len(action), 400)
    action[rows] = Action.OOM
    whole = replace(random_run, trace=replace(random_run.trace, action=action))
    live = LiveRecording(whole)

    for recording in versions(whole):
        before = rows[rows < len(recording.trace)]
        assert followed(live, recording).last_oom(recording) == (before[-1] if len(before) else -1)


def test_times_of_several_threads_that_go_back_are_put_in_order_as_the_run_grows(
    random_run: Recording,
) -> None:
    rng = np.random.default_rng(3)
    trace = random_run.trace
    time_ns = trace.time_ns + np.where(np.arange(len(trace)) > 1000, rng.integers(-50_000, 1, len(trace)), 0)
    whole = replace(random_run, trace=replace(trace, time_ns=time_ns))
    live = LiveRecording(whole)

    for recording in versions(whole):
        found, expected = live.ruler(recording, TIME), ruler(recording, live.totals(recording), TIME)
        assert np.array_equal(found.instants, expected.instants)
    assert (np.diff(time_ns) < 0).any()
