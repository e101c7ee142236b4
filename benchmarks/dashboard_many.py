"""What moves while a page comes, a list of 500 runs, and twenty viewers of one training, in Chromium.

python benchmarks/dashboard_many.py
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any
from urllib.request import Request, urlopen

from _dashboard_browser import HEAD, PATIENCE_S, Row, chromium, load, serving, until
from dashboard_speed import PAGES
from dashboard_tasks import SAMPLES, TRAINING
from vramscope.dashboard.runs import run_id

from vramscope import load as load_run

SHIFTED = """
  window.shifted = 0;
  new PerformanceObserver(list => { for (const each of list.getEntries()) window.shifted += each.value })
    .observe({ type: 'layout-shift', buffered: true });
"""
SIZES = ((390, 844), (1280, 800), (2560, 1440))
RUN_OF = {"oom": "out-of-memory", "fit": "out-of-memory", "leaks": "gan-retain-graph"}
MOST_SHIFTED, N_RUNS, LIST_MS, N_VIEWERS, MOST_LATE_S = 0.05, 500, 300, 20, 3.0
LISTED = """
  const look = setInterval(() => {
    // The list draws its first rows, and more where the reader scrolls.
    if (!document.querySelector('main')?.textContent.includes('All%d')) return;
    if (!document.querySelector('.runs tbody tr')) return;
    window.listed = performance.now();
    clearInterval(look);
  }, 5);
"""
HEARD_S = 10
"""Seconds of the first page's requests that the other viewers send again."""
N_LOOKS = 20
READ_S = 900
"""Longest time for which the first visit waits until every run of the list was read."""
STANDING = "document.querySelector('#standing')?.innerText"


def rows() -> Iterator[Row]:
    """Measure all three."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        place = Path(folder)
        for name in ("transformer-cuda", "out-of-memory", "gan-retain-graph"):
            shutil.copytree(SAMPLES / name, place / "samples" / name)
        with serving(place / "samples", place / "cache") as server:
            yield from _shifts(browser, server.base, place / "samples")
        for number in range(N_RUNS):
            shutil.copytree(SAMPLES / "transformer", place / "many" / f"run{number}", copy_function=os.link)
        with serving(place / "many", place / "cache") as server:
            yield _listed(browser, server.base)
        yield _viewed(browser, place / "live", place / "cache")


def _shifts(browser: Any, base: str, root: Path) -> Iterator[Row]:
    for width, height in SIZES:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.add_init_script(SHIFTED)
        found: dict[str, float] = {}
        for name in PAGES:
            page.goto(f"{base}/{name}?run={run_id(root / RUN_OF.get(name, 'transformer-cuda'))}")
            page.wait_for_load_state("networkidle")
            sleep(1)
            found[name] = page.evaluate("window.shifted")
        page.close()
        most = max(found, key=lambda name: found[name])
        words = f"{found[most]:.3f} at most ({most}), {len(found)} pages"
        yield Row(f"what moves while a page comes, at {width} pixels", f"CLS {MOST_SHIFTED}", words,
                  found[most] <= MOST_SHIFTED)  # fmt: skip


def _listed(browser: Any, base: str) -> Row:
    """Time the list at the visits after the first, in which the runs are read."""
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.set_default_timeout(PATIENCE_S * 1000)
    page.add_init_script(LISTED % N_RUNS)
    times = []
    for _ in range(6):
        page.goto(base)
        times.append(until(page, "window.listed"))
        last_s = monotonic() + READ_S
        while page.locator(".runs .waiting").count() and monotonic() < last_s:
            sleep(1)
    page.close()
    later = sorted(times[1:])
    words = f"{later[2]:.0f} ms ({later[0]:.0f} to {later[-1]:.0f}), at the first visit {times[0]:.0f} ms"
    return Row(f"{N_RUNS} runs are listed", f"{LIST_MS} ms", words, later[2] <= LIST_MS)


def _viewed(browser: Any, root: Path, cache: Path) -> Row:
    """Follow a training in one window, while nineteen others send the requests that it sends."""
    train = [sys.executable, "-c", TRAINING, str(root / "running"), "100000", "0.2"]
    quiet: dict[str, Any] = {"stderr": subprocess.DEVNULL, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    running = subprocess.Popen(train, **quiet)
    try:
        while not (root / "running" / "rank0" / "manifest.json").exists():
            sleep(0.1)
        with serving(root, cache) as server:
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.goto(f"{server.base}/overview?run={run_id(root / 'running')}")
            until(page, "document.querySelector('.track[data-ready]')")
            sent = _sent(page)
            with _others(sent) as others:
                late = []
                for _ in range(N_LOOKS):
                    page.wait_for_timeout(1000)
                    late.append(_late_s(page, root))
            page.close()
    finally:
        running.terminate()
        running.wait()
    n_asked, n_refused = (sum(each) for each in zip(*others, strict=True))
    asked = f"{n_asked:,} requests of the others, {n_refused} refused"
    words = f"{max(late):.1f} s late at most in {N_LOOKS} looks; {asked}"
    holds = max(late) <= MOST_LATE_S and not n_refused and n_asked > 0
    return Row(f"{N_VIEWERS} viewers of one training, one of them Chromium", f"{MOST_LATE_S} s", words, holds)


def _sent(page: Any) -> list[tuple[float, Any]]:
    """Return the requests that a page sends in ten seconds, each with its time in seconds."""
    sent: list[tuple[float, Any]] = []
    began_s = monotonic()
    page.on("request", lambda one: sent.append((monotonic() - began_s, one)))
    page.wait_for_timeout(HEARD_S * 1000)
    names = ("content-type", "origin", "referer")
    return [
        (at_s, Request(one.url, one.post_data_buffer, {k: v for k, v in one.headers.items() if k in names}))
        for at_s, one in tuple(sent)
    ]


@contextmanager
def _others(sent: list[tuple[float, Any]]) -> Iterator[list[tuple[int, int]]]:
    """Send *sent* again and again as the other viewers would; yield a list that gets their counts."""
    found: list[tuple[int, int]] = []
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, get_context("spawn").Manager() as manager:
        is_over = manager.Event()
        counted = pool.submit(_crowd, sent, is_over)
        yield found
        is_over.set()
        found.extend(counted.result())


def _crowd(sent: list[tuple[float, Any]], is_over: Any) -> list[tuple[int, int]]:
    """Be the other viewers, a thread each; their rounds begin at different times."""
    with ThreadPoolExecutor(N_VIEWERS - 1) as pool:
        over = Event()
        counts = [pool.submit(_viewer, sent, n * HEARD_S / N_VIEWERS, over) for n in range(N_VIEWERS - 1)]
        is_over.wait()
        over.set()
        return [each.result() for each in counts]


def _viewer(sent: list[tuple[float, Any]], late_s: float, over: Event) -> tuple[int, int]:
    n_asked = n_refused = 0
    over.wait(late_s)
    while not over.is_set():
        began_s = monotonic()
        for at_s, request in sent:
            over.wait(max(began_s + at_s - monotonic(), 0))
            if over.is_set():
                break
            n_asked, n_refused = n_asked + 1, n_refused + (not _is_answered(request))
        over.wait(max(began_s + HEARD_S - monotonic(), 0))
    return n_asked, n_refused


def _is_answered(request: Request) -> bool:
    try:
        with urlopen(request, timeout=PATIENCE_S) as answer:
            return bool(answer.read() or answer.status == 204)
    except OSError:
        return False


def _late_s(page: Any, root: Path) -> float:
    """Return the seconds until the page shows the step that the files have now."""
    now, began_s = len(load_run(root / "running").recordings[0].steps) - 1, monotonic()
    while True:
        found = re.search(r"step ([\d,]+)", page.evaluate(STANDING) or "")
        if found and int(found[1].replace(",", "")) >= now:
            return monotonic() - began_s
        assert monotonic() < began_s + PATIENCE_S, f"step {now} never came"
        sleep(0.05)


def main() -> None:
    print(load(), HEAD, sep="\n\n")
    for row in rows():
        print(row.line(), flush=True)


if __name__ == "__main__":
    main()
