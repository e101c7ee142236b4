"""Every page and each of its views says what it has, or why it has nothing, whatever the recording lacks.

One server and one page for all; axe-core looks at each view in both themes.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.data import Data
from vramscope.dashboard.pages import Page, pages

from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Marks, Note
from vramscope.model.recording import Outcome
from vramscope.store.write.writer import Writer

pytestmark = pytest.mark.browser
SAMPLES = Path(__file__).parents[2] / "sample_traces"
MIB = 1 << 20
RICH = "transformer-cuda"
THEMES = ("light", "dark")
_ALL = partial(pytest.param, marks=pytest.mark.exhaustive)
ROOMS = [pytest.param(room, id=room.name) for room in pages() if room.about_run]
THERE = ".claim, .state h2, .others, #al-table .ag-row, .page section:not(.working)"
VIEWS = "[...document.querySelectorAll('main .segments a')].map(e => e.getAttribute('href'))"
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which "
    "1.00 GiB is free. Of the allocated memory 16.00 GiB is allocated by PyTorch, and 4.00 GiB is "
    "reserved by PyTorch but unallocated."
)


def counters(path: Path, runs: Any) -> None:
    process, start = Process(torch="2.13.0"), runs.START_NS
    device = Device(kind="cuda", name="NVIDIA H100", total_bytes=80 << 30)
    writer = Writer(path, source="counters", process=process, devices=[device], started_ns=start)
    writer.note(Note(NoteCode.COUNTERS_ONLY, "recorded with mode='counters': levels at moments"), 0)
    writer.append(Marks.of(), 0)
    levels = {"allocated_bytes": [5 * MIB, 9 * MIB, 3 * MIB], "reserved_bytes": [20 * MIB] * 3}
    writer.append(Counters.of(time_ns=[start, start + 10**9, start + 2 * 10**9], **levels), 0)
    writer.close(Outcome.FINISHED)


def damaged(path: Path, runs: Any) -> None:
    (events,) = runs.recorded(path, steps=12).glob("rank0/events-*")
    whole = bytearray(events.read_bytes())
    whole[len(whole) // 3 :][:2000] = bytes(2000)
    events.write_bytes(whole)


def stepless(path: Path, runs: Any) -> None:
    program = runs.open_program(path)
    program.begin()
    for line in range(8):
        program.malloc(8 * MIB, program.stack("f", line))
    program.flush()
    program.writer.close(Outcome.FINISHED)


def log(path: Path, _: Any) -> None:
    path.write_text(MESSAGE)


def unreadable(path: Path, _: Any) -> None:
    path.write_bytes(b"\x80\x05 is no pickle")


RECORDINGS: dict[str, Callable[[Path, Any], Any]] = {
    "empty": lambda path, runs: runs.recorded(path, steps=0),
    "counters": counters,
    "damaged": damaged,
    "stepless": stepless,
    "train.log": log,
    "live": lambda path, runs: runs.open_program(path).flush(),
    RICH: lambda path, _: shutil.copytree(SAMPLES / path.name, path),
}
POOR = [name for name in RECORDINGS if name != RICH]


@pytest.fixture(scope="module")
def guest(staying: Any, runs: Any, tmp_path_factory: pytest.TempPathFactory, axe: str) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("poor")
    for name, make in RECORDINGS.items():
        make(root / name, runs)
    unreadable(root / "torn.pickle", runs)
    with staying(root) as visitor:
        visitor.runs = {path.name: name for name, path in Data(root).runs.paths().items()}
        visitor.go("/").page.wait_for_selector(".runs .run-link")
        visitor.page.evaluate(axe)
        yield visitor


def assert_whole(visitor: Any, url: str, room: Page, name: str, themes: Sequence[str] = THEMES) -> None:
    """The view that is open has its titles, says something, and axe finds nothing at all in these themes."""
    page = visitor.page
    page.wait_for_selector(THERE)
    visitor.at_rest()

    assert page.title() == f"{name} · {room.title} · vramscope", url
    assert page.locator("h1").all_inner_texts() == [name], url
    assert len(page.inner_text("main")) > len(page.inner_text("header")) + 60, url
    for theme in themes:
        visitor.theme(theme)
        visitor.at_rest()
        assert visitor.violations() == [], (url, theme)


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize(
    "name", [name if name in ("counters", "damaged") else _ALL(name) for name in RECORDINGS]
)
def test_every_view_has_a_title_and_says_what_it_has_or_why_not(visitor: Any, name: str, room: Page) -> None:
    here = f"{room.path}?run={visitor.runs[name]}"
    visitor.follow(here)
    # Each page has either theme on three of the six recordings that lack something.
    assert_whole(visitor, here, room, name, THEMES if name == RICH else THEMES[POOR.index(name) % 2 :][:1])
    # The same links are on the pages of all runs: each of their views is looked at on the one that has most.
    for view in visitor.page.evaluate(VIEWS) if name == RICH else []:
        if view.startswith(room.path):
            visitor.follow(view)
            assert_whole(visitor, view, room, name)


@pytest.mark.parametrize("room", [each for each in ROOMS if each.id != "ranks"])
def test_every_page_says_that_a_file_cannot_be_read(visitor: Any, room: Page) -> None:
    here = f"{room.path}?run={visitor.runs['torn.pickle']}"
    visitor.follow(here)
    assert_whole(visitor, here, room, "torn.pickle")

    assert visitor.page.locator(".state-error h2").count() == 1
