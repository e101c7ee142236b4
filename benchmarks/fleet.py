"""Measure the comparison of all ranks: CPU seconds and memory, without and with summaries.

    python benchmarks/fleet.py [--out FILE] [--keep DIRECTORY]

Jobs of 64 ranks with 100,000 events each, 1,024 with 4,000, and 10,000 summaries alone. Each measurement is a
process of its own, children included; wall time is given beside it and depends on what else the machine does.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vramscope.fleet import made_summary
from vramscope.model.device import Device, Process
from vramscope.model.marks import MarkKind, Marks
from vramscope.model.recording import Outcome
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace
from vramscope.store import manifest as manifests
from vramscope.store.summaries import SUMMARY_FILE, StoredSummary, read_summary, write_summary
from vramscope.store.write.writer import Writer

MIB = 1 << 20
LAYERS = 24
KEPT = 60
# CPU seconds without and with summaries, and MB with; the goals of the product.
GOALS = {(64, 100_000): (10, 1, None), (1024, 4_000): (30, 3, None), (10_000, 0): (None, 10, 1000)}


def record(run: Path, rank: int, n_ranks: int, n_events: int) -> None:
    """Write the trace of one rank: parameters, then steps of allocations and frees in 24 layers."""
    random = np.random.default_rng(rank)
    builder = StackBuilder()
    stacks = [
        builder.add(
            [("forward", "/net/block.py", 10 + i), ("step", "/net/train.py", 5), ("main", "/net/train.py", 1)]
        )
        for i in range(LAYERS + KEPT)
    ]
    process = Process(rank, n_ranks, f"node{rank // 8}", 10**6 + rank)
    device = Device(rank % 8, "cuda", "a card", 80 << 30, f"GPU-{rank}")
    writer = Writer(run, source="cuda", process=process, devices=[device], started_ns=10**18 + rank)
    writer.stacks(builder.rows())
    kept = np.arange(KEPT)
    parts = [rows(Action.ALLOC, kept << 30, 100 * MIB, np.array(stacks)[LAYERS + kept])]
    per_step = 3 * LAYERS
    n_steps = (n_events - KEPT) // per_step
    address = (1 << 40) + (np.arange(LAYERS) << 30)
    for _ in range(n_steps):
        size = (random.integers(50, 52, LAYERS) * MIB).astype("i8")
        parts.append(rows(Action.ALLOC, address, size, np.array(stacks)[:LAYERS]))
        frees = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
        parts += [rows(action, address, size, np.zeros(LAYERS, "i8")) for action in frees]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    times = 10**18 + np.arange(len(columns["action"])) * 10**6
    writer.append(Trace.of(**columns, block_size=columns["size"], time_ns=times), device.index)
    ends = KEPT + per_step * (1 + np.arange(n_steps))
    writer.append(
        Marks.of(kind=np.full(n_steps, MarkKind.STEP), time_ns=times[ends - 1], event=ends), device.index
    )
    writer.close(Outcome.FINISHED)


def rows(action: Action, address: Any, size: Any, stack: Any) -> dict[str, Any]:
    """Columns of one kind of event."""
    n = len(address)
    size = np.broadcast_to(size, n)
    return {"action": np.full(n, action), "address": address, "size": size, "stack_id": stack}


def job(directory: Path, n_ranks: int, n_events: int) -> Path:
    """A whole job; one of no events is summaries alone."""
    run = directory / f"{n_ranks}x{n_events}"
    if n_events:
        for rank in range(n_ranks):
            record(run, rank, n_ranks, n_events)
        return run
    record(run, 0, n_ranks, 8_000)
    made_summary(run / "rank0")
    stored = read_summary(run / "rank0" / SUMMARY_FILE)
    assert stored is not None
    manifest = manifests.read(run / "rank0" / "manifest.json")
    for rank in range(n_ranks):
        process = replace(stored.summary.process, rank=rank, host=f"node{rank // 8}")
        path = run / f"rank{rank}"
        path.mkdir(exist_ok=True)
        manifests.write(
            path / "manifest.json", replace(manifest, process=process, id=f"{rank}"), durable=False
        )
        (device,) = stored.summary.devices
        device = replace(device, device=replace(device.device, uuid=f"GPU-{rank}"))
        summary = replace(stored.summary, process=process, devices=(device,))
        write_summary(path / SUMMARY_FILE, StoredSummary(summary, f"{rank}"))
    for path in (run / "rank0").glob("*.arrows"):
        path.unlink()
    return run


def measured(run: Path, *words: str) -> dict[str, Any]:
    """CPU and wall seconds, and the peak memory of the largest process, of one command."""
    child = (
        "import json, resource, sys, time; from vramscope.cli import main; start = time.monotonic(); "
        "code = main(sys.argv[1:]); own, crew = (resource.getrusage(who) for who in "
        "(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)); "
        "print(json.dumps([code, sum(each.ru_utime + each.ru_stime for each in (own, crew)), "
        "time.monotonic() - start, max(own.ru_maxrss, crew.ru_maxrss) / 1000]), file=sys.stderr)"
    )
    command = [sys.executable, "-c", child, *words, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    code, cpu_s, wall_s, mb = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return {"cpu_s": cpu_s, "wall_s": wall_s, "mb": mb, "lines": len(done.stdout.splitlines())}


def compared(run: Path, n_events: int) -> list[tuple[str, dict[str, Any]]]:
    """The measurements of one job."""
    found = []
    if n_events:
        for path in run.glob(f"rank*/{SUMMARY_FILE}"):
            path.unlink()
        found.append(("without summaries", measured(run, "ranks")))
    found.append(("with summaries", measured(run, "ranks")))
    if n_events:
        found.append(("report, with summaries", measured(run, "report")))
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="where the jobs are made, and stay")
    parser.add_argument("--jobs", default="64x100000,1024x4000,10000x0")
    args = parser.parse_args()
    directory = args.keep or Path(tempfile.mkdtemp(prefix="fleet-"))
    lines = [
        "| ranks × events | | CPU s | goal | wall s | MB | lines |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in args.jobs.split(","):
        n_ranks, n_events = map(int, name.split("x"))
        run = directory / name
        if not run.exists():
            start = time.monotonic()
            job(directory, n_ranks, n_events)
            print(f"made {name} in {time.monotonic() - start:.0f} s", file=sys.stderr)
        goal = GOALS.get((n_ranks, n_events), (None, None, None))
        for what, found in compared(run, n_events):
            limit = {"without summaries": goal[0], "with summaries": goal[1]}.get(what)
            lines.append(
                f"| {n_ranks:,} × {n_events:,} | {what} | {found['cpu_s']:.2f} | {limit or ''} "
                f"| {found['wall_s']:.1f} | {found['mb']:.0f} | {found['lines']} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    if not args.keep:
        shutil.rmtree(directory)
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        args.out.write_text(f"# All ranks compared\n\n`make bench-fleet`, {os.cpu_count()} cores.\n\n{text}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
