"""Watch a training live: how far behind is the page, does the zoom stay, does the server grow?

The demo's training writes; ``vramscope serve`` runs as a process of its own; Debian's Chromium shows two
pages, one of them zoomed. The lag is exact: since when had the files held events that the page did not show?

    python benchmarks/dashboard_live.py --seconds 600
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from playwright.sync_api import sync_playwright

from vramscope import load
from vramscope.load import Follower

CHROMIUM = "/usr/bin/chromium"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
LOOK_EVERY_S = 0.25
WARM_S = 45
"""Of the server's memory: Dash, Plotly and the first answers are there by then."""
MOST_STEPS_PER_S = 40
ALONE_S = 20
"""The training runs so long by itself, before and after: its steps are compared with the watched ones."""
ZOOM = (100, 900)
WARM_STEPS = 5
PLOT = "document.querySelector('#ov-graph .js-plotly-plot')"
SHOWN = f"{PLOT}._fullData.find(t => t.uid === 'allocated').x.at(-1)"


class Look(NamedTuple):
    """What was so at one time: events in the files, events on the page, the server's memory in MB."""

    at_s: float
    on_disk: int
    shown: int
    server_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "live"
        script = Path(load.__code__.co_filename).parent / "commands" / "_demo_train.py"
        n_steps = str(int((args.seconds + 2 * ALONE_S) * MOST_STEPS_PER_S))
        with _process([sys.executable, str(script), str(run), n_steps], stdout=subprocess.DEVNULL):
            time.sleep(ALONE_S)
            began_ns = time.time_ns()
            looks, is_kept = _watch(run, args.seconds)
            ended_ns = time.time_ns()
            time.sleep(ALONE_S)
        for line in (*_told(looks), _kept(is_kept), _steps(run, began_ns, ended_ns)):
            print(line, flush=True)


@contextmanager
def _process(command: list[str], **more: Any) -> Iterator["subprocess.Popen[str]"]:
    made = subprocess.Popen(command, text=True, **more)
    try:
        yield made
    finally:
        made.terminate()
        made.wait()


def _watch(run: Path, seconds: float) -> tuple[list[Look], bool]:
    """Looks every quarter of a second; whether the zoomed page still shows its stretch at the end."""
    command = [sys.executable, "-m", "vramscope", "serve", str(run), "--no-token", "--port", "0"]
    with _process(command, stdout=subprocess.PIPE) as server, sync_playwright() as driver:
        url = _url(server)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page, zoomed = (browser.new_page(viewport={"width": 1280, "height": 860}) for _ in range(2))
        page.goto(f"{url}&axis=events")
        zoomed.goto(f"{url}&axis=events&t0={ZOOM[0]}&t1={ZOOM[1]}")
        for each in (page, zoomed):
            each.wait_for_selector("#ov-graph .traceallocated .js-line", state="attached", timeout=60_000)
        page.bring_to_front()
        looks = _looks(page, Follower(run), server.pid, time.monotonic() + seconds)
        is_kept = tuple(zoomed.evaluate(f"{PLOT}._fullLayout.xaxis.range")) == ZOOM
        browser.close()
    return looks, is_kept


def _url(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    return next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))


def _looks(page: Any, follower: Follower, server: int, until_s: float) -> list[Look]:
    looks = []
    while (now := time.monotonic()) < until_s:
        shown = int(page.evaluate(SHOWN))
        follower.refresh()
        looks.append(Look(now, len(follower.run.recordings[0].trace), shown, _memory_mb(server)))
        page.wait_for_timeout(1000 * LOOK_EVERY_S)
    return looks


def _memory_mb(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1000


def _told(looks: list[Look]) -> Iterator[str]:
    lags = np.array(_lags(looks))
    yield (
        f"lag of the page: median {np.median(lags):.2f} s, 95th percentile {np.percentile(lags, 95):.2f} s, "
        f"at most {lags.max():.2f} s; {looks[-1].on_disk - looks[0].on_disk:,} events in "
        f"{looks[-1].at_s - looks[0].at_s:.0f} s (budget 2 s)"
    )
    warm = [look.server_mb for look in looks if look.at_s > looks[0].at_s + WARM_S] or [looks[-1].server_mb]
    yield f"server memory: {warm[0]:.0f} MB warm, {warm[-1]:.0f} MB at the end, most {max(warm):.0f} MB"


def _lags(looks: list[Look]) -> list[float]:
    """Seconds since the files first held more than the page shows, at each look."""
    first, lags = 0, []
    for now in looks:
        while looks[first].on_disk <= now.shown and looks[first].at_s < now.at_s:
            first += 1
        lags.append(now.at_s - looks[first].at_s if looks[first].on_disk > now.shown else 0.0)
    return lags


def _kept(is_kept: bool) -> str:
    return f"zoom kept on the other page: {'yes' if is_kept else 'NO'}"


def _steps(run: Path, began_ns: int, ended_ns: int) -> str:
    steps = load(run).recordings[0].steps
    took = (steps.end_ns - steps.start_ns) / 1e6
    watched = (steps.start_ns > began_ns) & (steps.end_ns < ended_ns)
    alone = ((steps.end_ns < began_ns) | (steps.start_ns > ended_ns)) & (steps.index > WARM_STEPS)
    if not watched.any() or not alone.any():
        return "step: too few to compare"
    there, without = (float(np.median(took[rows])) for rows in (watched, alone))
    return (
        f"step: {without:.1f} ms alone, {there:.1f} ms watched ({100 * (there / without - 1):+.1f} %); "
        f"browser and server share the {len(_cores())} cores of this machine with it"
    )


def _cores() -> set[int]:
    import os

    return os.sched_getaffinity(0)


if __name__ == "__main__":
    main()
