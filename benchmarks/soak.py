"""Checks that a long recording loses no events and does not grow.

    .cache/standin/2.13.0/python benchmarks/soak.py --minutes 30 --viewer .venv/bin/vramscope

A training thread and threads that only allocate make 25,000 allocator events a second while everything is
recorded and a viewer watches: ``vramscope serve`` and a client that requests its page all the time. Before
it, the same program runs without recording. It prints events, lost events, gaps, the resident memory of the
recorded process after 5 minutes and at its end beside that of the control, and the totals at the end beside
torch's own. The exit status is 1 if an event was lost, memory grew by more than 20 MB after the first 5
minutes (a third of shorter runs), or the totals differ.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

_FLAT_BYTES = 20_000_000
_SETTLED_S = 300
_LOOK_S = 5.0
_SPARE_S = 300
_alive: list[object] = []
"""What each thread still holds at its end, so that the final totals are not 0."""
_PER_PAIR = 3
"""Number of events of an allocation and its free: alloc, free_requested, free_completed."""


def main() -> int:
    """Run the control, then the recorded run with a viewer; return 0 if nothing was lost or grew."""
    options = _options()
    if options.child is not None:
        return _child(options)
    with tempfile.TemporaryDirectory() as folder:
        control = _run(options, Path(folder) / "control", options.control_minutes, is_recorded=False)
        recorded = _run(options, Path(folder) / "run", options.minutes, is_recorded=True)
    return _report(options, control, recorded)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--control-minutes", type=float, default=3)
    parser.add_argument("--rate", type=int, default=25_000, help="events a second")
    parser.add_argument("--threads", type=int, default=3, help="that only allocate")
    parser.add_argument("--max-size", default="64 MiB", help="of the trace")
    parser.add_argument("--viewer", help="the vramscope command that serves the dashboard")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--recorded", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(options: argparse.Namespace, folder: Path, minutes: float, *, is_recorded: bool) -> dict[str, Any]:
    """Return the child's last report, and its resident memory over time."""
    command = [sys.executable, __file__, "--child", str(folder), "--minutes", str(minutes)]
    for name in ("rate", "threads", "max_size"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    child = subprocess.Popen(
        [*command, *(["--recorded"] if is_recorded else [])], stdout=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(60 * minutes + _SPARE_S, child.kill)
    watchdog.start()
    viewer = None
    try:
        if is_recorded and options.viewer:
            viewer = _Viewer(options.viewer, folder)
        assert child.stdout is not None
        lines = [json.loads(line) for line in child.stdout]
        status = child.wait()
    finally:
        watchdog.cancel()
        child.kill()
        looked = viewer.stop() if viewer is not None else {}
    return {"status": status, "looks": lines[:-1], "end": lines[-1] if lines else {}, "viewer": looked}


class _Viewer:
    """Serve the dashboard on the run, with a client that requests its page repeatedly."""

    def __init__(self, command: str, folder: Path) -> None:
        self.answers, self.failures = 0, 0
        self._is_over = threading.Event()
        while not folder.exists() and not self._is_over.wait(1):
            pass
        self._server = subprocess.Popen(
            [command, "serve", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        self._address = next(
            found[0] for line in self._server.stdout if (found := re.search(r"http://\S+", line))
        )
        self._client = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, int]:
        self._is_over.set()
        self._thread.join(timeout=60)
        rss = _rss(self._server.pid)
        self._server.kill()
        self._server.communicate()
        return {"answers": self.answers, "failures": self.failures, "rss_bytes": rss}

    def _ask(self) -> None:
        while not self._is_over.wait(1):
            try:
                with self._client.open(self._address, timeout=60) as answer:
                    self.answers += answer.status == 200
                layout = self._address.partition("?")[0] + "_dash-layout"
                with self._client.open(layout, timeout=60) as answer:
                    self.answers += answer.status == 200
            except OSError:  # noqa: PERF203
                self.failures += 1


def _report(options: argparse.Namespace, control: dict[str, Any], recorded: dict[str, Any]) -> int:
    end = recorded["end"]
    looks = recorded["looks"]
    settled_s = min(_SETTLED_S, 60 * options.minutes / 3)
    settled = [look["rss"] for look in looks if look["s"] >= settled_s] or [0]
    # Of a tenth of the time at either end: one look may fall into a reading.
    tenth = max(1, len(settled) // 10)
    grew = statistics.median(settled[-tenth:]) - statistics.median(settled[:tenth])
    print(f"control: {control['end'].get('events', 0):,} events, resident {_megabytes(control['looks'])}")
    print(f"recorded: {end.get('events', 0):,} events, {end.get('rate', 0):,.0f} a second")
    print(f"lost: {end.get('lost')} events, {end.get('gaps')} gaps; notes: {end.get('notes')}")
    print(f"resident {_megabytes(looks)}; after {settled_s:.0f} s it grew by {grew / 1e6:.1f} MB")
    print(f"totals (requested, allocated, reserved): {end.get('found')}, torch says {end.get('truth')}")
    print(f"directory: {end.get('directory', 0) / 2**20:.1f} MiB; viewer: {recorded['viewer']}")
    is_good = (
        recorded["status"] == 0
        and end.get("gaps") == 0
        and end.get("found") == end.get("truth")
        and abs(grew) <= _FLAT_BYTES
    )
    print("nothing lost, nothing grown" if is_good else "FAILED")
    return 0 if is_good else 1


def _megabytes(looks: list[dict[str, Any]]) -> str:
    step = max(1, len(looks) // 12)
    return " ".join(f"{look['rss'] / 1e6:.0f}" for look in looks[::step]) + " MB"


# ---------------------------------------------------------------------------------- the recorded program


def _child(options: argparse.Namespace) -> int:
    import torch

    import vramscope

    torch.set_num_threads(1)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda.init()
    # For its first optimizer torch imports 800 modules, which takes 10 s and more on a busy machine; the rate
    # is that of the time after it.
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    began_s = time.monotonic()
    ends_s = began_s + 60 * options.minutes
    share = options.rate / _PER_PAIR / options.threads
    threads = [
        threading.Thread(target=_allocate, args=(share, number, ends_s)) for number in range(options.threads)
    ]
    threads.append(threading.Thread(target=_train, args=(ends_s,)))
    recorder = vramscope.record(options.child, device="cuda", max_size=options.max_size, quiet=True)
    if options.recorded:
        recorder.__enter__()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(_LOOK_S)
        print(json.dumps({"s": time.monotonic() - began_s, "rss": _rss(os.getpid())}), flush=True)
    took_s = time.monotonic() - began_s
    stats = torch.cuda.memory_stats()
    if options.recorded:
        recorder.__exit__(None, None, None)
    n_events = sum(
        stats[name] for name in ("allocation.all.allocated", "allocation.all.freed", "active.all.freed")
    )
    end: dict[str, Any] = {"events": n_events, "rate": n_events / took_s}
    if options.recorded:
        end |= _recorded(options.child)
        names = ("requested", "allocated", "reserved")
        end["truth"] = [stats[f"{name}_bytes.all.current"] for name in names]
    print(json.dumps(end), flush=True)
    return 0


def _recorded(folder: Path) -> dict[str, Any]:
    import vramscope

    (recording,) = vramscope.load(folder).recordings
    line = recording.timeline()
    gaps = [note for note in recording.notes if note.code == "gap"]
    return {
        "lost": sum(note.value for note in gaps),
        "gaps": len(gaps),
        "notes": sorted({note.code for note in recording.notes}),
        "found": [int(getattr(line, f"{name}_bytes")[-1]) for name in ("requested", "allocated", "reserved")],
        "directory": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    }


def _allocate(pairs_per_s: float, number: int, ends_s: float) -> None:
    """Allocate tensors of many sizes at a steady rate, and free the older ones."""
    import torch

    began_s = time.monotonic()
    kept: list[Any] = [None] * 64
    n = 0
    while (now_s := time.monotonic()) < ends_s:
        # A thread that fell back stops at the end nevertheless.
        while n < pairs_per_s * (now_s - began_s) and (n % 1000 or time.monotonic() < ends_s):
            kept[n % 64] = torch.empty(256 * (1 + (n * 7 + number) % 50), device="cuda")
            n += 1
        time.sleep(0.005)
    _alive.append(kept)


def _train(ends_s: float) -> None:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    while time.monotonic() < ends_s:
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    _alive.append((model, optimizer))


def _rss(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    # Our own code beside this file, wherever it is started.
    sys.path.append(os.fspath(Path(__file__).parents[1]))
    sys.exit(main())
