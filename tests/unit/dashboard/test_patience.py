"""Nobody looks at a blank page: work that takes long is fetched later, and done once."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Timer
from typing import Any

from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data
from vramscope.dashboard.runs import Library
from vramscope.dashboard.server import pending_pages
from vramscope.dashboard.server.pending_pages import (
    MOST_PENDING,
    PendingPages,
)


def test_what_is_quick_comes_at_once() -> None:
    assert PendingPages().get("a", lambda: 7, 30) == 7


def test_what_takes_long_is_fetched_later_and_made_once() -> None:
    patience, gate, made = PendingPages(), Event(), []

    def work() -> str:
        gate.wait(30)
        made.append(1)
        return "page"

    assert patience.get("a", work, 0.01) is None
    assert not patience.is_done("a")
    assert patience.get("a", work, 0.01) is None
    gate.set()

    assert patience.get("a", work, 30) == "page"
    assert patience.is_done("a")
    assert made == [1]


def test_what_waited_too_long_for_its_browser_is_made_again() -> None:
    patience, gate, made = PendingPages(kept_s=-1.0), Event(), []

    def work() -> int:
        gate.wait(30)
        made.append(1)
        return len(made)

    assert patience.get("a", work, 0) is None
    gate.set()
    while not patience.is_done("a"):
        pass

    assert patience.get("a", work, 30) == 2


def test_what_nobody_fetches_is_forgotten() -> None:
    patience, gate = PendingPages(), Event()
    for i in range(MOST_PENDING + 5):
        patience.get(str(i), gate.wait, 0)
    gate.set()

    assert len(patience._pending) == MOST_PENDING


def test_the_newest_run_is_read_before_anybody_asks(tmp_path: Path, run_at: Any) -> None:
    run_at("gpt")
    library = Counted(Data(tmp_path).runs.library)
    data = Data(tmp_path, library)
    pending_pages.read_ahead(data).join(30)
    assert library.n_followed == 1
    (run,) = data.runs.paths()
    view = data.view(Address(run=run))
    data.derive(view, ("timeline",), _never)

    assert library.n_followed == 1


def test_a_broken_file_read_ahead_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "odd.pickle").write_bytes(b"\x80\x04broken")
    pending_pages.read_ahead(Data(tmp_path)).join(30)


def test_another_run_is_asked_about_while_one_is_read(tmp_path: Path, run_at: Any) -> None:
    for name in ("slow", "quick"):
        run_at(name)
    library = Counted(Data(tmp_path).runs.library)
    data = Data(tmp_path, library)
    slow, quick = sorted(data.runs.paths(), reverse=True)
    library.gate = Event()
    library.slow = slow.rsplit("-", 1)[0]
    patience = PendingPages()

    assert patience.get("slow", lambda: data.view(Address(run=slow)), 0.05) is None
    assert data.is_opening(slow)
    assert data.view(Address(run=quick)).run.name == "quick"
    library.gate.set()
    assert patience.get("slow", _never, 30).run.name == "slow"
    assert not data.is_opening(slow)


def _never(*_: Any) -> Any:
    raise AssertionError("asked again")


class Counted(Library):
    """A library that counts what it opens, and makes wait for one."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.n_followed, self.slow = inner, 0, ""
        self.gate: Event | None = None
        self.discover: Callable[[Path], Any] = inner.discover

    def follow(self, path: Path, *_: Any, **_options: Any) -> Any:
        self.n_followed += 1
        if self.gate is not None and path.name == self.slow:
            self.gate.wait(30)
        return self.inner.follow(path)


def test_waiting_for_a_page_ends_with_the_page() -> None:
    patience, may_end = PendingPages(), Event()
    assert patience.get("slow", lambda: may_end.wait(60), 0.0) is None

    assert not patience.is_done("slow", 0.01)
    Timer(0.05, may_end.set).start()
    assert patience.is_done("slow", 60.0)
