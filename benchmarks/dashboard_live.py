"""Watch a training live: the lag of the page, what it keeps of the user's choices, the cost for the training.

The demo's training writes on one core, as a training on a GPU does; ``vramscope serve`` runs as a process of
its own; Debian's Chromium shows two pages, one of them zoomed, with an instant chosen. The lag is exact: the
time for which the files have held events that the page does not show. Afterwards pages are opened and left
alternately. The cost of a step is processor time: wall time on shared cores decides nothing below 10 %.

    python benchmarks/dashboard_live.py --seconds 600 --pairs 6

With ``--rate`` the program of ``soak.py`` writes that many events a second instead, on a GPU or on its
stand-in, and steps are not measured:

    python benchmarks/dashboard_live.py --seconds 1800 --rate 10000 --python .cache/standin/2.13.0/python
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
from playwright.sync_api import sync_playwright

from vramscope import load
from vramscope.columns.scratch import Scratch
from vramscope.loading import Follower, HurriedFollower

CHROMIUM = "/usr/bin/chromium"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
LOOK_EVERY_S = 0.25
WARM_S = 45
"""Seconds before the server's memory is measured: Dash, Plotly and the first answers are loaded by then."""
MOST_STEPS_PER_S = 5
SPARE_MINUTES = 3
"""What a training at a rate goes on for, so that it is there until the last look."""
TURN_S = 20
"""Seconds for which the pages are open and closed, alternately; longer if steps are long."""
STEPS_A_TURN = 5
ZOOM = (100, 900)
DRAWN = "window.vramscope.timeline.drawn('allocated')"
SHOWN = f"{DRAWN}.x.at(-1)"
PLOT = """() => { const figure = document.querySelector('.track'), box = figure.getBoundingClientRect();
  const { left, top, width, height } = window.vramscope.timeline.boxOf(figure);
  return { x: box.left + left, y: box.top + top, width, height } }"""
BUDGET_LAG_S, BUDGET_MB, BUDGET_STEP = 2.0, 20.0, 0.01


class Look(NamedTuple):
    """A sample of one time: events in the files, events on the page, the server's memory in MB.

    The files are read after that time: a lag is too long by what reading took, never too short.

    Its own memory is what the system cannot take back: resident pages of files are not in it.
    """

    at_s: float
    on_disk: int
    shown: int
    server_mb: float
    resident_mb: float
    reading_s: float
    """Seconds that this benchmark took to find out how much is in the files."""


class Kept(NamedTuple):
    """The user's choices on the second page: the zoom, the heading of the chosen instant, its line."""

    zoom: tuple[float, ...]
    heading: str
    at: int | None


@dataclass
class Trainer:
    """The training process, with the end of each step by the clock and by processor time."""

    process: "subprocess.Popen[str]"
    ended: list[tuple[float, float]] = field(default_factory=list)

    def listen(self) -> None:
        """Note every step that the training prints."""
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.ended.append((time.monotonic(), cpu_s(self.process.pid)))

    @property
    def step_s(self) -> float:
        """The recent duration of a step in seconds, by the clock."""
        ended = [at for at, _ in self.ended[-10:]]
        return (ended[-1] - ended[0]) / max(len(ended) - 1, 1)

    def steps(self, stretches: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """Return seconds by the clock and of the processor, for the steps that lie wholly in *stretches*."""
        pairs = zip(self.ended[:-1], self.ended[1:], strict=True)
        inside = [
            (one, other)
            for one, other in pairs
            if any(first <= one[0] and other[0] <= last for first, last in stretches)
        ]
        return [b[0] - a[0] for a, b in inside], [b[1] - a[1] for a, b in inside]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--pairs", type=int, default=6, help="times that the pages are opened and left after")
    parser.add_argument("--rate", type=int, default=0, help="events a second; 0: those of the demo")
    parser.add_argument("--python", default=sys.executable, help="that sees a GPU, for --rate")
    args = parser.parse_args()
    if args.rate:
        args.pairs = 0
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "live"
        one_core = os.environ | {"OMP_NUM_THREADS": "1"}
        command = _at_a_rate(args, run) if args.rate else _demo(args, run)
        print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores at the start")
        with _process(command, stdout=subprocess.PIPE, env=one_core) as process:
            trainer = Trainer(process)
            trainer.listen()
            while len(trainer.ended) < 2:
                time.sleep(0.1)
            for line in _watched(run, args.seconds, args.pairs, trainer):
                print(line, flush=True)


def _demo(args: argparse.Namespace, run: Path) -> list[str]:
    script = Path(load.__code__.co_filename).parent / "commands" / "_demo_train.py"
    n_steps = str(int((args.seconds + 2 * args.pairs * TURN_S + 60) * MOST_STEPS_PER_S))
    return [sys.executable, str(script), str(run), n_steps]


def _at_a_rate(args: argparse.Namespace, run: Path) -> list[str]:
    script, minutes = str(Path(__file__).with_name("soak.py")), str(args.seconds / 60 + SPARE_MINUTES)
    options = ["--minutes", minutes, "--rate", str(args.rate), "--max-size", "2 GiB", "--recorded"]
    return [args.python, script, "--child", str(run), *options]


@contextmanager
def _process(command: list[str], **more: Any) -> Iterator["subprocess.Popen[str]"]:
    made = subprocess.Popen(command, text=True, **more)
    try:
        yield made
    finally:
        made.terminate()
        made.wait()


def _watched(run: Path, seconds: float, n_pairs: int, trainer: Trainer) -> Iterator[str]:
    command = [sys.executable, "-m", "vramscope", "serve", str(run), "--no-token", "--port", "0"]
    with _process(command, stdout=subprocess.PIPE) as server, sync_playwright() as driver:
        url = _url(server)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page, zoomed = (browser.new_page(viewport={"width": 1280, "height": 860}) for _ in range(2))
        for each in (page, zoomed):
            _open(each, url)
        before = _set(zoomed)
        page.bring_to_front()
        began_s, began_cpu = time.monotonic(), cpu_s(server.pid)
        # In memory its columns are copied as they grow. That counted as lag: two runs had their longest, 2.3
        # and 2.9 s, after 560 s, at 6.6 million events; with files it was 1.2 s, at another time.
        follower = HurriedFollower(run, scratch=Scratch(run.parent / "scratch"))
        looks = _looks(page, follower, server.pid, began_s + seconds)
        used = (cpu_s(server.pid) - began_cpu) / (time.monotonic() - began_s)
        yield from _told(looks)
        yield from _still(before, _now(zoomed))
        yield f"server: {1000 * used:.1f} ms of a processor in each second, for two pages that follow"
        if n_pairs:
            turn_s = max(TURN_S, (STEPS_A_TURN + 1) * trainer.step_s)
            yield from _cost(trainer, *_turns((page, zoomed), url, n_pairs, turn_s))
        browser.close()


def _url(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    return next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))


def _open(page: Any, url: str) -> None:
    page.goto(f"{url}&axis=events")
    page.wait_for_selector(".track[data-ready]", timeout=60_000)


def _set(page: Any) -> Kept:
    """Zoom in by dragging, then choose an instant by a click."""
    page.bring_to_front()
    page.evaluate("edges => window.vramscope.timeline.look(...edges)", list(ZOOM))
    page.wait_for_timeout(3000)
    heading = page.inner_text("#ov-live h3")
    box = page.evaluate(PLOT)
    page.mouse.click(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
    for _ in range(100):
        if page.inner_text("#ov-live h3") != heading:
            break
        page.wait_for_timeout(100)
    page.wait_for_timeout(1000)
    return _now(page)


def _now(page: Any) -> Kept:
    shown = page.evaluate(DRAWN)
    heading = page.inner_text("#ov-live h3 .instant")
    return Kept((shown["a"], shown["b"]), heading, shown["at"])


def _looks(page: Any, follower: Follower, server: int, until_s: float) -> list[Look]:
    looks = []
    while (now := time.monotonic()) < until_s:
        shown = int(page.evaluate(SHOWN))
        asked_s = time.monotonic()
        follower.refresh()
        n_events, reading_s = len(follower.run.recordings[0].trace), time.monotonic() - asked_s
        looks.append(Look(now, n_events, shown, *_memory_mb(server), reading_s))
        page.wait_for_timeout(1000 * LOOK_EVERY_S)
    return looks


def _memory_mb(process: int) -> tuple[float, float]:
    """Return what a process has of its own, and what is resident with pages of files."""
    status = Path(f"/proc/{process}/status").read_text()
    own = sum(int(kb) for kb in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status)) / 1000
    return own, int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1000


def cpu_s(process: int) -> float:
    """Return the processor time of all threads of a process, with a resolution of nanoseconds."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _told(looks: list[Look]) -> Iterator[str]:
    lags = np.array(_lags(looks))
    n_events, took_s = looks[-1].on_disk - looks[0].on_disk, looks[-1].at_s - looks[0].at_s
    yield (
        f"lag of the page: median {np.median(lags):.2f} s, 95th percentile {np.percentile(lags, 95):.2f} s, "
        f"at most {lags.max():.2f} s after {looks[lags.argmax()].at_s - looks[0].at_s:.0f} s, "
        f"{np.mean(lags > BUDGET_LAG_S):.2%} of the looks above; {n_events:,} events in {took_s:.0f} s "
        f"({_judged(lags.max() <= BUDGET_LAG_S)}: {BUDGET_LAG_S:.0f} s); reading the files took us "
        f"at most {max(look.reading_s for look in looks):.2f} s"
    )
    later = [look for look in looks if look.at_s > looks[0].at_s + WARM_S] or looks[-1:]
    warm, resident = [look.server_mb for look in later], [look.resident_mb for look in later]
    apart = (max(warm) - min(warm)) / 2
    yield (
        f"server memory: first {warm[0]:.0f} MB, last {warm[-1]:.0f} MB, greatest {max(warm):.0f} MB, "
        f"± {apart:.1f} MB from {WARM_S} s on ({_judged(apart <= BUDGET_MB)}: ± {BUDGET_MB:.0f} MB); with "
        f"pages of files {resident[0]:.0f} to {max(resident):.0f} MB, by minute "
        f"{', '.join(f'{look.server_mb:.0f}' for look in later[:: max(len(later) // 15, 1)])} MB of its own"
    )


def _judged(is_met: bool) -> str:
    return "pass" if is_met else "MISS"


def _lags(looks: list[Look]) -> list[float]:
    """Return the seconds since the files first held more than the page shows, at each sample."""
    first, lags = 0, []
    for now in looks:
        while looks[first].on_disk <= now.shown and looks[first].at_s < now.at_s:
            first += 1
        lags.append(now.at_s - looks[first].at_s if looks[first].on_disk > now.shown else 0.0)
    return lags


def _still(before: Kept, after: Kept) -> Iterator[str]:
    yield f"zoom kept: {after.zoom} ({_judged(after.zoom == before.zoom == ZOOM)})"
    same = after[1:] == before[1:] and after.at is not None
    yield f"chosen instant kept: {after.heading!r} ({_judged(same)}, was {before.heading!r})"


def _turns(pages: tuple[Any, ...], url: str, n_pairs: int, turn_s: float) -> tuple[list[Any], list[Any]]:
    """Return when the pages were closed, and when they followed the run."""
    away, there = [], []
    for _ in range(n_pairs):
        for page in pages:
            page.goto("about:blank")
        began = time.monotonic()
        time.sleep(turn_s)
        away.append((began, time.monotonic()))
        for page in pages:
            _open(page, url)
        began = time.monotonic()
        pages[0].wait_for_timeout(1000 * turn_s)
        there.append((began, time.monotonic()))
    return away, there


def _cost(trainer: Trainer, away: list[Any], there: list[Any]) -> Iterator[str]:
    (alone, alone_cpu), (watched, watched_cpu) = trainer.steps(away), trainer.steps(there)
    if len(alone) < 3 or len(watched) < 3:
        yield "a step: too few to compare"
        return
    cpu = float(np.median(watched_cpu) / np.median(alone_cpu)) - 1
    wall = float(np.median(watched) / np.median(alone)) - 1
    yield (
        f"a step's processor time: {np.median(alone_cpu):.3f} s, watched {np.median(watched_cpu):.3f} s: "
        f"{100 * cpu:+.2f} % ± {100 * _uncertain(alone_cpu, watched_cpu):.2f} % "
        f"({len(alone)} and {len(watched)} steps in turn; {_judged(cpu <= BUDGET_STEP)}: 1 %)"
    )
    yield (
        f"a step by the clock: {np.median(alone):.3f} s alone, {np.median(watched):.3f} s watched, "
        f"{100 * wall:+.1f} %; training, browser and server share {len(os.sched_getaffinity(0))} cores"
    )


def _uncertain(one: list[float], other: list[float]) -> float:
    """Return one standard error of the ratio of two medians."""
    errors = [1.25 * np.std(each) / np.sqrt(len(each)) / np.median(each) for each in (one, other)]
    return float(np.hypot(*errors))


if __name__ == "__main__":
    main()
