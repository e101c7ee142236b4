"""How long do we take to open and explain a snapshot, and how long do others?

Every reader opens the same file in a process of its own, in turns, so that a busy moment meets all of them.
What counts is CPU time (user and system, children included) and the most memory held; medians of the rounds.
Peers come from PyPI into environments of their own under ``.cache/peers``, or are left out.

    python benchmarks/readers.py [--events 1000000] [--rounds 3] [--growth 100000,1000000]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import growth

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache"
LIMIT_S = 900
FLOOR = "pickle.load"
RIVAL = "torch trace_plot"
SETTLED_S = 2.5
"""vramscope keeps no conversion of a file that changed just now."""
PEERS = {"ptmem": "ptmem", "pt-snap-cli": "pt-snap"}
"""Distribution and command. (stormlog reads what it recorded itself, not torch's snapshots.)"""

_PICKLE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
_OPEN = "import sys, vramscope; run = vramscope.load(sys.argv[1])"
_PEAK = "; [recording.peak() for recording in run.recordings]"
_EXPLAIN = """
for recording in run.recordings:
    for name in ('peak', 'step_peaks', 'by_stack', 'tree', 'categories', 'fragmentation', 'pins'):
        getattr(recording, name)()
"""


@dataclass(slots=True)
class Reader:
    """One way to read the file. ``FILE`` and ``OUT`` (an empty folder) in the command are replaced.

    ``FILE`` lies in a folder of its own each time: some keep a cache beside it.
    """

    name: str
    command: Sequence[str]
    is_warm: bool = False
    """Whether it ran on the same file before, and may have kept something."""
    cpu_s: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    failure: str = ""

    def run(self, file: Path) -> None:
        """Once more, unless it failed before."""
        if self.failure:
            return
        with tempfile.TemporaryDirectory(dir=file.parent) as out:
            own = Path(out) / "snapshot.pickle"
            own.hardlink_to(file.resolve())
            time.sleep(SETTLED_S)
            command = [part.replace("FILE", str(own)).replace("OUT", out) for part in self.command]
            if self.is_warm:
                _waited(command, Path(out))
            status, usage = _waited(command, Path(out))
        if status:
            self.failure = f"failed ({status})"
            return
        self.cpu_s.append(usage.ru_utime + usage.ru_stime)
        self.memory_mb.append(usage.ru_maxrss / 1024)


def _waited(command: Sequence[str], home: Path) -> "tuple[int, os.struct_rusage]":
    """Exit status, and what the process and its children used. A home of its own: nobody finds a cache."""
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1"}
    # Peers come compiled by pip; ours lies here as source.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("VRAMSCOPE_CACHE", None)
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage


def readers(peers: Mapping[str, Path]) -> list[Reader]:
    """All that can be run here."""
    python = sys.executable
    found = [
        Reader(FLOOR, [python, "-c", _PICKLE, "FILE"]),
        Reader("pickle.load, gc off", [python, "-c", f"import gc; gc.disable(); {_PICKLE}", "FILE"]),
        Reader("vramscope: open", [python, "-c", _OPEN, "FILE"]),
        Reader("vramscope: open, from its cache", [python, "-c", _OPEN, "FILE"], is_warm=True),
        Reader("vramscope: open, its peak", [python, "-c", _OPEN + _PEAK, "FILE"]),
        Reader("vramscope: the same, from its cache", [python, "-c", _OPEN + _PEAK, "FILE"], is_warm=True),
        Reader("vramscope: open, 7 analyses", [python, "-c", _OPEN + _EXPLAIN, "FILE"]),
        Reader("vramscope: the same, from its cache", [python, "-c", _OPEN + _EXPLAIN, "FILE"], is_warm=True),
        Reader("vramscope report", [python, "-m", "vramscope", "report", "FILE", "--json"]),
    ]
    if find_spec("torch"):
        viz = [python, "-m", "torch.cuda._memory_viz"]
        found.append(Reader(RIVAL, [*viz, "trace_plot", "FILE", "-o", "OUT/plot.html"]))
        found.append(Reader("torch stats", [*viz, "stats", "FILE"]))
    if "ptmem" in peers:
        command = [str(peers["ptmem"]), "--summary", "FILE"]
        found.append(Reader("ptmem --summary", command))
        found.append(Reader("ptmem --summary, from its cache", command, is_warm=True))
    if "pt-snap-cli" in peers:
        command = [str(peers["pt-snap-cli"]), "import", "FILE", "-o", "OUT", "--no-focus"]
        found.append(Reader("pt-snap import", command))
    return found


def peers() -> dict[str, Path]:
    """The commands of the peers that could be installed, each in its own environment."""
    found = {}
    for distribution, command in PEERS.items():
        place = CACHE / "peers" / distribution
        if not (place / "bin" / command).exists():
            _install(distribution, place)
        if (place / "bin" / command).exists():
            found[distribution] = place / "bin" / command
    return found


def _install(distribution: str, place: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=False)
    pip = [str(place / "bin" / "pip"), "install", "--quiet", distribution]
    subprocess.run(pip, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def file_of(n_events: int) -> Path:
    """The snapshot of that size, made where it is not there yet."""
    path = CACHE / "bench" / f"{n_events}.pickle"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        maker = [sys.executable, str(HERE / "generate.py"), "--events", str(n_events), str(path)]
        subprocess.run(maker, check=True)
    return path


def grown(sizes: Sequence[int]) -> dict[int, dict[str, float]]:
    """``growth.measure`` of each size, in a process of its own."""
    found = {}
    for size in sizes:
        command = [sys.executable, str(HERE / "growth.py"), str(file_of(size))]
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "VRAMSCOPE_CACHE": cache}
            done = subprocess.run(command, check=True, capture_output=True, env=environment)
        found[size] = json.loads(done.stdout)
        print(f"growth: {size} events measured", flush=True)
    return found


def comparison(measured: Sequence[Reader]) -> str:
    """Markdown: medians, and their ratios to the floor and to torch's own page."""
    beside = [reader for reader in measured if reader.name in (FLOOR, RIVAL) and not reader.failure]
    names = [f"{what} ÷ {reader.name}" for reader in beside for what in ("CPU", "memory")]
    lines = [
        f"| reader | CPU s | peak memory MB | {' | '.join(names)} |",
        f"| --- |{' ---: |' * (2 + len(names))}",
    ]
    for reader in measured:
        if reader.failure:
            lines.append(f"| {reader.name} | {reader.failure} |{' |' * (1 + len(names))}")
            continue
        cpu, memory = _medians(reader)
        ratios = [
            mine / its for other in beside for mine, its in zip((cpu, memory), _medians(other), strict=True)
        ]
        shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {reader.name} | {cpu:.2f} | {memory:,.0f} | {shown} |")
    return "\n".join(lines)


def _medians(reader: Reader) -> tuple[float, float]:
    """CPU seconds and MB."""
    return statistics.median(reader.cpu_s), statistics.median(reader.memory_mb)


def machine(found: Mapping[str, Path]) -> str:
    """What it ran on, and which versions."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    versions = {"Python": platform.python_version()}
    versions |= {name: version(name) for name in ("numpy", "pyarrow", "vramscope")}
    if find_spec("torch"):
        versions["torch"] = version("torch")
    for distribution, command in found.items():
        shown = [str(command.parent / "pip"), "show", distribution]
        text = subprocess.run(shown, check=False, capture_output=True, text=True).stdout
        versions[distribution] = text.partition("Version: ")[2].partition("\n")[0]
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"{_processor()}, {os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()}; {listed}."


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def report(text: Mapping[str, str]) -> str:
    """The page."""
    return f"""# Measured

{text["day"]}, by `python benchmarks/readers.py {text["arguments"]}`.
Load of the machine at the start: {text["load"]}.
{text["machine"]}

## Opening and explaining a snapshot of {text["events"]} events ({text["size"]})

Medians of {text["rounds"]} rounds, all readers in turn on the same file, each in a fresh process, imports
included. Peers that could not be installed are missing: {text["missing"]}.
stormlog reads what it recorded itself, not torch's snapshots.

{text["comparison"]}

## Growth

Each size in a process of its own. Opening is measured once, with its imports; every other row is the least of
five times after one that is not counted, each with the processor's caches full of something else. A value of
1.00 in the last column is linear.

{text["growth"]}
"""


def main() -> int:
    """Measure, and write RESULTS.md."""
    parser = argparse.ArgumentParser(description="Compare readers of torch memory snapshots.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", default="100000,1000000", help="sizes, with commas between them")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    asked = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    file, known = file_of(asked.events), peers()
    measured = readers(known)
    for number in range(asked.rounds):
        for reader in measured:
            reader.run(file)
            print(f"round {number + 1}: {reader.name} {reader.failure or reader.cpu_s[-1]}", flush=True)
    text = {
        "day": datetime.now(tz=timezone.utc).date().isoformat(),
        "arguments": " ".join(sys.argv[1:]),
        "load": load,
        "machine": machine(known),
        "events": f"{asked.events:,}",
        "size": f"{file.stat().st_size / 1e6:.0f} MB",
        "rounds": str(asked.rounds),
        "missing": ", ".join(sorted(PEERS.keys() - known.keys())) or "none",
        "comparison": comparison(measured),
        "growth": growth.table(grown([int(size) for size in asked.growth.split(",")])),
    }
    asked.out.write_text(report(text), encoding="utf-8")
    print(asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
