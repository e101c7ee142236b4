"""``python leak_runs.py FOLDER``: programs that grow, by torch's own history and by ours.

``whole.pickle`` and ``ring.pickle`` are snapshots of torch's own history, with Python stacks only; most of
the second is lost. ``outside`` and ``fragmented`` are recordings. ``levels.json`` has the
same leak with and without us watching.
"""

import ctypes
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from children import cuda_runtime
from torch import nn

import vramscope

MIB = 1 << 20
OUTPUTS = 128 * 256 * 4


class Training:
    """Keeps the output of every step where it is asked to."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.outputs: list[torch.Tensor] = []

    def step(self, *, keeps: bool) -> None:
        out = self.model(torch.randn(128, 64, device="cuda"))  # LEAK
        out.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if keeps:
            self.outputs.append(out.detach())


def history(file: Path, steps: int, entries: int, *, keeps: bool = True) -> None:
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=entries)
    training = Training()
    for _ in range(steps):
        training.step(keeps=keeps)
    torch.cuda.memory._dump_snapshot(str(file))
    torch.cuda.memory._record_memory_history(enabled=None)


def outside(folder: Path) -> None:
    runtime, training = cuda_runtime(), Training()
    with vramscope.record(folder, quiet=True):
        for _ in range(40):
            training.step(keeps=False)
            assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(4 * MIB)) == 0
            time.sleep(0.05)  # the driver is asked ten times a second


def fragmented(folder: Path) -> None:
    """Blocks of more than 10 MiB, each a little larger than all before: none fits into what is free."""
    with vramscope.record(folder, quiet=True) as recorder:
        for step in range(20):
            torch.empty((20 + 2 * step) * MIB, dtype=torch.uint8, device="cuda")
            recorder.step()


def grown(folder: Path | None) -> list[int]:
    """Bytes that torch counts after every step of a leaking loop, with us watching or (None) not."""
    training, levels = Training(), []
    before = torch.cuda.memory_allocated()
    with nullcontext() if folder is None else vramscope.record(folder, quiet=True):
        for _ in range(30):
            training.step(keeps=True)
            levels.append(torch.cuda.memory_allocated() - before)
    return levels


def main(folder: Path) -> None:
    torch.backends.cudnn.enabled = False  # the stand-in has none
    history(folder / "whole.pickle", 12, 100_000)
    history(folder / "ring.pickle", 40, 600)
    history(folder / "clean.pickle", 40, 600, keeps=False)
    outside(folder / "outside")
    levels = {"plain": grown(None), "watched": grown(folder / "watched")}
    (folder / "levels.json").write_text(json.dumps(levels))
    torch.cuda.empty_cache()
    fragmented(folder / "fragmented")
    time.sleep(0.3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
