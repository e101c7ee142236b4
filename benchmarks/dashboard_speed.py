"""Thirty zooms, pans and scrubs on every page of a run, and its first visit, in Debian's Chromium.

The server is a process of its own, as ``vramscope serve`` starts it. Input is that of a mouse and a keyboard.
Two times follow each: to the first frame in which the timeline differs, and to the frame after the last reply
of the server. All are times of the wall, so the load of the machine stands beside them.

A wheel of DevTools reaches the page only after a frame that DevTools waits for: on an empty page what a wheel
changes is shown 34 ms (p95) after the event's own time, what a key changes after 17 ms. So the first frame of
a wheel is counted from the frame before it, 21 ms on an empty page, and from its own time in brackets.
Replies are counted from the event's own time to the second frame after the page has read the last of them.

MemoryViz, the viewer behind pytorch.org/memory_viz, pans the same file where ``VRAMSCOPE_MEMORY_VIZ`` names
its script, ``torch/utils/viz/MemoryViz.js`` of PyTorch's sources, and d3 is here (``make d3``).

    python benchmarks/dashboard_speed.py FILE.pickle
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np
from _dashboard_browser import HEAD, PATIENCE_S, Row, Server, chromium, load, serving, until
from vramscope.dashboard.runs import run_id

N_MOVES = 30
N_UNREAD = 5
_PIECE_BYTES = 8 << 20
FRAME_MS, REPLY_MS, CHART_MS, UNREAD_CHART_MS = 50, 130, 1000, 5000
WIRE_BYTES, HEAP_BYTES, FRAMES_PER_S = 2_500_000, 150_000_000, 50
N_FRAMES = 150
D3 = Path(__file__).parents[1] / ".cache" / "d3" / "package" / "dist" / "d3.min.js"
WATCH = Path(__file__).with_name("_dashboard_watch.js")
PAGES = (
    "overview", "phases", "allocations", "peak", "fragmentation", "leaks", "oom", "fit", "waterfall",
    "compare",
)  # fmt: skip


class Move(NamedTuple):
    """Milliseconds from an input to another frame, and to the frame with the last reply; 0 for none."""

    frame_ms: float
    stamped_frame_ms: float
    """The same frame, from the time that the event itself has."""
    reply_ms: float


class Visitor:
    """A browser window at the pages of one run."""

    def __init__(self, browser: Any, server: Server, run: str, other: str) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 860})
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self.page.add_init_script(path=WATCH)
        self.server, self.run, self.other = server, run, other
        self.client = self.page.context.new_cdp_session(self.page)

    def open(self, name: str) -> float:
        """Open a page, and return the milliseconds until its chart is there."""
        other = f"&other={self.other}" if name == "compare" else ""
        self.page.goto(f"{self.server.base}/{name}?run={self.run}{other}")
        return float(until(self.page, "window.bench.chart"))

    def settle(self) -> Move:
        """Wait until every reply has been shown for 0.3 s, and return the times since the input."""
        return Move(*self.page.evaluate("window.bench.settled()"))

    def heap_bytes(self) -> int:
        """Return what JavaScript holds after a collection, with the memory of its typed arrays."""
        self.client.send("HeapProfiler.collectGarbage")
        use = self.client.send("Runtime.getHeapUsage")
        return int(
            sum(use.get(name, 0) for name in ("usedSize", "embedderHeapUsedSize", "backingStorageSize"))
        )


def rows(file: Path, n_moves: int = N_MOVES) -> Iterator[Row]:
    """Measure a snapshot that has never been read, then the same from the cache.

    Parameters
    ----------
    file
        A pickle of torch's ``_dump_snapshot``; a link beside it serves as the other run of Compare.
    n_moves
        Moves on each page.
    """
    size = file.stem
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        root.mkdir()
        for name in ("one", "two"):
            os.link(file, root / f"{name}.pickle")
        one, two = (run_id(root / f"{name}.pickle") for name in ("one", "two"))
        caches = [Path(folder) / f"cache{i}" for i in range(N_UNREAD)]
        yield from _unread([_first_visit(root / "one.pickle", cache, one) for cache in caches], size)
        with chromium() as browser, serving(root, caches[-1]) as server:
            visitor = Visitor(browser, server, one, two)
            yield from _wire(browser, server, one, size)
            yield from _charts(visitor, size)
            yield from _moves(visitor, size, n_moves)
            heap = visitor.heap_bytes()
            yield Row(
                f"{size}: memory of the page after all this",
                "150 MB",
                f"{heap / 1e6:.0f} MB",
                heap <= HEAP_BYTES,
            )
            yield from _panned(visitor, browser, file, size)


class FirstVisit(NamedTuple):
    """Milliseconds until what the first visitor of a file sees."""

    paint: float
    chart: float


def _first_visit(file: Path, cache: Path, run: str) -> FirstVisit:
    """Visit a file that was never opened, in a browser that was just started; its conversion is cached then.

    The system has the file in memory, as one that was just written or copied: the disk is not measured.
    """
    with file.open("rb") as content:
        while content.read(_PIECE_BYTES):
            pass
    with chromium() as browser, serving(file, cache) as server:
        visitor = Visitor(browser, server, run, "")
        chart = visitor.open("overview")
        paint = visitor.page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
        )
        visitor.settle()
        _until_cached(cache)
        return FirstVisit(paint, chart)


def _unread(visits: list[FirstVisit], size: str) -> Iterator[Row]:
    name = f"{size}, not read yet"
    paint, chart = (sorted(times) for times in zip(*visits, strict=True))
    yield Row(f"{name}: first paint, which is no chart", "", _middle(paint))
    yield Row(f"{name}: chart", f"{UNREAD_CHART_MS} ms", _middle(chart), chart[-1] <= UNREAD_CHART_MS)


def _middle(times: list[float]) -> str:
    return f"{times[len(times) // 2]:.0f} ms ({times[0]:.0f} to {times[-1]:.0f} in {len(times)} visits)"


def _until_cached(cache: Path) -> None:
    """Wait for the conversion, which the server caches after the first chart; it ends soon after that."""
    last_s = monotonic() + 30
    while not [*cache.glob("*.mapped")] and monotonic() < last_s:
        sleep(0.1)


def _wire(browser: Any, server: Server, run: str, size: str) -> Iterator[Row]:
    """Load the overview into a browser without a cache, and add up what came over the wire."""
    cold, received = Visitor(browser, server, run, ""), list[float]()
    cold.client.send("Network.enable")
    cold.client.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    chart = cold.open("overview")
    cold.settle()
    cold.page.close()
    n_bytes = sum(received)
    yield Row(
        f"{size}: cold load",
        "2.5 MB",
        f"{n_bytes / 1e6:.2f} MB, chart after {chart:.0f} ms",
        n_bytes <= WIRE_BYTES,
    )


def _charts(visitor: Visitor, size: str) -> Iterator[Row]:
    visitor.open("overview")
    visitor.settle()
    for name in PAGES:
        first = visitor.open(name)
        visitor.settle()
        again = visitor.open(name)
        visitor.settle()
        measured = f"{first:.0f} ms, at the second visit {again:.0f} ms"
        yield Row(f"{size}: first chart of {name}", f"{CHART_MS} ms", measured, first <= CHART_MS)


def _moves(visitor: Visitor, size: str, n_moves: int) -> Iterator[Row]:
    for name in PAGES:
        visitor.open(name)
        visitor.settle()
        if not visitor.page.query_selector(".track[data-ready]"):
            continue
        rng, moves = np.random.default_rng(18), list[tuple[str, Move]]()
        visitor.page.evaluate("window.bench.middle()")
        visitor.settle()
        kinds = np.resize(["zoom", "pan", "scrub"], n_moves)
        for kind in rng.permutation(kinds).tolist():
            visitor.page.evaluate("window.bench.arm()")
            _input(visitor.page, kind, rng)
            moves.append((kind, visitor.settle()))
        moved = [move for _, move in moves if move.frame_ms]
        replies = {
            kind: [move.reply_ms for of, move in moves if of == kind and move.reply_ms] for kind in kinds
        }
        frame, stamped = _p95([one.frame_ms for one in moved]), _p95([one.stamped_frame_ms for one in moved])
        reply = _p95([reply for found in replies.values() for reply in found])
        each = ", ".join(f"{kind} {_p95(found):.0f}" for kind, found in sorted(replies.items()))
        label = f"{size}: {n_moves} moves on {name}"
        yield Row(
            f"{label}, first frame",
            f"p95 {FRAME_MS} ms",
            f"{frame:.0f} ms ({len(moved)} moved; by the time of the event {stamped:.0f} ms)",
            frame <= FRAME_MS,
        )
        yield Row(
            f"{label}, the server's reply",
            f"p95 {REPLY_MS} ms",
            f"{reply:.0f} ms ({each})",
            reply <= REPLY_MS,
        )


def _input(page: Any, kind: str, rng: np.random.Generator) -> None:
    """Do one move with the mouse or the keyboard at a random place of the timeline."""
    box, at = page.evaluate("window.bench.plot()"), rng.random(2)
    x, y = box["x"] + (0.1 + 0.8 * at[0]) * box["width"], box["y"] + (0.2 + 0.6 * at[1]) * box["height"]
    if kind == "scrub":
        slider = "#fr-scrub" if page.query_selector("#fr-scrub") else ".track"
        page.focus(slider)
        page.keyboard.press("ArrowRight" if rng.random() < 0.5 else "ArrowLeft")
        return
    page.mouse.move(x, y)
    if kind == "zoom":
        page.mouse.wheel(0, float(rng.choice([-1, 1]) * rng.uniform(40, 240)))
        return
    page.mouse.down()
    page.mouse.move(x + float(rng.choice([-1, 1]) * rng.uniform(40, 200)), y)
    page.mouse.up()


def _p95(values: list[float]) -> float:
    return float(np.percentile(values, 95)) if values else 0.0


def _panned(visitor: Visitor, browser: Any, file: Path, size: str) -> Iterator[Row]:
    visitor.open("overview")
    visitor.page.evaluate("window.bench.middle()")
    visitor.settle()
    ours = visitor.page.evaluate("window.bench.panned", N_FRAMES)
    visitor.page.close()
    peer = _memory_viz(browser, file)
    yield Row(
        f"{size}: panning", f"{FRAMES_PER_S} frames/s", f"{ours:.0f} frames/s, {peer}", ours >= FRAMES_PER_S
    )


def _memory_viz(browser: Any, file: Path) -> str:
    """Return the frames a second of MemoryViz on the same file, or why it is not measured."""
    script = os.environ.get("VRAMSCOPE_MEMORY_VIZ", "")
    if not script or not D3.exists():
        return "MemoryViz is not here"
    context = browser.new_context(viewport={"width": 1280, "height": 860}, offline=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    page.add_script_tag(content=WATCH.read_text())
    page.add_script_tag(content=D3.read_text())
    module = f"export const {{{','.join(page.evaluate('Object.keys(d3)'))}}} = globalThis.d3"
    headers = {"access-control-allow-origin": "*"}
    page.route(
        re.compile("^https://.*d3"),
        lambda route: route.fulfill(body=module, content_type="text/javascript", headers=headers),
    )
    page.add_script_tag(content=Path(script).read_text(), type="module")
    page.locator("input[type=file]").set_input_files(file)
    page.locator("polygon").first.wait_for(state="attached")
    frames = page.evaluate("window.bench.panned", N_FRAMES)
    context.close()
    return f"MemoryViz {frames:.0f}"


def main() -> None:
    print(load(), HEAD, sep="\n\n")
    for row in rows(Path(sys.argv[1]), *map(int, sys.argv[2:3])):
        print(row.line(), flush=True)
    print(load())


if __name__ == "__main__":
    main()
