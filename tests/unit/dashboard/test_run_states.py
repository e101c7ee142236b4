"""How a run ends, dies, stalls, disappears or is replaced: the page learns each, and says so in words."""

import errno
import os
import shutil
import signal
import sys
import textwrap
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import open_run
from vramscope.dashboard.answers.open_run import STALLED_S
from vramscope.dashboard.components import states
from vramscope.dashboard.data import Data
from vramscope.dashboard.pages import Context, pages
from vramscope.dashboard.queries.rank_answers import queries_of
from vramscope.dashboard.queries.run_summaries import RunSummaries
from vramscope.dashboard.runs import Library, Pace
from vramscope.dashboard.server.app import (
    _enter,
    _header_and_banner,
    _latest,
    _shown,
    _standing,
    _unopened,
)

from vramscope.errors import FormatError, StoreError, UnknownNameError
from vramscope.model.recording import Outcome
from vramscope.store.write.append_file import AppendFile
from vramscope.units import format_rough_duration

CONFTEST = Path(__file__).with_name("conftest.py")


AT_ONCE = Pace(scan_s=-1.0, refresh_s=0.0, share=1e9, listed_s=0.05)
"""No pause between two looks."""


@pytest.fixture
def live(tmp_path: Path, open_program: Any) -> tuple[Any, Data, Address]:
    program = open_program(tmp_path / "live")
    program.begin()
    program.step()
    data = Data(tmp_path, pace=AT_ONCE)
    (name,) = data.runs.paths()
    return program, data, Address(run=name)


def test_a_page_is_laid_out_with_the_step_that_the_files_have_now(live: Any) -> None:
    program, data, address = live
    entry = next(page for page in pages() if page.name == "overview")
    before = str(_enter(entry, Context(data, address))[2])
    for _ in range(7):
        program.step()
    after = str(_enter(entry, Context(data, address))[2])

    assert ("step 0" in before, "step 7" in before) == (True, False)
    assert ("step 0" in after, "step 7" in after) == (False, True)


def test_the_header_has_the_time_left_where_the_program_says_how_many_steps_it_makes(live: Any) -> None:
    program, data, address = live
    program.step()
    program.step()
    unknown = _header_and_banner(_standing(data, address))[0]
    program.writer.total_steps(1_000_000)
    program.step()
    view = data.view(address)
    while not view.recording.process.total_steps:
        data.refresh(address.run)
        view = data.view(address)
    standing = _standing(data, address)
    known = _header_and_banner(standing)[0]
    stalled = _header_and_banner(standing | {"stalled": 60})[0]

    assert unknown["run"] == known["run"] == address.run
    assert [" left" in str(each["words"]) for each in (unknown, known, stalled)] == [False, True, False]
    assert f"about {format_rough_duration((1_000_000 - standing['step']) / standing['pace'])} left" in str(
        known["words"]
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (89, "89 s"),
        (90, "2 min"),
        (5399, "90 min"),
        (5400, "1 h 30 min"),
        (172_800, "2 days"),
    ],
)
def test_an_estimate_of_time_has_few_figures(seconds: float, words: str) -> None:
    assert format_rough_duration(seconds) == words


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.FAILED])
def test_a_run_that_ends_is_reported_once(live: Any, outcome: Outcome) -> None:
    program, data, address = live
    before = _standing(data, address)
    program.writer.close(outcome)
    after = _standing(data, address)

    assert (before["outcome"], after["outcome"]) == ("running", outcome.value)
    assert _standing(data, address) == after


def test_a_process_that_was_killed_is_reported(tmp_path: Path, started: Any) -> None:
    script = f"""
        import importlib.util, sys, time
        from pathlib import Path
        spec = importlib.util.spec_from_file_location("runs", {str(CONFTEST)!r})
        runs = sys.modules["runs"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(runs)
        program = runs.open_program(Path({str(tmp_path / "killed")!r}))
        program.begin()
        program.step()
        print("written", flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with started(command) as training:
        assert training.stdout.readline() == "written\n"
        data = Data(tmp_path, pace=AT_ONCE)
        address = Address(run=next(iter(data.runs.paths())))
        summaries = RunSummaries(data)
        line = _line_of(summaries, address.run, Outcome.RUNNING)
        before = _standing(data, address)
        os.kill(training.pid, signal.SIGKILL)
        training.wait()
        after = _standing(data, address)

    assert (before["outcome"], after["outcome"]) == ("running", "died")
    assert after["seen"] == before["seen"] > 0
    assert _line_of(summaries, address.run, Outcome.DIED).n_events == line.n_events


def _line_of(summaries: RunSummaries, run: str, outcome: Outcome) -> Any:
    """Its line in the list, once that says so."""
    for _ in range(1000):
        line = summaries.get(run)
        if line is not None and line.outcome is outcome:
            return line
        sleep(0.02)
    raise AssertionError(f"the list never said {outcome.value}")


def test_a_run_of_which_nothing_comes_is_stalled_until_something_does(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, data, address = live
    assert "stalled" not in _standing(data, address)
    monkeypatch.setattr(open_run, "monotonic", lambda: open_run.thread_time() + 1e7)
    assert _standing(data, address)["stalled"] >= STALLED_S
    program.step()

    assert "stalled" not in _standing(data, address)


def test_for_how_long_nothing_came_is_shown_also_when_opened_late(live: Any, tmp_path: Path) -> None:
    _, _, address = live
    for file in (tmp_path / "live").rglob("*"):
        os.utime(file, (0, file.stat().st_mtime - 7200))
    os.utime(tmp_path / "live", (0, 0))
    data = Data(tmp_path, pace=AT_ONCE)
    data.runs.paths()

    assert 7200 <= _standing(data, address)["stalled"] < 7300


def test_a_run_that_replaces_another_in_its_place_is_shown_and_reported(
    live: Any, tmp_path: Path, open_program: Any
) -> None:
    program, data, address = live
    before = _standing(data, address)
    program.writer.close(Outcome.FINISHED)
    later_ns = data.view(address).run.started_ns + 10**9
    shutil.rmtree(tmp_path / "live")
    open_program(tmp_path / "live", started_ns=later_ns).begin()
    program = None
    after = _standing(data, address)

    assert after["other"]
    assert after["seen"] < before["seen"]
    assert after["version"] > before["version"]
    assert "Replaced" in str(states.alarm("", is_other=after["other"]))
    assert not any(note.code == "damaged" for note in data.view(address).recording.notes)


def test_a_run_that_is_deleted_while_it_is_read_is_gone(live: Any, tmp_path: Path) -> None:
    _, data, address = live
    _standing(data, address)
    shutil.rmtree(tmp_path / "live" / "rank0")
    with pytest.raises(UnknownNameError, match="deleted"):
        data.refresh(address.run)

    assert _standing(data, address)["outcome"] == "gone"


def test_a_full_disk_is_reported(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program, data, address = live
    _standing(data, address)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(AppendFile, "append", full)
        with pytest.raises(StoreError):
            program.step()
    program.writer.close(Outcome.FINISHED)
    stopped = _standing(data, address)["stopped"]

    assert "the disk is full" in str(states.alarm(stopped, is_other=False))


def test_what_a_page_shows_is_not_reported_again(live: Any) -> None:
    _, data, address = live
    data.refresh(address.run)
    shown = _shown(address, data.view(address))

    assert _standing(data, address) == _latest(None, shown)
    assert _latest({**shown, "version": shown["version"] + 1}, shown)["version"] == shown["version"] + 1
    assert _latest({**shown, "run": "another"}, shown) == shown


def test_runs_side_by_side_each_have_their_line_and_follow(
    tmp_path: Path, open_program: Any, run_at: Any
) -> None:
    run_at("ended", steps=8)
    program = open_program(tmp_path / "growing")
    program.begin()
    program.step()
    data = Data(tmp_path, pace=AT_ONCE)
    summaries = RunSummaries(data)

    def lines(at_least: int) -> dict[str, Any]:
        for _ in range(1000):
            found = {line.name: line for name in data.runs.paths() if (line := summaries.get(name))}
            if len(found) == 2 and found["growing"].n_steps >= at_least:
                return found
            sleep(0.02)
        raise AssertionError("no line followed")

    before = lines(1)
    program.step()
    after = lines(2)

    assert after["growing"].n_events > before["growing"].n_events
    assert {line.outcome for line in after.values()} == {Outcome.RUNNING, Outcome.FINISHED}
    assert after["ended"].verdict == "steady"
    assert all(len(line.allocated) for line in after.values())


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flipped(file: Path) -> None:
    held = bytearray(file.read_bytes())
    held[len(held) // 2] ^= 0xFF
    file.write_bytes(held)


@pytest.mark.parametrize("harm", [_cut, _flipped])
def test_a_finished_run_whose_files_change_while_its_page_is_open_is_reported(
    live: Any, tmp_path: Path, harm: Any
) -> None:
    program, data, address = live
    program.writer.close(Outcome.FINISHED)
    before = _standing(data, address)
    assert _standing(data, address) == before
    harm(next((tmp_path / "live" / "rank0").glob("events*")))
    after = _standing(data, address)

    assert after != before
    if after["outcome"] != "gone":
        assert after["altered"]
        assert after["version"] > before["version"]
        assert "Changed" in str(states.alarm("", is_other=False, is_altered=after["altered"]))
    assert _standing(data, address) == after


def test_a_page_that_is_loaded_again_shows_the_files_of_an_ended_run_as_they_are_now(
    live: Any, tmp_path: Path
) -> None:
    program, _, address = live
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path, pace=Pace(refresh_s=3600.0))
    entry = next(page for page in pages() if page.name == "overview")
    assert "Incomplete" not in str(_enter(entry, Context(data, address))[2])
    _flipped(next((tmp_path / "live" / "rank0").glob("events*")))

    assert "Incomplete" in str(_enter(entry, Context(data, address))[2])


def test_a_page_without_events_reports_changed_files_of_an_ended_run(live: Any, tmp_path: Path) -> None:
    program, data, address = live
    queries_of(data).get(address.run)
    assert queries_of(data).files(address.run) is None  # it is written
    program.writer.close(Outcome.FINISHED)
    of_ended = Data(tmp_path)
    queries_of(of_ended).get(address.run)
    files = queries_of(of_ended).files(address.run)
    assert "altered" not in _unopened(of_ended, address, files)
    _flipped(next((tmp_path / "live" / "rank0").glob("events*")))

    assert _unopened(of_ended, address, files)["altered"]
    assert "altered" not in _unopened(of_ended, address, queries_of(of_ended).files(address.run))


@pytest.mark.parametrize("is_over", [True, False])
def test_a_run_that_becomes_unreadable_is_reported_and_comes_back(
    live: Any, tmp_path: Path, is_over: bool
) -> None:
    program, data, address = live
    if is_over:
        program.writer.close(Outcome.FINISHED)
    before = _standing(data, address)
    manifest = next((tmp_path / "live" / "rank0").glob("manifest*"))
    whole = manifest.read_bytes()
    manifest.write_bytes(b'{"schema": ')
    after = _standing(data, address)

    assert after["outcome"] == "gone"
    assert "Damaged" in str(states.gone(after["why"]))
    assert _standing(data, address) == after
    manifest.write_bytes(whole)
    assert _standing(data, address)["outcome"] == before["outcome"]


def test_files_that_cannot_be_read_are_read_again_only_when_they_change(tmp_path: Path) -> None:
    file = tmp_path / "gpt.pickle"
    file.write_bytes(b"no snapshot")
    library = Counting()
    data = Data(file, library=library, pace=AT_ONCE)
    address = Address(run=next(iter(data.runs.paths())))
    for _ in range(3):
        assert "no snapshot" in _standing(data, address)["why"]
    assert library.n_read == 1
    file.write_bytes(b"another text")
    _standing(data, address)

    assert library.n_read == 2


class Counting(Library):
    """A library that finds every file and can read none."""

    n_read = 0

    def discover(self, root: Path) -> list[Path]:
        return [root]

    def follow(self, path: Path, *_: Any, **_options: Any) -> Any:
        self.n_read += 1
        raise FormatError(f"{path.name}: no snapshot")
