"""Measures what the search for leaks costs the training thread: ``python benchmarks/leaks_cost.py [DEVICE]``.

It measures the cost per step without a leak, as a share of a step of 10 ms, one search for holders in a
heap of millions of objects, and the search at a block's end in heaps of a million. The figures are CPU
seconds of the thread, so that a busy machine does not count; clock seconds are printed beside them.
"""

import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import vramscope
from vramscope.capture.holders import search
from vramscope.capture.holders.growth_watch import _END_WALK_S, Watch

STEPS, STEP_S = 300, 0.010
OBJECTS = 3_000_000
AT_END = 1_000_000


class Row:
    """An object with a dict of its own."""

    def __init__(self, number: int) -> None:
        self.number, self.tags = number, [number]


class SlottedRow:
    """An object without one."""

    __slots__ = ("number", "tags")

    def __init__(self, number: int) -> None:
        self.number, self.tags = number, [number]


class Ring:
    """One of two objects that refer to each other."""

    def __init__(self, number: int) -> None:
        self.number, self.other = number, None if number < 0 else Ring(-1)
        if self.other is not None:
            self.other.other = self


SHAPES = {
    "lists": lambda number: [[number]],
    "dicts of texts": lambda number: {"a": f"a{number}", "b": f"b{number}", "c": [number]},
    "objects": Row,
    "objects with slots": SlottedRow,
    "pairs in circles": Ring,
}
"""What the items of a heap are: two objects of the collector each."""


def per_step(device: str) -> tuple[float, int]:
    """Return the seconds per step and the number of searches, which has to be 0."""
    spent, walks, tick = [], [], Watch.tick

    def timed(watch, kind, identity, frame):  # noqa: ANN001, ANN202
        begin = time.thread_time_ns()
        tick(watch, kind, identity, frame)
        spent.append(time.thread_time_ns() - begin)
        walks.append(watch.n_walks)

    Watch.tick = timed
    where = "cuda" if device == "cuda" else "cpu"
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(where)
    optimizer = torch.optim.AdamW(model.parameters())
    with (
        tempfile.TemporaryDirectory() as folder,
        vramscope.record(Path(folder) / "run", device=device, quiet=True),
    ):
        for _ in range(STEPS):
            model(torch.randn(32, 64, device=where)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    Watch.tick = tick
    return sum(spent) / 1e9 / STEPS, max(walks)


def one_search() -> tuple[float, float, int]:
    """Return CPU and clock seconds of the search that a growing loop starts, and the number of objects."""
    data = [[[number] for number in range(3000)] for _ in range(OBJECTS // 3000)]
    n_objects = len(gc.get_objects())
    begin, cpu = time.perf_counter(), time.thread_time()
    search(0.5, sys._getframe())
    found = time.thread_time() - cpu, time.perf_counter() - begin, n_objects
    del data
    return found


def searches_at_end() -> Iterator[tuple[str, int, float, bool]]:
    """Yield the shape of a heap, its objects, the CPU seconds of the search at an end, and if it saw all."""
    for name, make in SHAPES.items():
        before = len(gc.get_objects())
        data = [[make(number) for number in range(1000)] for _ in range(AT_END // 2000)]
        n_objects = len(gc.get_objects()) - before
        cpu = time.thread_time()
        found = search(_END_WALK_S, sys._getframe(), at_end=True)
        yield name, n_objects, time.thread_time() - cpu, found.is_complete
        del data, found


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "simulated"
    if device == "cuda":
        torch.backends.cudnn.enabled = False
    seconds, walks = per_step(device)
    print(
        f"{device}: {1e6 * seconds:.1f} us a step = {100 * seconds / STEP_S:.3f} % of 10 ms; {walks} searches"
    )
    cpu, clock, n_objects = one_search()
    print(
        f"a search among {n_objects:,} objects: {cpu:.2f} s of CPU, {clock:.2f} s by the clock (bound 0.5; 2)"
    )
    for name, n_objects, cpu, is_complete in searches_at_end():
        print(
            f"at an end, {n_objects:,} objects ({name}): {cpu:.2f} s of CPU (bound 0.3), "
            f"{'all of them' if is_complete else 'a part'} seen"
        )
    time.sleep(0.3)  # autograd's thread lets go of Python objects


if __name__ == "__main__":
    main()
