"""Measure the dashboard as a user sees it, in Debian's Chromium: paint, every interaction, traffic and heap.

Traces come from ``generate.py``, and a real file of several devices from beside the repository if it exists.
Server figures are CPU milliseconds of the serving thread per request. Of the browser's wall times only the
first paint is judged, with a generous budget: machines are noisy. Every maximum shown and every band under
the pointer has to be exact; anything else counts as a miss.

    python benchmarks/dashboard.py --events 1000000,5000000 --out RESULTS.md
"""

import argparse
import logging
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import monotonic, thread_time
from typing import Any, NamedTuple

import numpy as np
from vramscope.dashboard import create_app
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data
from vramscope.dashboard.queries.answers import totals
from vramscope.dashboard.server.security import Access

CHROMIUM = "/usr/bin/chromium"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
N_ZOOMS, N_PROBES, N_SCRUBS = 50, 200, 40
PAINT_MS, CPU_MS, WIRE_BYTES, HEAP_MB = 2000, 100, 250_000, 300
SNAPSHOTS = Path(__file__).parents[2] / "shared" / "snapshots"
REAL = ("snap_t210_compiled_ce_8dev.pickle", "snap_t211_train_22k.pickle")
"""A file of eight devices, one of which was used; and the longest file of one device."""
PLOT = "document.querySelector('#{}-graph .js-plotly-plot')"


class Row(NamedTuple):
    """A row of the result table."""

    what: str
    result: str
    budget: str
    is_met: bool | None = None
    """Whether the promise is kept; None if nothing is promised."""

    def line(self, trace: str) -> str:
        verdict = {True: "pass", False: "**MISS**", None: ""}[self.is_met]
        return f"| {trace} | {self.what} | {self.result} | {self.budget} | {verdict} |"


@dataclass
class Meter:
    """CPU and bytes of every request, by path."""

    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    n_bytes: dict[str, list[int]] = field(default_factory=dict)

    def watch(self, server: Any) -> None:
        """Measure requests of a Flask app that serves one at a time."""
        inner = server.wsgi_app

        def app(environ: dict[str, Any], start: Any) -> Any:
            began = thread_time()
            answer = list(inner(environ, start))
            path = environ["PATH_INFO"]
            self.cpu_ms.setdefault(path, []).append(1000 * (thread_time() - began))
            self.n_bytes.setdefault(path, []).append(sum(map(len, answer)))
            return answer

        server.wsgi_app = app

    def forget(self) -> None:
        """Start the measurement again."""
        self.cpu_ms.clear()
        self.n_bytes.clear()

    def worst(self, path: str) -> tuple[float, float, int]:
        """Return CPU ms (median, 95th percentile) and the largest response in bytes."""
        cpu = self.cpu_ms.get(path, [0.0])
        return float(np.median(cpu)), float(np.percentile(cpu, 95)), max(self.n_bytes.get(path, [0]))


class Visit:
    """A browser that shows one run."""

    def __init__(self, page: Any, base: str, run: str) -> None:
        self.page, self.base, self.run = page, base, run

    def until(self, expression: str, arg: Any = None) -> Any:
        """Wait until the expression is true; the page's policy forbids the eval of wait_for_function."""
        for _ in range(1200):
            found = self.page.evaluate(expression, arg)
            if found:
                return found
            self.page.wait_for_timeout(25)
        raise AssertionError(f"never true: {expression}")

    def open(self, path: str, query: str = "") -> None:
        """Open a page of the run."""
        self.page.goto(f"{self.base}{path}?run={self.run}{query}")

    def heap_mb(self) -> float:
        """Return the size of JavaScript's heap after a collection."""
        client = self.page.context.new_cdp_session(self.page)
        client.send("HeapProfiler.collectGarbage")
        return float(client.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", default="1000000,5000000")
    real = [file for name in REAL if (file := SNAPSHOTS / name).exists()]
    parser.add_argument("--files", nargs="*", type=Path, default=real, help="measure these files too")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = ["| trace | what | result | budget | |", "| --- | --- | --- | --- | --- |"]
    began = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        files = [_generated(Path(folder), int(n)) for n in args.events.split(",") if n]
        for file in [*files, *args.files]:
            for row in measure(file):
                lines.append(row.line(file.stem))
                print(lines[-1], flush=True)
    print(f"{monotonic() - began:.0f} s in all")
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


def _generated(folder: Path, n_events: int) -> Path:
    path = folder / f"generated-{n_events // 1000}k" / f"{n_events}.pickle"
    path.parent.mkdir()
    command = [
        sys.executable,
        str(Path(__file__).with_name("generate.py")),
        "--events",
        str(n_events),
        str(path),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def measure(file: Path) -> list[Row]:
    """Return the rows of the result table for one file."""
    from playwright.sync_api import sync_playwright
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = create_app(file, Access(token=None))
    meter = Meter()
    meter.watch(app.server)
    server = make_server("127.0.0.1", 0, app.server, threaded=True)
    Thread(target=server.serve_forever, daemon=True).start()
    data = Data(file)
    run = next(iter(data.paths()))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(120_000)
        visit = Visit(page, f"http://127.0.0.1:{server.server_port}", run)
        rows = [*_first(visit, meter), *_zooms(visit, meter, data), *_bands(visit, meter, data)]
        rows += _scrubs(visit, meter)
        heap = visit.heap_mb()
        rows.append(Row("browser heap", f"{heap:.0f} MB", f"{HEAP_MB} MB", heap <= HEAP_MB))
        browser.close()
    server.shutdown()
    return rows


def _paint_ms(visit: Visit) -> float:
    entry = "performance.getEntriesByName('first-contentful-paint')[0]"
    return float(visit.until(f"{entry} ? {entry}.startTime : 0"))


def _first(visit: Visit, meter: Meter) -> list[Row]:
    drawn = "performance.mark('drawn') && performance.getEntriesByName('drawn')[0].startTime"
    line = PLOT.format("ov") + "?._fullData?.find(t => t.uid === 'allocated')?.x?.length"
    rows = []
    for words in ("file not read yet", "file read"):
        visit.open("/overview")
        visit.until(line)
        chart = float(visit.page.evaluate(drawn))
        paint = _paint_ms(visit)
        rows.append(Row(f"first paint, {words}", f"{paint:.0f} ms", f"{PAINT_MS} ms", paint <= PAINT_MS))
        rows.append(Row(f"first chart, {words}", f"{chart:.0f} ms (wall)", "–"))
    meter.forget()
    return rows


def _views(first: float, last: float, n: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(7)
    width = (last - first) * 10.0 ** -rng.uniform(0, 4, n)
    start = rng.uniform(first, last - width)
    begins = np.minimum(start, last - 2).astype(int).tolist()
    ends = np.maximum(start + width, np.array(begins) + 2).astype(int).tolist()
    return list(zip(begins, ends, strict=True))


def _zooms(visit: Visit, meter: Meter, data: Data) -> list[Row]:
    visit.open("/overview", "&axis=events")
    gd = PLOT.format("ov")
    visit.until(f"{gd}?._fullData?.length")
    visit.page.wait_for_timeout(3000)
    meter.forget()
    view = data.view(Address(run=visit.run))
    allocated = totals(data, view).allocated_bytes
    exact = 0
    for start, end in _views(0, len(allocated) - 1, N_ZOOMS):
        keys = {"xaxis.range[0]": start, "xaxis.range[1]": end}
        visit.page.evaluate(f"keys => Plotly.relayout({gd}, keys)", keys)
        ends = "([a, b]) => { const t = " + gd + "._fullData.find(t => t.uid === 'allocated');"
        ends += " return t.x[0] === a && t.x[t.x.length - 1] === b }"
        visit.until(ends, [start, end])
        shown = visit.page.evaluate(f"Math.max(...{gd}._fullData.find(t => t.uid === 'allocated').y)")
        unit = visit.page.evaluate(f"{gd}._fullData.find(t => t.uid === 'allocated').meta")
        exact += round(shown * 2 ** {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[unit]) == int(
            allocated[start : end + 1].max()
        )
    return [
        Row("shown maximum is the exact one", f"{exact} of {N_ZOOMS} zooms", f"{N_ZOOMS}", exact == N_ZOOMS),
        _cost("overview zoom", meter, "/_dash-update-component"),
    ]


def _cost(what: str, meter: Meter, path: str) -> Row:
    median, p95, n_bytes = meter.worst(path)
    text = f"{median:.0f} ms median, {p95:.0f} ms p95, at most {n_bytes / 1e3:.0f} kB"
    budget = f"{CPU_MS} ms, {WIRE_BYTES // 1000} kB"
    return Row(what, text, budget, p95 <= CPU_MS and n_bytes <= WIRE_BYTES)


def _bands(visit: Visit, meter: Meter, data: Data) -> list[Row]:
    """Zoom into the allocations, and compare the id at random pixels with a count of live blocks."""
    visit.open("/allocations", "&axis=events")
    ready = "window.vramscope.rasterOf('al-graph') ? 1 : 0"
    visit.until(ready)
    meter.forget()
    found = data.ask(data.view(Address(run=visit.run)), "lifetimes")
    last = len(totals(data, data.view(Address(run=visit.run))).allocated_bytes) - 1
    rng = np.random.default_rng(11)
    right = tried = 0
    for start, end in _views(0, last, N_ZOOMS):
        keys = {"xaxis.range[0]": start, "xaxis.range[1]": end}
        visit.page.evaluate(f"keys => Plotly.relayout({PLOT.format('al')}, keys)", keys)
        visit.until(_PAINTED, [start, end])
        for _ in range(N_PROBES // N_ZOOMS):
            tried += 1
            right += _probe(visit, found, rng)
    return [
        Row("band under the pointer", f"{right} of {tried} probes right", f"{N_PROBES}", right == N_PROBES),
        _cost("allocations zoom", meter, "/api/active"),
        _cost("allocations hover", meter, "/api/alloc"),
    ]


_PAINTED = """([a, b]) => {
  const raster = window.vramscope.rasterOf('al-graph');
  return raster && !raster.asked && raster.box.a === a && raster.box.b === b;
}"""
_AT = """([u, v]) => {
  const raster = window.vramscope.rasterOf('al-graph'), { w, h } = raster.data;
  const column = Math.floor(u * w), row = Math.floor(v * h);
  const found = window.vramscope.pixelOf(raster.data, column, row);
  const byte = raster.box.lo + (h - row - 0.5) * (raster.box.hi - raster.box.lo) / h;
  return [found.id, found.instant, byte, raster.data.cut];
}"""


def _probe(visit: Visit, found: Any, rng: Any) -> bool:
    at = rng.random(2).tolist()
    box = visit.page.locator('#al-graph .nsewdrag[data-subplot="xy"]').bounding_box()
    visit.page.mouse.move(box["x"] + at[0] * box["width"], box["y"] + at[1] * box["height"])
    row, instant, byte, cut = visit.page.evaluate(_AT, at)
    live = np.flatnonzero(found.allocated_at(instant) & (found.block_size >= cut))
    tops = np.cumsum(found.block_size[live])
    place = int(np.searchsorted(tops, byte, side="right"))
    if byte < 0 or place >= len(live):
        return bool(row < 0)
    return bool(row == live[place])


def _scrubs(visit: Visit, meter: Meter) -> list[Row]:
    visit.open("/fragmentation")
    for _ in range(400):
        if visit.page.query_selector("#fr-map-frame, .state"):
            break
        visit.page.wait_for_timeout(50)
    if visit.page.query_selector(".state"):
        return [Row("segments scrub", "no segments in this file", "–")]
    visit.until("window.vramscope.rasterOf('fr-map') ? 1 : 0")
    meter.forget()
    slide = """v => { const s = document.getElementById('fr-scrub'); s.value = v;
        s.dispatchEvent(new Event('input', { bubbles: true })); return 1 }"""
    for value in np.random.default_rng(3).integers(0, 1001, N_SCRUBS).tolist():
        visit.page.evaluate(slide, value)
        visit.page.wait_for_timeout(120)
    return [_cost("segments scrub", meter, "/api/segments")]


if __name__ == "__main__":
    main()
