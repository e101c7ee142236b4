"""Comments on instants: kept beside the recording's files, by the event, whoever writes them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.queries.comments import LONGEST, _instant, _name, comments
from vramscope.dashboard.runs import stamp
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access

from vramscope.model.recording import Outcome


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_STATE_HOME", str(path))
    return path


@pytest.fixture
def client(data: Data) -> Any:
    return build_app(data, Access(token=None)).server.test_client()


def write(client: Any, view: View, at: int, text: str, **more: Any) -> Any:
    asked = {"run": view.run_id, "rank": 0, "device": 0, "at": at}
    return client.post("/api/comment", query_string=asked | more, data=text, base_url="http://127.0.0.1")


def test_a_comment_is_kept_changed_and_deleted(client: Any, data: Data, view: View) -> None:
    assert write(client, view, 7, "the first activation").status_code == 204
    assert write(client, view, 3, " parameters ").status_code == 204
    assert comments(data, view) == {3: "parameters", 7: "the first activation"}

    write(client, view, 7, "the second one")
    write(client, view, 3, "")

    assert comments(data, view) == {7: "the second one"}
    assert comments(Data(data.runs.root), view) == {7: "the second one"}  # after a restart


@pytest.mark.parametrize("at", [0, 1, 2])
def test_first_and_last_instants_have_comments_of_their_own(
    client: Any, data: Data, view: View, at: int
) -> None:
    last = len(view.recording.trace)
    write(client, view, at, "here")
    write(client, view, last, "the end")

    assert comments(data, view) == {at: "here", last: "the end"}


def test_the_files_of_the_run_stay_untouched(client: Any, data: Data, view: View, home: Path) -> None:
    before = stamp(data.runs.path(view.run_id))
    write(client, view, 7, "here")

    assert stamp(data.runs.path(view.run_id)) == before
    assert len(list(home.rglob("*.txt"))) == 1
    assert next(home.rglob("*.txt")).read_text() == "here"


def test_another_recording_under_the_same_name_does_not_have_them(
    client: Any, data: Data, view: View, open_program: Any
) -> None:
    write(client, view, 7, "here")
    path = data.runs.path(view.run_id)
    shutil.rmtree(path)
    program = open_program(path, started_ns=1_800_000_000_000_000_000)
    program.begin()
    program.step()
    program.writer.close(Outcome.FINISHED)
    again = Data(path.parent)

    assert comments(again, again.view(Address(run=view.run_id))) == {}


def test_a_run_that_grows_keeps_them(open_program: Any, tmp_path: Path) -> None:
    program = open_program(tmp_path / "live")
    program.begin()
    program.step()
    data = Data(tmp_path)
    (run,) = data.runs.paths()
    client = build_app(data, Access(token=None)).server.test_client()
    write(client, data.view(Address(run=run)), 9, "while it ran")
    program.step()
    program.writer.close(Outcome.FINISHED)
    later = Data(tmp_path)

    assert comments(later, later.view(Address(run=run))) == {9: "while it ran"}


def test_events_that_leave_the_front_take_no_comment_with_them(
    view: View,
) -> None:
    times = view.recording.trace.time_ns
    name = _name(times, 9).removesuffix(".txt").split("-")

    assert _instant(times[4:], int(name[0]), int(name[1])) == 5
    assert _instant(times[9:], int(name[0]), int(name[1])) is None


def test_events_without_a_clock_are_known_by_their_number() -> None:
    times = np.zeros(20, "i8")
    names = [_name(times, at).removesuffix(".txt").split("-") for at in range(21)]

    assert [_instant(times, int(time), int(after)) for time, after in names] == list(range(21))


def test_events_of_one_time_are_told_apart() -> None:
    times = np.array([5, 5, 5, 8, 8, 9])
    names = [_name(times, at).removesuffix(".txt").split("-") for at in range(7)]

    assert [_instant(times, int(time), int(after)) for time, after in names] == list(range(7))


def test_a_server_that_others_reach_shows_comments_and_takes_none(
    client: Any, data: Data, view: View
) -> None:
    write(client, view, 7, "mine")
    public = build_app(data, Access(token=None, hosts=frozenset({"127.0.0.1", "gpu01.example.org"})))

    refused = write(public.server.test_client(), view, 7, "theirs")

    assert refused.status_code == 403
    assert "takes none" in refused.text
    assert comments(data, view) == {7: "mine"}


def test_a_page_of_another_site_writes_nothing(client: Any, data: Data, view: View) -> None:
    asked = {"run": view.run_id, "at": 7}
    answer = client.post(
        "/api/comment", query_string=asked, data="x", headers={"Origin": "https://evil.example"}
    )

    assert answer.status_code == 403
    assert comments(data, view) == {}


@pytest.mark.parametrize("run", ["../../etc", "nothing-0123456789abcdef", ""])
def test_only_runs_that_exist_get_comments(client: Any, view: View, run: str, home: Path) -> None:
    assert write(client, view, 7, "x", run=run).status_code == 404
    assert list(home.rglob("*.txt")) == []


def test_a_comment_that_is_too_long_is_refused_in_words(client: Any, view: View) -> None:
    refused = write(client, view, 7, "x" * (LONGEST + 1))

    assert (refused.status_code, refused.text.strip()) == (400, "A comment has at most 2,000 characters.")


def test_a_folder_that_cannot_be_written_is_said(client: Any, view: View, home: Path) -> None:
    (home / "vramscope").write_text("a file where the folder would be")

    refused = write(client, view, 7, "x")

    assert refused.status_code == 400
    assert "Not a directory" in refused.text
