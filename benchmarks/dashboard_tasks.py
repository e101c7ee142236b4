"""Ten tasks of a person at the dashboard in Debian's Chromium: clicks, time, and whether the answer is right.

Everything is found as a person or a screen reader does, by its role and its name. Each task begins on the
page that its run opens with, and ends when the page shows what :func:`vramscope.load` finds in the same run.
The runs are those of ``sample_traces``, and three that are made on the spot: a training with four batch
sizes, a program that fragments its memory, and a training that goes on meanwhile. Typing, pointing and keys
are no clicks. The time is that of the wall from the first move to the answer, and is not judged.

    python benchmarks/dashboard_tasks.py
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from _dashboard_browser import HEAD, PATIENCE_S, Row, chromium, load, serving, until
from vramscope.dashboard.runs import run_id

import vramscope
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.units import format_bytes, format_share

SAMPLES = Path(__file__).parents[1] / "sample_traces"
MOST_CLICKS = 2
CARD, CARD_BYTES = "3090/4090", 24 << 30
TRAINING = """
import sys, time, torch, vramscope
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
optimizer = torch.optim.AdamW(net.parameters())
n_steps, pause_s = int(sys.argv[2]), float(sys.argv[3])
with vramscope.record(sys.argv[1]):
    for step in range(n_steps):
        net(torch.randn(128 * (1 + step % 4), 512)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause_s)
"""
"""The steps have four batch sizes in turn, so that Fit can say what another one needs."""
PINNING = """
import sys, torch, vramscope
with vramscope.record(sys.argv[1]):
    pairs = [[torch.empty(mib << 20, dtype=torch.uint8) for mib in (4, 2)] for _ in range(40)]
    kept = [pair.pop() for pair in pairs]
    pairs.clear()
    torch.empty(100 << 20, dtype=torch.uint8)
"""
"""Two thirds of every segment are free when one tensor more needs another: the 2 MiB pin them."""


@dataclass
class User:
    """A person at a browser, whose clicks are counted."""

    page: Any
    folder: Path
    n_clicks: int = 0

    def part(self, role: str, name: str | re.Pattern[str]) -> Any:
        """Return the first element of a role with that name."""
        return self.page.get_by_role(role, name=name).first

    def click(self, target: Any) -> None:
        """Click an element once it is there."""
        target.click()
        self.n_clicks += 1

    def turn_to(self, page: str) -> None:
        """Click a page in the menu; its count may follow its name."""
        self.click(self.part("navigation", "Pages").get_by_role("link", name=re.compile(rf"^{page}\b")))

    def sees(self, part: Any, *texts: str) -> str:
        """Wait until a part of the page shows all *texts*, and return these."""
        last_s = monotonic() + PATIENCE_S
        while True:
            shown = " ".join(" ".join(part.all_inner_texts()).split())
            missing = [text for text in texts if text not in shown]
            if not missing:
                return " · ".join(texts)
            if monotonic() > last_s:
                raise AssertionError(f"the page never shows {missing}, but {shown[:200]!r}")
            sleep(0.05)

    def saves(self, target: Any) -> tuple[str, bytes]:
        """Click what saves a file, and return its name and its bytes."""
        with self.page.expect_download() as download:
            self.click(target)
        return download.value.suggested_filename, download.value.path().read_bytes()

    @property
    def main(self) -> Any:
        """The page beside its menu."""
        return self.page.get_by_role("main")

    @property
    def timeline(self) -> Any:
        """The chart of memory over time."""
        return self.part("group", re.compile("^Memory over time"))

    def recording(self, run: str) -> Recording:
        """Return the only recording of a run, as a user of the library gets it."""
        return vramscope.load(self.folder / run).recordings[0]


class Task(NamedTuple):
    """A question, the run that it is about, and a way that ends where the answer is seen."""

    question: str
    run: str
    way: Callable[[User, Recording], str]


def _own_line(recording: Recording, stack: int) -> str:
    """Return the innermost line of a stack in one of our programs; '' where there is none."""
    programs = ("transformer.py", "transformer_cuda.py", "gan_retain_graph.py", "pinning.py")
    own = [frame for frame in recording.stacks.frames(stack) if frame.file.endswith(programs)]
    return f"{Path(own[0].file).name}:{own[0].line}" if own else ""


def _peak(user: User, recording: Recording) -> str:
    peak, by_line, largest = recording.summary().peak["allocated"], dict[str, int](), recording.by_stack()
    for stack, n_bytes in zip(largest.stack_id.tolist(), largest.bytes.tolist(), strict=True):
        place = _own_line(recording, stack)
        by_line[place] = by_line.get(place, 0) + n_bytes
    line = max(filter(None, by_line), key=lambda place: by_line[place])
    share = format_share(by_line[line], largest.total_bytes, 0)
    where = f"step {peak.step} · {peak.phase_words}"
    return user.sees(user.main, f"Peak {format_bytes(peak.n_bytes)}", where, f"{share} of the peak", line)


def _category(user: User, recording: Recording) -> str:
    user.turn_to("Peak")
    parts = recording.summary().categories or {}
    texts = (f"{name.replace('_', ' ')} {format_bytes(n_bytes)}" for name, n_bytes in parts.items())
    return user.sees(user.part("region", "Parts of the allocated memory"), *texts)


def _pins(user: User, recording: Recording) -> str:
    user.turn_to("Fragmentation")
    pins = recording.pins(recording.fragmentation().worst)
    kept = format_bytes(int(pins.kept_bytes[0]))
    return user.sees(
        user.part("region", "What pins segments"), kept, _own_line(recording, int(pins.stack_id[0]))
    )


def _leak(user: User, recording: Recording) -> str:
    user.turn_to("Leaks")
    (leak,) = recording.leaks().leaks
    lines = (f"{Path(line.frame.file).name}:{line.frame.line}" for line in leak.lines if line.frame)
    more = f"{format_bytes(int(leak.bytes_per_step))} more with every step"
    return user.sees(user.main, more, f"kept by {leak.holder}", *lines)


def _compared(user: User, recording: Recording) -> str:
    user.turn_to("Compare")
    user.click(user.part("region", "Compare with").get_by_role("link", name="transformer-cuda"))
    found = recording.compare(user.recording("transformer-cuda"))
    return user.sees(user.main, format_bytes(abs(found.peak_after_bytes - found.peak_before_bytes)))


def _batch(user: User, recording: Recording) -> str:
    user.turn_to("Fit")
    user.click(user.part("navigation", "Cards").get_by_role("link", name=CARD))
    fit = recording.batch_fit()
    doubled = next(each for size, each in fit.rows() if size == 2 * max(fit.sizes))
    name = fit.named(2 * max(fit.sizes))
    row = user.part("region", "Another batch").get_by_role("row", name=name)
    verdict = "fits" if doubled.fits(CARD_BYTES) else "does not fit"
    return user.sees(row, name, format_bytes(doubled.likely_bytes), verdict)


def _link(user: User, _: Recording) -> str:
    user.timeline.focus()
    user.page.keyboard.press("w")
    user.page.wait_for_url("**t1=*")
    other = user.page.context.browser.new_page()
    other.set_default_timeout(PATIENCE_S * 1000)
    other.goto(user.page.url)
    edges = "(drawn => drawn && [drawn.a, drawn.b])(window.vramscope?.timeline?.drawn('allocated'))"
    here, there = until(user.page, edges), until(other, edges)
    other.close()
    # The address has whole nanoseconds.
    assert all(abs(one - two) < 2e-9 for one, two in zip(here, there, strict=True)), (here, there)
    return "the address shows the same zoom to another browser"


def _figure(user: User, recording: Recording) -> str:
    user.timeline.hover()
    name, content = user.saves(user.part("button", "SVG"))
    phases = {Phase(kind).name.lower().replace("_", " ") for kind in recording.phases.phase.tolist()}
    missing = [
        word for word in ("transformer", "Allocated", "MiB", *sorted(phases)) if word not in content.decode()
    ]
    assert not missing, f"{name} does not have {missing}"
    return f"{name} has title, curves, unit and {len(phases)} phases"


def _report(user: User, recording: Recording) -> str:
    name, content = user.saves(user.part("link", "Save report"))
    peak = format_bytes(recording.summary().peak["allocated"].n_bytes)
    assert peak in content.decode(), f"{name} does not name the peak, {peak}"
    return f"{name}, {len(content) / 1e6:.1f} MB, names {peak}"


def _life(user: User, recording: Recording) -> str:
    user.turn_to("Allocations")
    # Rows stand in the document in any order: the upper one is the second, below the head.
    upper = user.part("region", "Allocations found").locator("[role=row][aria-rowindex='2']")
    user.click(upper.get_by_role("gridcell").first)
    user.page.wait_for_url(re.compile(r"[?&]sel=b\d+"))
    row, lives = int(re.findall(r"[?&]sel=b(\d+)", user.page.url)[0]), recording.lifetimes()
    category = Category(int(recording.categories().assigned.category[row])).name.lower().replace("_", " ")
    line = _own_line(recording, int(lives.stack_id[row]))
    return user.sees(
        user.part("complementary", "Inspector"), format_bytes(int(lives.block_size[row])), category, line
    )


def _searched(user: User, recording: Recording) -> str:
    user.turn_to("Allocations")
    user.part("region", "Allocations found").get_by_role("gridcell").first.wait_for()
    user.page.keyboard.press("/")
    user.page.keyboard.type("attention")
    return user.sees(user.main, f"{len(recording.allocations('attention')):,} found")


def _current_step(user: User, recording: Recording) -> str:
    first, last_s = len(recording.steps), monotonic() + PATIENCE_S
    while True:
        standing = re.search(r"\brunning\s+step ([\d,]+)", user.main.inner_text())
        shown = int(standing[1].replace(",", "")) if standing else -1
        # Numbers begin with 0, and the last step may still be written.
        if shown >= first - 1:
            break
        assert monotonic() < last_s, f"step {shown}, but {first} were in the files before"
        sleep(0.05)
    last = len(user.recording("running").steps)
    assert shown <= last, f"step {shown}, but {last} are in the files"
    return f"step {shown}; the files have {first} steps before and {last} after, the first of them step 0"


TASKS = (
    Task("1 line and phase of the peak", "transformer", _peak),
    Task("2 categories of the peak", "transformer", _category),
    Task("3 what pins memory", "pinned", _pins),
    Task("4 which line leaks, and who keeps it", "gan-retain-graph", _leak),
    Task("5 what differs from another run", "transformer", _compared),
    Task("6 twice the batch on 24 GiB", "batches", _batch),
    Task("7 a link to what is seen", "transformer", _link),
    Task("7 a figure to keep", "transformer", _figure),
    Task("7 a report to send", "transformer", _report),
    Task("8 the life of one tensor", "transformer", _life),
    Task("9 what attention allocates", "transformer", _searched),
    Task("10 the current step of a training", "running", _current_step),
)


def rows(only: str = "") -> Iterator[Row]:
    """Do the tasks; of *only* the questions that contain it."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        _runs(Path(folder) / "runs") as root,
        serving(root, Path(folder) / "cache") as server,
        chromium() as browser,
    ):
        page = browser.new_page(viewport={"width": 1280, "height": 860}, accept_downloads=True)
        page.set_default_timeout(PATIENCE_S * 1000)
        for task in TASKS:
            if only in task.question:
                page.goto(f"{server.base}/overview?run={run_id(root / task.run)}")
                user = User(page, root)
                until(page, "window.vramscope?.timeline?.drawn('allocated')")
                yield _row(task, user)


@contextmanager
def _runs(root: Path) -> Iterator[Path]:
    """Make the runs; one of them goes on until the end."""
    for name in ("transformer", "transformer-cuda", "gan-retain-graph"):
        shutil.copytree(SAMPLES / name, root / name)
    train = [sys.executable, "-c", TRAINING]
    quiet: dict[str, Any] = {"stderr": subprocess.DEVNULL, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    subprocess.run([*train, str(root / "batches"), "12", "0"], check=True, **quiet)
    program = root.with_name("pinning.py")
    program.write_text(PINNING)
    subprocess.run([sys.executable, str(program), str(root / "pinned")], check=True, **quiet)
    running = subprocess.Popen([*train, str(root / "running"), "100000", "0.2"], **quiet)
    try:
        while not (root / "running" / "rank0" / "manifest.json").exists():
            sleep(0.1)
        yield root
    finally:
        running.terminate()
        running.wait()


def _row(task: Task, user: User) -> Row:
    from playwright.sync_api import Error

    recording, began = user.recording(task.run), monotonic()
    try:
        answer = task.way(user, recording)
    except (AssertionError, Error) as error:
        return Row(
            task.question, "2 clicks, the right answer", f"no answer: {error}".splitlines()[0], holds=False
        )
    took = f"{user.n_clicks} click{'s' * (user.n_clicks != 1)}, {1000 * (monotonic() - began):.0f} ms"
    return Row(task.question, f"{MOST_CLICKS} clicks", f"{took}: {answer}", user.n_clicks <= MOST_CLICKS)


def main() -> None:
    print(load(), HEAD, sep="\n\n")
    for row in rows(*sys.argv[1:2]):
        print(row.line(), flush=True)


if __name__ == "__main__":
    main()
