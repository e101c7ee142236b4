"""What every page of the dashboard says when something is gone, how soon, and whether it goes on by itself.

Each page is open in Debian's Chromium while its server is killed and started again at the same port, stopped
and continued, while the network is off and on, while the run is moved away and back, and while its events are
overwritten: a change that the banner keeps until somebody loads the page again. The time is from the
failure to the banner, and from the repair to a page without one that answers again.

    python benchmarks/dashboard_failures.py
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from _dashboard_browser import HEAD, Row, chromium, load
from vramscope.dashboard.pages import pages
from vramscope.dashboard.runs import run_id

SAMPLES = Path(__file__).parents[1] / "sample_traces"
MOST_S = 3.0
PATIENCE_S = 20.0
BANNER = "#connection, .banner"


class Place:
    """A server of one run at a fixed port, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "runs" / "gan"
        shutil.copytree(SAMPLES / "gan-retain-graph", self.run)
        shutil.copytree(SAMPLES / "transformer", folder / "runs" / "transformer")
        self._away = folder / "away"
        self._cache = folder / "cache"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    @property
    def base(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server; returns once it listens."""
        command = [sys.executable, "-m", "vramscope", "serve", str(self.run.parent), "--no-token"]
        own_cache = os.environ | {"VRAMSCOPE_CACHE": str(self._cache)}
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], text=True, stdout=subprocess.PIPE, env=own_cache
        )
        assert self.process.stdout is not None
        next(line for line in self.process.stdout if re.search(r"http://\S+", line))

    def kill(self) -> None:
        """Kill the server, as a machine that is short of memory does."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Stop the server: connections stay open and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue the server."""
        self.process.send_signal(signal.SIGCONT)

    def delete(self) -> None:
        """Move the run away."""
        shutil.move(self.run, self._away)

    def restore(self) -> None:
        """Move the run back."""
        shutil.move(self._away, self.run)

    def damage(self) -> None:
        """Overwrite the middle of the events with other bytes, and change the time of the file."""
        events = next(self.run.rglob("events-0.arrows"))
        self._events = events.read_bytes()
        half = len(self._events) // 2
        events.write_bytes(self._events[:half] + b"\xff" * 4096 + self._events[half + 4096 :])

    def mend(self) -> None:
        """Write the events as they were."""
        next(self.run.rglob("events-0.arrows")).write_bytes(self._events)


@contextmanager
def _served() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        try:
            yield place
        finally:
            place.process.kill()
            place.process.wait()


def rows() -> Iterator[Row]:
    """One row for each failure: the slowest of all pages."""
    with _served() as place, chromium() as browser:
        page = browser.new_page()
        failures: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "the server is killed, and started again": (place.kill, place.start),
            "the server is stopped, and goes on": (place.pause, place.go_on),
            "the network is off, and on": (
                lambda: page.context.set_offline(True),
                lambda: page.context.set_offline(False),
            ),
            "the run is moved away, and back": (place.delete, place.restore),
            "the run is damaged, and mended and loaded again": (
                place.damage,
                lambda: (place.mend(), page.reload()),
            ),
        }
        for name, (fail, repair) in failures.items():
            yield _row(name, [_tried(page, place, of, fail, repair) for of in _paths(name)])


def _paths(failure: str) -> list[str]:
    """Return the pages; the list of runs has no banner for a run, as it leaves the list."""
    every = [page.path for page in pages()]
    return [path for path in every if path != "/"] if failure.startswith("the run") else every


def _row(name: str, found: list[tuple[str, float, float]]) -> Row:
    said, back = max(found, key=lambda each: each[1]), max(found, key=lambda each: each[2])
    measured = (
        f"said after {said[1]:.1f} s at most ({said[0]}), goes on after {back[2]:.1f} s at most ({back[0]}), "
        f"{len(found)} pages"
    )
    return Row(name, f"{MOST_S:.0f} s", measured, said[1] <= MOST_S and back[2] < PATIENCE_S)


def _tried(
    page: Any, place: Place, path: str, fail: Callable[[], object], repair: Callable[[], object]
) -> tuple[str, float, float]:
    """Return the page, and the seconds until it says so and until it goes on; PATIENCE_S for never."""
    _go_to(page, f"{place.base}{path}?run={run_id(place.run)}")
    page.wait_for_selector("#menu a.here")
    page.wait_for_selector("main :is(section, table)")
    sleep(1)
    fail()
    said_s = _until(page, f"Boolean(document.querySelector('{BANNER}'))")
    repair()
    gone = (
        f"!document.querySelector('{BANNER}') && Boolean(document.querySelector('main :is(section, table)'))"
    )
    return path, said_s, _until(page, gone)


def _go_to(page: Any, url: str, n_tries: int = 5) -> None:
    """Open a page; the one before it may just load itself again, as the server is another one."""
    try:
        page.goto(url)
    except Exception as error:
        if "interrupted by another navigation" not in str(error) or n_tries == 1:
            raise
        page.wait_for_load_state()
        _go_to(page, url, n_tries - 1)


def _until(page: Any, expression: str) -> float:
    """Return the seconds until an expression is true in the page."""
    began_s = monotonic()
    while monotonic() - began_s < PATIENCE_S:
        try:
            if page.evaluate(expression):
                return monotonic() - began_s
        except Exception as error:
            if "context was destroyed" not in str(error):  # while the page is loaded again
                raise
        sleep(0.05)
    return PATIENCE_S


def main() -> None:
    """Print the table."""
    print(f"At the start: {load()}.", "", HEAD, sep="\n", flush=True)
    for row in rows():
        print(row.line(), flush=True)


if __name__ == "__main__":
    main()
