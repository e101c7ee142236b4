"""Measures how long vramscope and other readers take to open and explain a snapshot.

Every reader opens the same file in a process of its own, alternately, so that a busy moment affects all of
them. ``contest.py`` lists the readers; then ``growth.py`` measures each analysis at several sizes, and
``promises.py`` compares both with our promises. It takes six minutes with the defaults on two quiet cores;
nothing else should run meanwhile. The first run installs the peers and makes the files.

    python benchmarks/readers.py [--events 1000000] [--rounds 3] [--growth 100000,1000000,5000000]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import growth
import promises
from contest import CACHE, FLOOR, HERE, PEERS, RIVAL, SLOW_S, Reader, peers, readers


def file_of(n_events: int) -> Path:
    """Return the snapshot of that size; write it first if it does not exist."""
    path = CACHE / "bench" / f"{n_events}.pickle"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        maker = [sys.executable, str(HERE / "generate.py"), "--events", str(n_events), str(path)]
        subprocess.run(maker, check=True)
    return path


def grown(sizes: Sequence[int]) -> dict[int, dict[str, float]]:
    """Return ``growth.measure`` of each size, each in a process of its own."""
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
    """Return a Markdown table of medians, with their ratios to the floor and to torch's own page."""
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
        ratios = [
            mine / its
            for other in beside
            for mine, its in ((reader.cpu, other.cpu), (reader.memory, other.memory))
        ]
        shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {reader.name} | {reader.cpu:.2f} | {reader.memory:,.0f} | {shown} |")
    return "\n".join(lines)


def machine(found: Mapping[str, Path]) -> str:
    """Return a description of the machine and the versions."""
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
    """Return the whole page."""
    return f"""# Measured

{text["day"]}, by `python benchmarks/readers.py {text["arguments"]}`.
Load of the machine at the start: {text["load"]}.
{text["machine"]}

## Promises

About {text["events"]} events where nothing else is said.

{text["promises"]}

## Opening and explaining a snapshot of {text["events"]} events ({text["size"]})

Medians of {text["rounds"]} rounds (of readers that take more than {SLOW_S} s: one), all in turn on the
same file, each in a fresh process, imports included but where the call alone is said to count. Peers that
could not be installed are missing: {text["missing"]}.
stormlog reads what it recorded itself, not torch's snapshots.

{text["comparison"]}

## Growth

Each size in a process of its own. Opening is measured once, with its imports; every other row is the least of
five times after one that is not counted, each with the processor's caches full of something else. A value of
1.00 in the last column is linear.

{text["growth"]}
"""


def main() -> int:
    """Measure everything, and write RESULTS.md."""
    parser = argparse.ArgumentParser(description="Compare readers of torch memory snapshots.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", default="100000,1000000,5000000", help="sizes, with commas between them")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    asked = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    file, known = file_of(asked.events), peers()
    measured = readers(known)
    for number in range(asked.rounds):
        for reader in measured:
            reader.run(file)
            print(
                f"round {number + 1}: {reader.name} {reader.failure or round(reader.cpu_s[-1], 2)}",
                flush=True,
            )
    sizes = grown([int(size) for size in asked.growth.split(",")])
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
        "promises": promises.table(measured, sizes),
        "growth": growth.table(sizes),
    }
    asked.out.write_text(report(text), encoding="utf-8")
    print(asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
