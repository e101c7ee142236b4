"""Measure the page Ranks on 1,024 ranks of 1,000 steps: when what is seen, and the CPU time of each side.

    python benchmarks/ranks_page.py [--repeats N] [--job RANKSxSTEPS] [--run DIRECTORY] [--out FILE]

A cold visit is one to a server that has just started, by a browser without a cache; a warm one is a reload of
it. The server is a process of its own, as ``vramscope serve`` starts it, and its CPU time is what the kernel
counted for it, with its imports for a cold visit. Wall times depend on what else the machine does.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _dashboard_browser import chromium

from vramscope.model.device import Device, Process
from vramscope.model.rank_summary import DeviceSummary, LineBytes, PeakPlace, RankSummary, StepRows
from vramscope.model.recording import Outcome
from vramscope.model.stacks import Frame
from vramscope.store import manifest as manifests
from vramscope.store.directory import MANIFEST
from vramscope.store.manifest import Manifest
from vramscope.store.summaries import SUMMARY_FILE, StoredSummary, write_summary

GIB, MIB = 1 << 30, 1 << 20
STAGES = 4
PAINT_MS, WIRE_BYTES = 2000, 250_000
N_ZOOMS = 20
PLOT = "document.querySelector('.rank-map .js-plotly-plot')"
SEEN = {
    "first paint": "performance.getEntriesByName('first-contentful-paint').length",
    "claim": "document.querySelector('#rk-content .claim')",
    "map": "document.querySelector('.rank-map .heatmaplayer image')",
}
"""What is waited for, in JavaScript."""
_WANTED = ", ".join(f"'{name}': () => {found}" for name, found in SEEN.items())
_WATCH = f"""(() => {{
  const seen = window.benchSeen = {{}};
  const wanted = {{{_WANTED}}};
  const look = () => {{
    for (const [name, is] of Object.entries(wanted))
      if (!(name in seen) && is()) seen[name] = performance.now();
    if (Object.keys(seen).length < {len(SEEN)}) requestAnimationFrame(look);
  }};
  requestAnimationFrame(look);
}})()"""


def job(run: Path, n_ranks: int, n_steps: int) -> None:
    """Write the summaries of a job of four stages: a rank is missing, one died, one leaks, one holds more."""
    random = np.random.default_rng(1)
    for rank in range(n_ranks):
        if rank != n_ranks // 2 + 3:
            _rank(run, rank, n_ranks, n_steps, random)


def _rank(run: Path, rank: int, n_ranks: int, n_steps: int, random: np.random.Generator) -> None:
    stage = rank * STAGES // n_ranks
    base = (30 + 8 * stage) * GIB
    steps = np.arange(n_steps)
    peaks = base + (0.02 * base * np.abs(np.sin(steps / 37 + stage))).astype("i8")
    peaks += random.integers(0, 150, n_steps) * MIB
    peaks[0] = base // 2
    lines = [
        _line(11 * GIB, 400, "__init__", "block", 12, ""),
        _line((10 + 7 * stage) * GIB, 400, "step", "optim", 80, ""),
        _line((9 + stage) * GIB, 120, "forward", "block", 31, "linear"),
    ]
    retained = []
    if rank == 77 % n_ranks:
        peaks += 5 * GIB
        lines.append(_line(5 * GIB, 24, "pad", "data", 44, "pad_sequence"))
    if rank == n_ranks * 5 // 8:
        peaks += steps * 8 * MIB
        retained = [_line(8 * MIB * n_steps, n_steps, "log", "log", 4, "")]
    outcome, n_done = Outcome.FINISHED, n_steps
    if rank == n_ranks * 3 // 4 + 1:
        outcome, n_done = Outcome.DIED, n_steps * 2 // 3
    peaks = peaks[:n_done]
    most, lines = int(peaks.max()), sorted([*lines, *retained], key=lambda line: -line.n_bytes)
    process = Process(
        rank, n_ranks, f"node{rank // 8:03d}", 1000 + rank, local_rank=rank % 8, mesh={"pipeline": stage}
    )
    device = DeviceSummary(
        device=Device(rank % 8, "cuda", "a card", 141 * GIB, f"GPU-{rank}"),
        source="cuda",
        n_events=1_000_000,
        peak={name: PeakPlace(most + extra, int(peaks.argmax()), 10**18)
              for name, extra in (("allocated", 0), ("reserved", GIB))},
        lines=tuple(lines),
        other_bytes=max(most - sum(line.n_bytes for line in lines), 0),
        retained=tuple(retained),
        steps=StepRows.of(
            step=steps[:n_done], n_steps=np.ones(n_done), start_ns=10**18 + steps[:n_done] * 10**9,
            end_ns=10**18 + (steps[:n_done] + 1) * 10**9, allocated=peaks, reserved=peaks + GIB,
        ),
        findings=(),
    )  # fmt: skip
    ended_ns = 10**18 + n_done * 10**9
    directory = run / f"rank{rank}"
    directory.mkdir(parents=True)
    manifest = Manifest(
        source="cuda", process=process, devices=(device.device,), started_ns=10**18, outcome=outcome,
        ended_ns=ended_ns, id=f"{rank:032x}",
    )  # fmt: skip
    manifests.write(directory / MANIFEST, manifest, durable=False)
    summary = RankSummary(process, outcome, "", 10**18, ended_ns, (device,))
    write_summary(directory / SUMMARY_FILE, StoredSummary(summary, manifest.id))


def _line(n_bytes: int, n_blocks: int, function: str, file: str, number: int, via: str) -> LineBytes:
    frames = (Frame(function, f"/net/{file}.py", number), Frame("train", "/net/train.py", 60))
    return LineBytes(n_bytes, n_blocks, frames, via)


class Server:
    """A dashboard in a process of its own."""

    def __init__(self, run: Path, cache: Path) -> None:
        command = [sys.executable, "-m", "vramscope", "serve", str(run), "--no-token", "--port", "0"]
        environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r"http://\S+", line)
            if found:
                self.url = found[0]
                return
        raise SystemExit("the dashboard did not start")

    def cpu_s(self) -> float:
        """Return the CPU time of the process until now."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(timeout=30)


@dataclass
class Figures:
    """What is measured of one kind of visit, a value per visit."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, values: dict[str, float]) -> None:
        """Append one visit."""
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def rows(self, visit: str) -> Iterator[str]:
        """Return the rows of the table."""
        for name, found in self.values.items():
            middle = statistics.median(found)
            goal, verdict = "", ""
            if name in ("first paint ms", "map ms"):
                goal, verdict = f"{PAINT_MS:,}", "pass" if middle <= PAINT_MS else "**MISS**"
            if name == "largest move kB":
                goal = f"{WIRE_BYTES // 1000}"
                verdict = "pass" if max(found) <= WIRE_BYTES / 1000 else "**MISS**"
            spread = f"{min(found):,.0f} to {max(found):,.0f}"
            yield f"| {visit} | {name} | {middle:,.0f} | {spread} | {goal} | {verdict} |"


def visited(page: Any, url: str) -> dict[str, float]:
    """Open the page, wait until all is seen; return the milliseconds of each, and the browser's CPU time."""
    before = _browser_cpu_s(page)
    page.goto(url)
    for _ in range(4800):
        seen = page.evaluate("window.benchSeen || {}")
        if len(seen) == len(SEEN):
            break
        page.wait_for_timeout(25)
    else:
        raise AssertionError(f"only {seen} was seen")
    used_s = _browser_cpu_s(page) - before
    seen["first paint"] = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return {f"{name} ms": seen[name] for name in SEEN} | {"browser CPU ms": 1000 * used_s}


def _browser_cpu_s(page: Any) -> float:
    """Return the CPU time of all processes of the browser that has *page*."""
    client = page.context.browser.new_browser_cdp_session()
    known = client.send("SystemInfo.getProcessInfo")["processInfo"]
    client.detach()
    return float(sum(each["cpuTime"] for each in known))


def zooms(page: Any, server: Server) -> dict[str, float]:
    """Zoom into the map; return the CPU time of the server per zoom, and the largest answer."""
    sizes: list[int] = []
    page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    before = server.cpu_s()
    random = np.random.default_rng(3)
    for _ in range(N_ZOOMS):
        (s0, s1), (r0, r1) = (np.sort(random.choice(900, 2, replace=False)).tolist() for _ in range(2))
        change = {"xaxis.range[0]": s0 - 0.5, "xaxis.range[1]": s1 + 0.5,
                  "yaxis.range[0]": r1 + 0.5, "yaxis.range[1]": r0 - 0.5}  # fmt: skip
        n_before = len(sizes)
        page.evaluate(f"change => Plotly.relayout({PLOT}, change)", change)
        for _ in range(400):
            if len(sizes) > n_before:
                break
            page.wait_for_timeout(25)
        page.wait_for_timeout(100)
    return {
        "server CPU ms a move": 1000 * (server.cpu_s() - before) / N_ZOOMS,
        "largest move kB": max(sizes, default=0) / 1000,
    }


def measured(run: Path, n_repeats: int) -> dict[str, Figures]:
    """Return the figures by kind of visit."""
    found = {kind: Figures() for kind in ("cold", "warm", "zoom")}
    with tempfile.TemporaryDirectory() as cache, chromium() as browser:
        for repeat in range(n_repeats):
            server = Server(run, Path(cache))
            try:
                context = browser.new_context(viewport={"width": 1280, "height": 860})
                page = context.new_page()
                page.add_init_script(_WATCH)
                page.set_default_timeout(120_000)
                times = visited(page, server.url)
                times["server CPU ms"] = 1000 * server.cpu_s()
                found["cold"].add(times)
                before = server.cpu_s()
                times = visited(page, server.url)
                times["server CPU ms"] = 1000 * (server.cpu_s() - before)
                found["warm"].add(times)
                if repeat == n_repeats - 1:
                    found["zoom"].add(zooms(page, server))
                context.close()
            finally:
                server.end()
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", default="1024x1000")
    parser.add_argument("--run", type=Path, help="a run that exists, instead of a generated one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or Path(folder) / "job"
        if args.run is None:
            job(run, *map(int, args.job.split("x")))
        found = measured(run, args.repeats)
    load = os.getloadavg()[0]
    lines = [
        f"{args.job} ranks and steps, {os.cpu_count()} cores, load {load:.1f} at the end.",
        "",
        "| visit | what | median | least to most | goal | |",
        "| --- | --- | ---: | ---: | ---: | --- |",
        *(row for kind, figures in found.items() for row in figures.rows(kind)),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text(f"# The page Ranks\n\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
