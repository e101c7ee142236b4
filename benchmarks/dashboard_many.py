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
from pathlib import Path
from time import monotonic, sleep
from typing import Any

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
    """Open the page of a training in twenty windows, and see by how much the latest of them is late."""
    train = [sys.executable, "-c", TRAINING, str(root / "running"), "100000", "0.2"]
    quiet: dict[str, Any] = {"stderr": subprocess.DEVNULL, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    running = subprocess.Popen(train, **quiet)
    try:
        while not (root / "running" / "rank0" / "manifest.json").exists():
            sleep(0.1)
        with serving(root, cache) as server:
            url = f"{server.base}/overview?run={run_id(root / 'running')}"
            pages = [browser.new_page(viewport={"width": 1280, "height": 860}) for _ in range(N_VIEWERS)]
            for page in pages:
                page.goto(url)
            for page in pages:
                until(page, "document.querySelector('.track[data-ready]')")
            sleep(10)
            late = [_late_s(page, root) for page in pages]
            for page in pages:
                page.close()
    finally:
        running.terminate()
        running.wait()
    words = f"all follow, the latest {max(late):.1f} s late"
    return Row(f"{N_VIEWERS} viewers of one training", f"{MOST_LATE_S} s", words, max(late) <= MOST_LATE_S)


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
