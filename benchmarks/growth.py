"""How does each analysis grow with the trace? Run as a script it measures one file and prints JSON."""

import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import vramscope
from vramscope.allocator.index import StateIndex
from vramscope.model.recording import Recording

ANALYSES = (
    "timeline",
    "peak",
    "step_peaks",
    "lifetimes",
    "by_stack",
    "by_module",
    "composition",
    "tree",
    "identity",
    "categories",
    "fragmentation",
    "churn",
    "largest_free",
    "pins",
    "oom",
    "would_fit",
)
N_STATES = 200


def measure(path: Path) -> dict[str, float]:
    """CPU seconds of opening, each analysis, and a state at a random moment; memory in MB at its highest."""
    found: dict[str, float] = {}
    run = _timed(found, "open", lambda: vramscope.load(path))
    found["memory MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # Of small files no conversion is kept: they are read again.
    _timed(found, "open again", lambda: vramscope.load(path))
    recording: Recording = max(run.recordings, key=lambda recording: len(recording.trace))
    for name in ANALYSES:
        _timed(found, name, getattr(recording, name))
    index = _timed(found, "state index", lambda: StateIndex(recording.trace, recording.initial))
    found |= _states(index, len(recording.trace))
    middle = len(recording.trace) * 2 // 3
    _timed(found, "a window", lambda: recording.window(start_event=middle, end_event=middle + 1000))
    found["events"] = len(recording.trace)
    found["memory MB, analyses too"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def _timed(found: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    gc.collect()
    start = time.process_time()
    result = call()
    found[name] = time.process_time() - start
    return result


def _states(index: StateIndex, n_events: int) -> dict[str, float]:
    taken = []
    for k in np.random.default_rng(0).integers(0, n_events + 1, N_STATES).tolist():
        start = time.process_time()
        index.at(k)
        taken.append(time.process_time() - start)
    return {"a state (median)": float(np.median(taken)), "a state (p95)": float(np.percentile(taken, 95))}


def table(measured: Mapping[int, Mapping[str, float]]) -> str:
    """Markdown; the last column: how many times more than linear it grew from the first size to the last."""
    sizes = sorted(measured)
    first, last = measured[sizes[0]], measured[sizes[-1]]
    lines = [
        f"| CPU s at | {' | '.join(f'{size:,} events' for size in sizes)} | growth ÷ linear |",
        f"| --- |{' ---: |' * (len(sizes) + 1)}",
    ]
    for name in first:
        if name == "events":
            continue
        growth = last[name] / max(first[name], 1e-4) / (last["events"] / first["events"])
        digits = 0 if name.startswith("memory") else 4
        values = " | ".join(f"{measured[size][name]:,.{digits}f}" for size in sizes)
        lines.append(f"| {name} | {values} | {growth:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    json.dump(measure(Path(sys.argv[1])), sys.stdout)
