"""The browser, the server and the table that the benchmarks of the dashboard share."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import PAGESIZE, mmap
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
PATIENCE_S = 120.0
FRESH_BYTES = 256 << 20
HEAD = "| what | target | measured | holds |\n| --- | --- | --- | --- |"


class Row(NamedTuple):
    """A row of the table."""

    what: str
    target: str
    measured: str
    holds: bool | None = None
    """Whether the target is met; None where there is none."""

    def line(self) -> str:
        """Return the row as Markdown."""
        holds = {True: "yes", False: "**no**", None: ""}[self.holds]
        cells = (each.replace("|", "\\|") for each in (self.what, self.target, self.measured, holds))
        return f"| {' | '.join(cells)} |"


class Server(NamedTuple):
    """A dashboard in a process of its own, as users start it."""

    url: str
    """The page that it names when it starts."""
    base: str
    pid: int


@contextmanager
def serving(path: Path, cache: Path) -> Iterator[Server]:
    """Serve *path* until the end of the block; converted files are kept in *cache*."""
    command = [sys.executable, "-m", "vramscope", "serve", str(path), "--no-token", "--port", "0"]
    own_cache = os.environ | {"VRAMSCOPE_CACHE": str(cache)}
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env=own_cache)
    try:
        assert process.stdout is not None
        url = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        yield Server(url, re.match(r"http://[^/]+", url)[0], process.pid)  # type: ignore[index]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Debian's Chromium without a GPU."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


def until(page: Any, expression: str, arg: Any = None) -> Any:
    """Return the value of an expression in the page once it is true."""
    # The policy of the page forbids the eval of wait_for_function.
    last_s = monotonic() + PATIENCE_S
    while not (found := page.evaluate(expression, arg)):
        if monotonic() > last_s:
            raise AssertionError(f"never true: {expression}")
        # The page has the times. Asked 40 times a second, it took a tenth of a core from what is measured.
        sleep(0.1)
    return found


def load() -> str:
    """Return the load and the speed of the machine, beside which a wall time has to be read."""
    cores = f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
    began_s = monotonic()
    for _ in range(10_000_000):
        pass
    looped_s = monotonic()
    with mmap(-1, FRESH_BYTES) as fresh:
        for at in range(0, FRESH_BYTES, PAGESIZE):
            fresh[at] = 1
    touched_s = monotonic()
    return (
        f"{cores}; 10 million turns of an empty loop in {looped_s - began_s:.2f} s, "
        f"256 MiB of fresh memory in {touched_s - looped_s:.2f} s"
    )
