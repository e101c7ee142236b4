"""What it costs to switch events on and off between two steps, beside what torch itself takes for it.

    python benchmarks/_overhead_switch.py '{"blocks": 2000}'

Prints one JSON object: milliseconds of the program's thread for each switch, and for each call of torch's.
"""

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import vramscope
from vramscope.capture.hooks.stretches import Stretches

DEPTH, STEPS, RENEWED, CALLS = 25, 30, 200, 15


def deep(depth: int, do: Callable[[], object]) -> None:
    """Call *do* with that many frames above it."""
    if depth:
        deep(depth - 1, do)
    else:
        do()


def measured(n_blocks: int) -> dict[str, Any]:
    """Return the milliseconds of each switch and of torch's own calls."""
    ours: dict[str, list[float]] = {"vramscope: off": [], "vramscope: on": []}
    _time_switches(ours)
    live: list[torch.Tensor] = []

    def allocate(n: int) -> None:
        live.extend(torch.empty(1000, device="cuda") for _ in range(n))

    def step() -> None:
        for _ in range(100):
            torch.empty(1000, device="cuda")

    with tempfile.TemporaryDirectory() as folder, vramscope.record(folder, quiet=True, every=3) as recorder:
        for _ in range(40):
            deep(DEPTH, lambda: allocate(n_blocks // 40))
        for _ in range(3 * STEPS):
            with recorder.phase("forward"):
                deep(DEPTH, step)
            del live[-RENEWED:]
            allocate(RENEWED)
            recorder.step()
    ours = {name: each[2:] for name, each in ours.items()}
    return {"blocks": n_blocks, "ours": ours, "torch": _floors(lambda: deep(DEPTH, step))}


def _time_switches(found: dict[str, list[float]]) -> None:
    for name, key in (("_rest", "vramscope: off"), ("go_on", "vramscope: on")):
        setattr(Stretches, name, _timed(getattr(Stretches, name), found[key]))


def _timed(switch: Callable[[Stretches], None], into: list[float]) -> Callable[[Stretches], None]:
    def timed(stretches: Stretches) -> None:
        was_on, start = stretches.is_on, time.thread_time()
        switch(stretches)
        if stretches.is_on != was_on:
            into.append(1e3 * (time.thread_time() - start))

    return timed


def _floors(step: Callable[[], None]) -> dict[str, list[float]]:
    """Return the milliseconds that torch's own calls take."""
    on = lambda: torch.cuda.memory._record_memory_history(  # noqa: E731
        max_entries=250_000, stacks="python", context="alloc"
    )
    off = lambda: torch.cuda.memory._record_memory_history(enabled=None)  # noqa: E731
    snapshot = torch.cuda.memory._snapshot
    found = {
        "torch: history on": [_ms(on) for _ in range(CALLS)],
        "torch: history off": [_ms(off) for _ in range(CALLS)],
        "torch: a snapshot of the blocks": [_ms(snapshot) for _ in range(CALLS)],
    }
    on()
    step()
    found["torch: a snapshot of the blocks and 300 events"] = [_ms(snapshot) for _ in range(CALLS)]
    return found


def _ms(do: Callable[[], object]) -> float:
    gc.disable()
    start = time.thread_time()
    do()
    taken = 1e3 * (time.thread_time() - start)
    gc.enable()
    return taken


if __name__ == "__main__":
    sys.stdin.readline()
    if torch.cuda.get_device_name() == "Stand-in GPU 0":
        torch.backends.cudnn.enabled = False
    print(json.dumps(measured(json.loads(sys.argv[1])["blocks"])), flush=True)
    time.sleep(0.3)
