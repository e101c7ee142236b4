"""Questions of a person at the dashboard, each answered within two clicks.

The reader finds everything by its role and its name, as a person or a screen reader does; typing and keys
are no clicks. Each question is answered once with a mouse, and once by Tab, Enter and arrows alone, where the
focus is to be seen at every stop. What is expected was made by the program of the run, or is said by
``vramscope.load``.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.data import Data

from vramscope.loading import load
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action
from vramscope.units import format_bytes

pytestmark = pytest.mark.browser
SAMPLES = Path(__file__).parents[2] / "sample_traces"
MIB = 1 << 20
BATCHES = {"batch-32": "rank0", "batch-64": "rank2"}
"""Two runs of one program, and which rank of the sample each is."""
MOST_STOPS = 300
FOCUSED = """target => {
  // Whether the focus is on the target, and what it is on if it cannot be seen there.
  const e = document.activeElement, box = e.getBoundingClientRect();
  const ringed = [e, e.closest('label'), e.closest('.search'), e.closest('.ag-cell')].some(shown => {
    const style = shown && getComputedStyle(shown), ring = style && style.outlineStyle !== 'none';
    return ring && parseFloat(style.outlineWidth) >= 1 || style?.boxShadow.includes('inset');
  });
  const isInView = box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const isShown = isInView && (ringed || e.closest('.ag-root-wrapper'));
  const isSeen = e === document.body || e.id === 'main' || isShown;
  return { isThere: e === target, unseen: isSeen ? null : e.outerHTML.slice(0, 200) };
}"""
COPIES = "navigator.clipboard.writeText = async text => { window.copied = text; }"


@dataclass
class Reader:
    """A person at a page, whose clicks are counted."""

    visitor: Any
    root: Path
    clicks: list[str] = field(default_factory=list)
    has_mouse: bool = True

    @property
    def page(self) -> Any:
        return self.visitor.page

    def opens(self, run: str = "") -> "Reader":
        """Begin at the overview of a run, or at the list."""
        names = {path.name: name for name, path in Data(self.root).runs.paths().items()}
        self.visitor.go(f"/overview?run={names[run]}" if run else "/")
        self.page.get_by_role("heading", level=1).first.wait_for()
        return self

    def press(self, target: Any, name: str) -> None:
        """Click, or go there by Tab and press Enter."""
        target.wait_for()
        self.clicks.append(name)
        if self.has_mouse:
            target.click()
            return
        self.visitor.at_rest()
        for _ in range(MOST_STOPS):
            self.page.keyboard.press("Tab")
            stop = target.evaluate(FOCUSED)
            assert stop["unseen"] is None
            if stop["isThere"]:
                break
        assert stop["isThere"], f"Tab does not lead to {name}"
        self.page.keyboard.press("Enter")

    def clicks_on(self, role: str, name: str | re.Pattern[str], within: str = "main") -> None:
        target = self.page.get_by_role(within).first.get_by_role(role, name=name).first
        self.press(target, f"{role} {name}")

    def turns_to(self, page: str) -> None:
        """Click a page in the menu."""
        name = re.compile(rf"^{page}")  # its count may follow
        self.press(self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=name), page)

    def walks_to(self, cell: Any) -> None:
        """Go to a cell of a table by Tab, and by arrows within it."""
        inside = "e => e.closest('.ag-root-wrapper').contains(document.activeElement)"
        for _ in range(MOST_STOPS):
            self.page.keyboard.press("Tab")
            if cell.evaluate(inside):
                break
        for _ in range(3):
            if cell.evaluate("e => e === document.activeElement"):
                return
            self.page.keyboard.press("ArrowDown")
        raise AssertionError("arrows do not lead to the row")

    def reads(self, *texts: str) -> None:
        """Wait until the page shows all of it."""
        text = "document.querySelector('main').innerText.replaceAll('\\u00a0', ' ')"
        shows = f"texts => texts.every(text => {text}.includes(text))"
        self.visitor.until(shows, list(texts))


def jumping(runs: Any, path: Path) -> None:
    """In its step 3 a program needs a block of 70 MiB, for which the driver is asked."""
    program = runs.open_program(path)
    program.begin(reserved=100 * MIB)
    for step in range(6):
        if step == 3:
            program.event(Action.SEGMENT_ALLOC, 1 << 41, 70 * MIB, program.stack("longer", 77))
            program.event(Action.ALLOC, 1 << 41, 70 * MIB, program.stack("longer", 77))
        program.step()
    program.writer.close(Outcome.FINISHED)


def growing(runs: Any, path: Path, n_steps: int) -> None:
    """A run that goes on and keeps 4 MiB more with every step; its device has 1 GiB."""
    program = runs.open_program(path)
    program.begin()
    for _ in range(n_steps):
        program.malloc(4 * MIB, program.stack("remember", 66))
        program.step()


@pytest.fixture(scope="module")
def guest(staying: Any, runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    root = tmp_path_factory.mktemp("tasks")
    for name in ("transformer", "transformer-cuda", "out-of-memory", "fleet"):
        shutil.copytree(SAMPLES / name, root / name)
    for name, rank in BATCHES.items():
        shutil.copytree(SAMPLES / "fleet" / rank, root / name / rank)
    jumping(runs, root / "jumping")
    growing(runs, root / "growing", 40)
    for number in range(44):
        runs.recorded(root / f"sweep-{number:02}", steps=1)
    with staying(root) as visitor:
        yield Reader(visitor, root)


@pytest.fixture(params=["mouse", pytest.param("keyboard", marks=pytest.mark.exhaustive)])
def reader(guest: Reader, turn_of: Any, request: pytest.FixtureRequest) -> Iterator[Reader]:
    guest.clicks.clear()
    guest.has_mouse = request.param == "mouse"
    with turn_of(guest.visitor):
        yield guest
        assert len(guest.clicks) <= 2, guest.clicks


def test_why_reserved_rose_at_a_step(reader: Reader) -> None:
    reader.opens("jumping").turns_to("Fragmentation")

    reader.reads("cudaMalloc reserved 70.0 MiB for 70.0 MiB requested by longer (me/model.py:77)", "step 3")


def test_which_modules_are_worth_checkpointing(reader: Reader) -> None:
    reader.opens("out-of-memory").turns_to("Fit")

    reader.reads("activation checkpointing of 3 blocks", "0.layers.0")


def test_what_differs_from_a_run_of_half_the_batch(reader: Reader) -> None:
    reader.opens("batch-64").turns_to("Compare")
    reader.clicks_on("link", re.compile("^batch-32"))
    runs = (load(reader.root / name).recordings[0] for name in BATCHES)
    half, whole = (run.peak().allocated.n_bytes for run in runs)

    reader.reads(
        "In kind: batch × 2 (inputs 512 × 256 → 1024 × 256)", f"{format_bytes(whole - half)} more at the peak"
    )
    reader.reads("sample_traces/fleet.py:31", "+8.00 MiB")  # 512 more rows of 4,096 floats


def test_the_largest_block_of_an_instant_its_stack_and_who_freed_it(reader: Reader) -> None:
    reader.opens("transformer").clicks_on("link", "List its blocks")
    reader.visitor.at_rest()
    # Rows stand in the document in any order: the upper one is the second, below the head.
    row = reader.page.locator("[role=row][aria-rowindex='2'] [role=gridcell]").first
    if reader.has_mouse:
        row.focus()
    else:
        reader.walks_to(row)
    row.press("Enter")
    panel = reader.page.get_by_role("complementary", name="Inspector")
    panel.get_by_role("button", name="Copy stack").wait_for()
    reader.page.evaluate(COPIES)
    reader.press(panel.get_by_role("button", name="Copy stack"), "Copy stack")
    reader.visitor.until("window.copied")
    recording = load(reader.root / "transformer").recordings[0]
    live = recording.allocations("live:peak")
    largest = format_bytes(int(live.block_bytes.max()))

    assert re.search(r"transformer\.py:\d+", reader.page.evaluate("window.copied"))
    assert largest in panel.inner_text()
    assert re.search(r"Freed\n(?:never|.*\n?.*(?:step|instant|end))", panel.inner_text())


def test_a_link_restores_the_view(reader: Reader) -> None:
    page = reader.opens("transformer").page
    reader.visitor.plotted()
    page.keyboard.press("w")
    page.wait_for_url("**t1=*")
    other = page.context.browser.new_page()
    other.goto(page.url)
    other.wait_for_selector(".track[data-ready]")
    edges = "(({ a, b }) => [a, b])(window.vramscope.timeline.drawn('allocated'))"
    here, there = page.evaluate(edges), other.evaluate(edges)
    other.close()

    assert here == pytest.approx(there, abs=1e-8)


def test_the_run_out_of_memory_among_fifty(reader: Reader) -> None:
    page = reader.opens().page
    reader.reads("ran out of memory")
    reader.press(page.get_by_role("button", name=re.compile("^Out of memory")).first, "Out of memory")
    reader.clicks_on("link", "out-of-memory")
    page.wait_for_url("**run=out-of-memory*")

    reader.reads("out-of-memory", "Peak")


def test_what_nvidia_smi_counts(reader: Reader) -> None:
    reader.opens("transformer-cuda").turns_to("Waterfall")

    reader.reads("this process outside of torch", "other processes")


def test_whether_a_run_that_goes_on_reaches_its_limit(reader: Reader) -> None:
    reader.opens("growing")

    # 20 MiB of the set-up, 66 of a step and 4 more with each step are 1 GiB in step 233.
    pattern = r"near step [\d,]+ \(([\d,]+) to ([\d,]+)\)"
    words = reader.visitor.until(f"document.querySelector('main').innerText.match(/{pattern}/)?.[0]")
    low, high = (int(number.replace(",", "")) for number in re.search(pattern, words).groups())
    assert low <= 233 <= high


def test_why_a_rank_is_odd(reader: Reader) -> None:
    reader.opens().clicks_on("link", "fleet")

    reader.reads("Rank 2 differs from the ranks that should be like it", "its batches are larger")


def test_a_figure_to_print(reader: Reader) -> None:
    page = reader.opens("transformer").page
    reader.visitor.plotted()
    if reader.has_mouse:
        page.get_by_role("group", name=re.compile("^Memory over time")).hover()
    with page.expect_download() as download:
        reader.clicks_on("button", "SVG")
    figure = download.value.path().read_text(encoding="utf-8")

    assert all(word in figure for word in ("transformer", "Allocated", "MiB", "forward", "step 1"))


def test_a_screen_reader_hears_the_answer_first(reader: Reader) -> None:
    page = reader.opens("transformer").page
    heard = page.get_by_role("main").aria_snapshot()

    assert re.search(r'heading "Peak 24\.6 MiB at .* step 1 · backward" \[level=2\]', heard)
    assert heard.index("Key figures") > heard.index("Peak 24.6 MiB")
    assert "transformer.py:34" in heard
