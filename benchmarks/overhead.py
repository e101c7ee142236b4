"""Measures what recording costs a training step, compared with other tools.

Every variant runs in a process of its own: blocks of steps without and with it alternate, so that a busy
moment affects both. The result is the ratio of each pair: median and spread of the ratios.

    python benchmarks/overhead.py [--pairs 5] [--steps 100] [--out benchmarks/OVERHEAD.md]

Run it on a machine with a GPU or in the stand-in (``.cache/standin/2.13.0/python benchmarks/overhead.py``).
In the stand-in nothing computes, a step is host work alone, and the ratios are the worst possible. Without
either it runs on the CPU, through the simulated device.
"""

import argparse
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = HERE.parent / ".cache" / "peers"
NAMES = {
    "off": "nothing, twice (the noise)",
    "counters": 'vramscope, mode="counters"',
    "torch peaks": "torch's statistics read and its peaks reset eight times a step: the floor of counters",
    "every=100": "vramscope, every=100",
    "every=10": "vramscope, every=10",
    "every=auto": 'vramscope, every="auto"',
    "events": "vramscope, events",
    "torch history": "torch _record_memory_history alone, snapshot at the end: the floor of events",
    "torch profiler": "torch.profiler(profile_memory=True)",
    "traceml": "TraceML, trace_step",
}
VARIANTS = tuple(NAMES)
COLUMNS = (
    "variant",
    "step without, ms",
    "step ÷ step without",
    "the same in CPU time",
    "slowest step, ms",
    "enter, ms",
    "leave, ms",
    "host memory, MB",
    "µs per event: recorded",
    "µs per event: handed over",
)
ON_GPU = {"width": 1024, "blocks": 12, "batch": [8, 1024]}
ON_HOST = {"width": 64, "blocks": 4, "batch": [4, 32]}

TARGETS = (
    ("counters", "step", "", 1.03, "torch peaks"),
    ("every=100", "step", "", 1.05, "off"),
    ("every=10", "CPU time", "_cpu", 1.2, "off"),
    ("events", "step", "", 1.42, "torch history"),
)
"""Variant, what is compared, its kind of ratio, the most that it may be, and the variant of its floor."""

Found = dict[str, Any]
Measured = Callable[[float], Found]
"""Waits at most that many seconds for what a process measures."""
_CORES_TO_IMPORT_AHEAD = 8


def main() -> int:
    """Measure, and write OVERHEAD.md; 1 if a variant that is ours or torch's could not be measured."""
    parser = argparse.ArgumentParser(description="What recording costs a training step.")
    parser.add_argument("--pairs", type=int, default=5, help="blocks without and with, each")
    # With the three steps before it, a block of 100 has what every=100 costs in the long run.
    parser.add_argument("--steps", type=int, default=100, help="steps in a block")
    # Fewer than the recorder reads while a block runs (20,000): all of them are handed over at its end.
    parser.add_argument("--events", type=int, default=18_000, help="allocator events, for the cost of one")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--out", type=Path, default=HERE / "OVERHEAD.md")
    parser.add_argument("--json", type=Path, help="every single measurement, too")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a variant may take")
    parser.add_argument("--short", action="store_true", help="steps of 5 ms on a GPU, too")
    asked = parser.parse_args()
    device, name = _device()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    is_long = device == "cuda" and not name.startswith("Stand-in") and not asked.short
    sizes = ON_GPU if is_long else ON_HOST
    common = {"device": device, "pairs": asked.pairs, "steps": asked.steps, "events": asked.events, **sizes}
    found: dict[str, Found] = {}
    for variant, wait in _measurements(asked.variants.split(","), common, device):
        found[variant] = wait(asked.limit)
        print(f"{variant}: {found[variant].get('absent') or ratios(found[variant])}", flush=True)
        # After each: whoever stops us keeps what was measured by then.
        asked.out.write_text(report(found, {}, common, (name, load)), encoding="utf-8")
        if asked.json:
            asked.json.write_text(json.dumps({"setup": common, "found": found}), encoding="utf-8")
    if device == "cuda":
        switch = _started(HERE / "_overhead_switch.py", {"blocks": 2000})(asked.limit)
        print(f"switch: {switch}", flush=True)
        asked.out.write_text(report(found, switch, common, (name, load)), encoding="utf-8")
    print(f"written: {asked.out}")
    return int(any(_is_broken(row) for variant, row in found.items() if variant != "traceml"))


def _is_broken(row: Found) -> bool:
    """A variant that should have been measured was not."""
    return str(row.get("absent", "")).startswith(("failed", "not done"))


def _device() -> tuple[str, str]:
    """Return the device that torch offers, and its name."""
    import torch

    if torch.cuda.is_available():
        return "cuda", torch.cuda.get_device_name()
    return "cpu", "no GPU: the simulated device"


def _absent(variant: str, device: str) -> Found:
    """Return why a variant cannot be measured here; '' if it can."""
    from vramscope import record

    if variant == "counters" and "mode" not in inspect.signature(record).parameters:
        return {"absent": "this version has no such mode"}
    if device == "cpu" and variant in ("torch history", "torch peaks", "counters"):
        return {"absent": "needs CUDA"}
    if variant == "traceml" and not _peer("traceml-ai", "traceml_ai"):
        return {"absent": "could not be installed"}
    return {}


def _peer(distribution: str, module: str) -> bool:
    """Return whether the package is available, after trying to install it."""
    place = PEERS / distribution
    if not place.exists() and not find_spec(module):
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--retries=1",
            "--target",
            str(place),
            distribution,
        ]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (place / module).exists() or find_spec(module) is not None


def _measurements(
    variants: Sequence[str], common: Mapping[str, Any], device: str
) -> Iterator[tuple[str, Measured]]:
    """Yield each variant with a function that waits for its measurement.

    Where there are cores for it, the process of the next one imports torch meanwhile; it measures alone.
    """
    imports_ahead = (os.cpu_count() or 1) >= _CORES_TO_IMPORT_AHEAD
    ready: dict[str, Measured] = {}
    for this, after in zip_longest(variants, variants[1:]):
        for variant in (this, after)[: 1 + imports_ahead]:
            if variant is not None and variant not in ready:
                ready[variant] = _of(variant, common, device)
        yield this, ready[this]


def _of(variant: str, common: Mapping[str, Any], device: str) -> Measured:
    absent = _absent(variant, device)
    if absent:
        return lambda _: absent
    asked = {"variant": variant, "path": [str(path) for path in PEERS.glob("*")], **common}
    return _started(HERE / "_overhead_child.py", asked)


def _started(script: Path, asked: Mapping[str, Any]) -> Measured:
    """Start a process that imports torch, and return a function that lets it measure and waits for it."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        [*filter(None, [environment.get("PYTHONPATH")]), str(HERE.parent)]
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )

    def measured(limit_s: float) -> Found:
        try:
            output, errors = process.communicate("measure\n", timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"absent": f"not done after {limit_s:g} s"}
        if process.returncode or not output.strip():
            last = errors.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
            return {"absent": f"failed: {last[0][:200]}"}
        return dict(json.loads(output.strip().splitlines()[-1]))

    return measured


# ----------------------------------------------------------------------------------------- the page


def ratios(found: Found, kind: str = "") -> str:
    """Return median, least and greatest ratio of a step with to one without; *kind* ``_cpu``: CPU time."""
    each = [on / off for off, on in zip(found[f"off{kind}"], found[f"on{kind}"], strict=True)]
    return f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"


def table(found: Mapping[str, Found]) -> str:
    """Return a Markdown table with one row per variant."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        f"| --- {'| ---: ' * (len(COLUMNS) - 1)}|",
    ]
    for variant, row in found.items():
        if "absent" in row:
            lines.append(f"| {NAMES[variant]} | {row['absent']} {'| ' * (len(COLUMNS) - 2)}|")
            continue
        off, worst, enter, leave = (
            1e3 * statistics.median(row[name]) for name in ("off", "worst", "enter", "leave")
        )
        per_event = row["per_event_us"]
        lines.append(
            f"| {NAMES[variant]} | {off:.2f} | {ratios(row)} | {ratios(row, '_cpu')} "
            f"| {worst:.1f} | {enter:.1f} | {leave:.1f} "
            f"| {row['host_bytes'] / 1e6:,.0f} | {per_event['recording']:.2f} | {per_event['leaving']:.2f} |"
        )
    return "\n".join(lines)


def report(
    found: Mapping[str, Found], switch: Found, common: Mapping[str, Any], place: tuple[str, str]
) -> str:
    """Return the whole page; *place* is the device and the load of its machine."""
    device, load = place
    rows, length = common["batch"]
    day = datetime.now(tz=timezone.utc).date().isoformat()
    return f"""# What recording costs

{day}, by `python benchmarks/overhead.py --pairs {common["pairs"]} --steps {common["steps"]}`.
Device: {device}. {_machine()} Load of the machine at the start: {load}.

A transformer of {common["blocks"]} blocks, width {common["width"]}, batch {rows} × {length}, AdamW.
Each variant in a process of its own: {common["pairs"]} times {common["steps"]} steps without it and
{common["steps"]} with it, in turns; median of the ratios, and the least and the greatest.
Three steps before each block are not measured, so that one of `every=100` has one step with events in a
hundred, and both switches. A step's time is the mean of its block, what the variant does meanwhile included;
CPU time is that of all threads. *slowest step*: median over the blocks of the slowest step with the variant.
*enter* and *leave*: what a `with` block costs at its two ends (torch's history: its
snapshot; the profiler: gathering its events), medians.
*host memory*: the most that was resident beyond what was before the first pair. *µs per event*: CPU time of
an allocation and its free 25 Python frames deep, beyond that without the variant, and of leaving the block;
divided by the three events that they make.

{table(found)}

{_targets(found, switch)}{_reading(device)}
{_switches(switch)}"""


def _targets(found: Mapping[str, Found], switch: Found) -> str:
    """Return what was wanted of a host-bound step of 4 to 5 ms, and what was reached beside its floor."""
    rows = []
    for variant, what, kind, most, floor in TARGETS:
        pair = [found.get(each, {"absent": ""}) for each in (variant, floor)]
        if not any("absent" in each for each in pair):
            reached = " | ".join(ratios(each, kind) for each in pair)
            rows.append(f"| {NAMES[variant]}: {what} | {most} | {reached} |")
    if "ours" in switch:
        ours = sum(map(statistics.median, switch["ours"].values()))
        least = statistics.median(switch["torch"]["torch: a snapshot of the blocks"])
        rows.append(f"| events on and off again, ms | 3 | {ours:.2f} | {least:.2f} |")
    if not rows:
        return ""
    return f"""| target | at most | reached | its floor in this run |
| --- | ---: | ---: | ---: |
{chr(10).join(rows)}

The floor of counters is torch's own: eight readings of its statistics and eight resets of its peaks in a
step. What is above it are the hooks in Python: eight marks a step, of which one takes 23 µs, 10 of them in
torch (in a loop of nothing else; amid a step it is more). Reading only the ends of steps would save part of
that, and take away the peaks of phases. The floor of `every=N` is the loop measured twice; above it are the
same marks, and the steps with events. To switch events on, the blocks that are there must be read: the floor
is torch's snapshot of them; what is above it compares each block with what was held, and writes what differs.

"""


def _switches(found: Found) -> str:
    """Return the table of what it costs to switch events on and off between two steps."""
    if "ours" not in found:
        return f"\nSwitching events on and off: {found['absent']}.\n" if found else ""
    rows = [*found["ours"].items(), *found["torch"].items()]
    lines = [f"| {name} | {statistics.median(each):.2f} | {min(each):.2f} |" for name, each in rows]
    return f"""
With {found["blocks"]:,} live blocks whose stacks are 25 frames deep, 300 events in a recorded step, and 200
blocks that are allocated anew between two of them, CPU time of the program's thread in ms:

| what | median | least |
| --- | ---: | ---: |
{chr(10).join(lines)}
"""


def _reading(device: str) -> str:
    if device.startswith("Stand-in"):
        return """On the stand-in nothing computes: a step is host work alone, so the ratios say how much is
added to that, and are an upper bound for a GPU that is kept busy. The cost per event is the host's in both
cases."""
    return "Goal on a GPU, for steps of 20 ms and more: 1.02 for counters, 1.05 for events."


def _machine() -> str:
    names: Sequence[str] = ("torch", "numpy", "pyarrow", "traceml-ai")
    versions = {"Python": platform.python_version()} | {name: _version(name) for name in names}
    listed = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{_processor()}, {os.cpu_count()} cores, {memory_gb:.0f} GB; {listed}."


def _version(distribution: str) -> str:
    found = [*(PEERS / distribution).glob("*.dist-info")] if (PEERS / distribution).exists() else []
    for place in found:
        name, _, number = place.name.removesuffix(".dist-info").partition("-")
        if name.replace("_", "-").lower() == distribution:
            return number
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
