"""The door to recordings: closed ids, nothing asked twice, growth and disappearance noticed."""

import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import thread_time
from typing import Any

import pytest
from vramscope.dashboard import data as data_module
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import (
    category_bytes,
    clamp,
    held,
    moment,
    neighbor,
    totals,
)
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries.run_summaries import (
    RunSummaries,
    summarize,
)
from vramscope.dashboard.runs import LONG_SCAN_S, Library, Pace, run_id, stamp

from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import lifetimes
from vramscope.errors import FormatError, UnknownNameError, VramscopeError
from vramscope.model.device import Device
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace


def test_ids_are_words_that_give_no_path_away(run_at: Any, tmp_path: Path) -> None:
    run_at("a b/deep & odd ü")
    (name,) = Data(tmp_path).runs.paths()

    assert name.startswith("deep-odd")
    assert "/" not in name
    assert not name.startswith(".")


def test_two_runs_of_one_name_have_two_ids(tmp_path: Path) -> None:
    assert run_id(tmp_path / "a" / "run") != run_id(tmp_path / "b" / "run")


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "/etc/passwd", "gpt", "gpt-000000"])
def test_an_id_that_was_not_found_opens_nothing(data: Data, name: str) -> None:
    with pytest.raises(UnknownNameError):
        data.view(Address(run=name))


def test_an_unknown_rank_or_device_is_reported(data: Data) -> None:
    with pytest.raises(UnknownNameError, match="no recording of rank 7"):
        data.view(Address(run=next(iter(data.runs.paths())), rank=7))


def test_an_answer_is_made_once(data: Data, view: Any) -> None:
    assert totals(data, view) is totals(data, view)
    assert held(data, view, 40) is held(data, view, 40)


def test_what_analyses_begin_with_is_made_once(data: Data, view: Any) -> None:
    with data.sharing(view):
        found = lifetimes(view.recording)
        assigned = assign(view.recording, found)

    assert data.ask(view, "lifetimes") is found
    assert data.ask(view, "categories").assigned is assigned


def test_analyses_that_begin_with_nothing_take_no_place_among_the_answers(data: Data, view: Any) -> None:
    opened = data._opened(view.run_id)
    with data.sharing(view):
        before = dict(opened.answers)

    assert dict(opened.answers) == before


def test_growth_makes_a_new_version_and_new_answers(tmp_path: Path, open_program: Any) -> None:
    program = open_program(tmp_path / "live")
    program.begin()
    program.step()
    data = Data(tmp_path)
    (name,) = data.runs.paths()
    before = totals(data, data.view(Address(run=name)))
    assert data.refresh(name) == 0
    program.step()

    assert data.refresh(name) == 1
    assert len(totals(data, data.view(Address(run=name))).allocated_bytes) > len(before.allocated_bytes)


def test_a_deleted_run_is_gone_and_not_a_crash(data: Data, tmp_path: Path) -> None:
    (name,) = data.runs.paths()
    data.view(Address(run=name))
    shutil.rmtree(tmp_path / "gpt")

    with pytest.raises(UnknownNameError, match="moved or deleted"):
        data.refresh(name)


def test_new_runs_appear(run_at: Any, tmp_path: Path) -> None:
    run_at("first")
    data = Data(tmp_path, pace=Pace(scan_s=-1.0))
    assert len(data.runs.paths()) == 1
    run_at("second")

    assert len(data.runs.paths()) == 2


class Large(Library):
    """A folder whose search takes long, and from the second time on until it may go on."""

    def __init__(self) -> None:
        self.may_go_on = Event()
        self.n_searches = 0

    def discover(self, root: Path) -> list[Path]:
        self.n_searches += 1
        began = thread_time()
        while thread_time() - began < 2 * LONG_SCAN_S:
            pass
        if self.n_searches > 1:
            self.may_go_on.wait()
        return [root / f"run{i}" for i in range(self.n_searches)]


def test_nobody_waits_for_another_search_of_a_large_folder(tmp_path: Path) -> None:
    library = Large()
    data = Data(tmp_path, library=library, pace=Pace(scan_s=-1.0))
    assert len(data.runs.paths()) == 1
    assert [len(data.runs.paths()) for _ in range(3)] == [1, 1, 1]
    library.may_go_on.set()
    while len(data.runs.paths()) == 1:
        pass

    assert library.n_searches >= 2


def test_few_runs_are_kept_open(run_at: Any, tmp_path: Path) -> None:
    for i in range(data_module.MAX_OPEN_RUNS + 3):
        run_at(f"run{i}", steps=1)
    data = Data(tmp_path)
    for name in data.runs.paths():
        data.view(Address(run=name))

    assert len(data._open) == data_module.MAX_OPEN_RUNS


def test_the_holders_of_an_instant_sum_up_to_what_was_allocated(data: Data, view: Any) -> None:
    known = totals(data, view).allocated_bytes
    for at in range(len(known)):
        assert held(data, view, at).total_bytes == known[at]


def test_steps_are_walked_by_their_peaks(data: Data, view: Any) -> None:
    known = totals(data, view).allocated_bytes
    first = neighbor(data, view, 0, 1)
    second = neighbor(data, view, first, 1)

    assert known[first] == known[second] == known.max()
    assert (moment(data, view, first).step, moment(data, view, second).step) == (0, 1)
    assert neighbor(data, view, second, -1) == first
    assert neighbor(data, view, first, -1) is None


@pytest.mark.parametrize("at", [None, -1, 10**12])
def test_an_instant_that_is_not_there_is_the_peak(data: Data, view: Any, at: int | None) -> None:
    assert clamp(data, view, at) == totals(data, view).allocated_bytes.argmax()


def test_a_line_of_the_list_says_the_essential(data: Data) -> None:
    (name,) = data.runs.paths()
    line = summarize(data, name)

    assert (line.name, line.source, line.n_steps, line.error) == ("gpt", "simulated", 3, "")
    assert line.peak_allocated_bytes == line.allocated.max() == (20 + 64 + 2) << 20
    assert line.peak_reserved_bytes == 512 << 20


def test_a_file_that_cannot_be_read_is_a_line_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "gpt.pickle").write_bytes(b"\x80\x04N.")
    data = Data(tmp_path / "gpt.pickle", library=Refusing())
    (name,) = data.runs.paths()

    assert summarize(data, name).error == "gpt.pickle: no snapshot"


class Refusing(Library):
    """A library that finds every file and can read none."""

    def discover(self, root: Path) -> list[Path]:
        return [root]

    def follow(self, path: Path, *_: Any, **_options: Any) -> Any:
        raise FormatError(f"{path.name}: no snapshot")


def test_summaries_are_made_in_the_background(data: Data) -> None:
    (name,) = data.runs.paths()
    summaries = RunSummaries(data)
    assert summaries.get(name) is None
    while summaries.get(name) is None:
        pass

    assert summaries.get(name).n_steps == 3


def test_an_analysis_that_does_not_exist_is_reported(data: Data, view: Any) -> None:
    with pytest.raises(VramscopeError, match="no analysis"):
        data.ask(view, "weather")


def test_bytes_by_category_are_those_of_the_analysis(data: Data, view: Any) -> None:
    for at in (0, 7, 30):
        known = view.recording.categories(instant=at)

        assert category_bytes(data, view, at).tolist() == known.n_bytes.tolist()


def test_a_slow_question_keeps_nobody_waiting_and_is_asked_once(data: Data, view: Any) -> None:
    began, go, made = Event(), Event(), []

    def slow(_: Any) -> str:
        made.append(1)
        began.set()
        assert go.wait(10)
        return "slow"

    answers: list[Any] = []

    def ask() -> None:
        answers.append(data.derive(view, "slow", slow))

    threads = [Thread(target=ask, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert began.wait(10)
    quick = data.derive(view, "quick", lambda _: "quick")
    go.set()
    for thread in threads:
        thread.join()

    assert quick == "quick"
    assert answers == ["slow"] * 3
    assert made == [1]


def test_a_device_that_ran_out_of_memory_is_the_verdict_whichever_is_fullest(
    data: Data, monkeypatch: Any
) -> None:
    (name,) = data.runs.paths()
    run = data.read(name)
    failed = Recording(
        trace=Trace.of(action=[Action.OOM], address=[0], size=[9], block_size=[9]), device=Device(index=1)
    )
    both = replace(run, recordings=(*run.recordings, failed))
    monkeypatch.setattr(data, "read", lambda _: both)

    assert summarize(data, name).verdict == "ran out of memory"


def test_a_summary_that_a_reader_keeps_does_not_change_a_run(tmp_path: Path) -> None:
    rank = tmp_path / "rank0"
    rank.mkdir()
    (rank / "events-0.arrows").write_bytes(b"1")
    before = stamp(tmp_path)
    (rank / "summary.json").write_bytes(b"{}")
    (rank / "summary.17.tmp").write_bytes(b"{}")
    assert stamp(tmp_path) == before
    (rank / "events-0.arrows").write_bytes(b"12")
    assert stamp(tmp_path) != before
