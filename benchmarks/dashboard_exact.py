"""Whether the dashboard shows exact figures at every zoom, and what a request costs the server.

Every maximum shown and every band under the pointer has to be exact; anything else is a miss. Figures of the
server are CPU milliseconds of the serving thread per request, so a busy machine hardly changes them.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import thread_time
from typing import Any

import numpy as np
from _dashboard_browser import Row, chromium, until
from vramscope.dashboard import create_app
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import totals
from vramscope.dashboard.data import Data
from vramscope.dashboard.server.security import Access

N_ZOOMS, N_PROBES, N_SCRUBS = 50, 200, 40
_HOVER_MS = 80
"""Longer than a pointer rests on a block until the page asks for its words."""
CPU_MS, WIRE_BYTES = 100, 250_000
DRAWN = "window.vramscope?.timeline.drawn('allocated')"
PLOT = """() => { const figure = document.querySelector('.track'), box = figure.getBoundingClientRect();
  const { left, top, width, height } = window.vramscope.timeline.boxOf(figure);
  return { x: box.left + left, y: box.top + top, width, height } }"""
LOOK = "edges => window.vramscope.timeline.look(...edges)"


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
        """Return the value of an expression once it is true."""
        return until(self.page, expression, arg)

    def open(self, path: str, query: str = "") -> None:
        """Open a page of the run."""
        self.page.goto(f"{self.base}{path}?run={self.run}{query}")


def rows(file: Path) -> Iterator[Row]:
    """Measure one file, with the server in this process."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = create_app(file, Access(token=None))
    meter = Meter()
    meter.watch(app.server)
    server = make_server("127.0.0.1", 0, app.server, threaded=True)
    Thread(target=server.serve_forever, daemon=True).start()
    data = Data(file)
    run = next(iter(data.runs.paths()))
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(120_000)
        visit = Visit(page, f"http://127.0.0.1:{server.server_port}", run)
        for measure in (_zooms, _bands, _scrubs):
            for row in measure(visit, meter, data):
                yield row._replace(what=f"{file.stem}: {row.what}")
    server.shutdown()


def _views(first: float, last: float, n: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(7)
    width = (last - first) * 10.0 ** -rng.uniform(0, 4, n)
    start = rng.uniform(first, last - width)
    begins = np.minimum(start, last - 4).astype(int).tolist()
    ends = np.maximum(start + width, np.array(begins) + 4).astype(int).tolist()
    return list(zip(begins, ends, strict=True))


def _zooms(visit: Visit, meter: Meter, data: Data) -> list[Row]:
    visit.open("/overview", "&axis=events")
    visit.until(f"{DRAWN}?.isFine")
    visit.page.wait_for_timeout(3000)
    meter.forget()
    view = data.view(Address(run=visit.run))
    allocated = totals(data, view).allocated_bytes
    exact = 0
    for start, end in _views(0, len(allocated) - 1, N_ZOOMS):
        visit.page.evaluate(_ANSWERED, [start, end])
        shown = visit.page.evaluate(DRAWN)
        exact += max(shown["y"]) == int(allocated[start : end + 1].max())
    return [
        Row("shown maximum is the exact one", f"{N_ZOOMS} zooms", f"{exact} zooms", exact == N_ZOOMS),
        _cost("timeline zoom, CPU of the server", meter, "/api/timeline"),
    ]


_ANSWERED = """async ([a, b]) => {
  const T = window.vramscope.timeline;
  T.look(a, b);
  for (;;) {
    const d = T.drawn('allocated');
    if (d.a === a && d.b === b && d.isFine) return;
    await new Promise((next) => setTimeout(next, 2));
  }
}"""


def _cost(what: str, meter: Meter, path: str) -> Row:
    median, p95, n_bytes = meter.worst(path)
    text = f"{median:.0f} ms median, {p95:.0f} ms p95, at most {n_bytes / 1e3:.0f} kB"
    if path not in meter.cpu_ms:
        return Row(what, f"{CPU_MS} ms", "was never requested", False)
    budget = f"{CPU_MS} ms, {WIRE_BYTES // 1000} kB"
    return Row(what, budget, text, p95 <= CPU_MS and n_bytes <= WIRE_BYTES)


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
        visit.page.evaluate(LOOK, [start, end])
        visit.until(_PAINTED, [start, end])
        for _ in range(N_PROBES // N_ZOOMS):
            tried += 1
            right += _probe(visit, found, rng)
    return [
        Row("band under the pointer", f"{tried} probes", f"{right} right", right == tried),
        _cost("allocations zoom, CPU of the server", meter, "/api/active"),
        _cost("allocations hover, CPU of the server", meter, "/api/alloc"),
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
    box = visit.page.evaluate(PLOT)
    visit.page.mouse.move(box["x"] + at[0] * box["width"], box["y"] + at[1] * box["height"])
    visit.page.wait_for_timeout(_HOVER_MS)
    row, instant, byte, cut = visit.page.evaluate(_AT, at)
    live = np.flatnonzero(found.allocated_at(instant) & (found.block_size >= cut))
    tops = np.cumsum(found.block_size[live])
    place = int(np.searchsorted(tops, byte, side="right"))
    if byte < 0 or place >= len(live):
        return bool(row < 0)
    return bool(row == live[place])


def _scrubs(visit: Visit, meter: Meter, _: Data) -> list[Row]:
    visit.open("/fragmentation")
    for _ in range(400):
        if visit.page.query_selector("#fr-map-frame, .state"):
            break
        visit.page.wait_for_timeout(50)
    if visit.page.query_selector(".state"):
        return [Row("segments scrub", "", "no segments in this file")]
    visit.until("window.vramscope.rasterOf('fr-map') ? 1 : 0")
    meter.forget()
    slide = """v => { const s = document.getElementById('fr-scrub'); s.value = v;
        s.dispatchEvent(new Event('input', { bubbles: true })); return 1 }"""
    for value in np.random.default_rng(3).integers(0, 1001, N_SCRUBS).tolist():
        visit.page.evaluate(slide, value)
        visit.page.wait_for_timeout(120)
    return [_cost("segments scrub, CPU of the server", meter, "/api/segments")]
