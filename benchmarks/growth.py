"""Measures how the time of each analysis grows with the trace; as a script it measures one file as JSON.

Every analysis runs once without counting, which pays for imports; then several times, and the least time
counts: what it takes if nothing else runs. Before each run the processor's caches are filled with other data:
a user asks once, and columns of a short trace that are still cached would make a long trace look slow.
Recordings keep no answers, so there are none to clear.
"""

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
from vramscope.allocator.state_index import StateIndex
from vramscope.model.recording import Recording

ANALYSES = (
    "timeline",
    "peak",
    "step_peaks",
    "lifetimes",
    "by_stack",
    "by_module",
    "tree",
    "identity",
    "categories",
    "fragmentation",
    "driver_calls",
    "pins",
    "oom",
    "leaks",
    "own_peaks",
    "by_rank",
)
N_STATES = 200
REPEATS = 5
CACHES = 64 << 20
"""Bytes: more than a processor's caches hold."""


def measure(path: Path) -> dict[str, float]:
    """Return CPU seconds of opening, each analysis, and a state at a random moment; peak memory in MB.

    Opening is measured once, in a process that has opened nothing yet; all else as the module says.
    """
    found: dict[str, float] = {}
    start = time.process_time()
    run = vramscope.load(path)
    found["open"] = time.process_time() - start
    found["memory MB"] = _highest_mb()
    recording: Recording = max(run.recordings, key=lambda recording: len(recording.trace))
    questions = {name: getattr(recording, name) for name in ANALYSES}
    questions["state index"] = lambda: StateIndex(recording.trace, recording.initial)
    middle = len(recording.trace) * 2 // 3
    questions["a window"] = lambda: recording.window(start_event=middle, end_event=middle + 1000)
    for ask in questions.values():
        ask()
    found["memory MB, analyses too"] = _highest_mb()
    # Of small files no conversion is kept: they are read again.
    found["open again"] = least(lambda: vramscope.load(path))
    found |= {name: least(ask) for name, ask in questions.items()}
    found |= _states(questions["state index"](), len(recording.trace))
    found["events"] = len(recording.trace)
    return found


def _highest_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def least(ask: Callable[[], Any]) -> float:
    """Return the CPU seconds of the fastest of several runs."""
    taken = []
    for _ in range(REPEATS):
        gc.collect()
        np.ones(CACHES, dtype="u1")
        start = time.process_time()
        answer = ask()
        taken.append(time.process_time() - start)
        del answer  # let go of outside of what is measured
    return min(taken)


def _states(index: StateIndex, n_events: int) -> dict[str, float]:
    taken = []
    for k in np.random.default_rng(0).integers(0, n_events + 1, N_STATES).tolist():
        start = time.process_time()
        index.at(k)
        taken.append(time.process_time() - start)
    return {"a state (median)": float(np.median(taken)), "a state (p95)": float(np.percentile(taken, 95))}


def table(measured: Mapping[int, Mapping[str, float]]) -> str:
    """Return a Markdown table; its last column is the growth from first to last size, relative to linear."""
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
