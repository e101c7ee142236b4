"""``python endless.py FOLDER``: a training that outgrows the cap of its trace many times.

Prints a JSON line of torch's own peaks per step, of a run without us that resets them, and one per mark: what
torch reported there. Records into ``FOLDER/run``.
"""

import gc
import json
import sys
from importlib import import_module
from pathlib import Path

import torch
from probe import moment, segments
from torch import nn

import vramscope
import vramscope.capture.cuda

CAP = 200_000
N_STEPS = 60


def train(on_step, n_steps=N_STEPS) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(4))
    )
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(n_steps):
        # Three sizes in turn, so that neighbouring steps have different peaks.
        batch = torch.randn(32 * (1 + number % 3 + number // 20), 64, device="cuda")
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(number)


def plain() -> list[int]:
    peaks = []

    def ended(_: int) -> None:
        peaks.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    train(ended)
    gc.collect()
    return peaks


def main(folder: Path) -> None:
    import_module("vramscope.recorder.options")._LEAST_SIZE = 0
    import_module("vramscope.capture.cuda.reading_pace")._BOUNDARY_S = 0.0
    torch.backends.cudnn.enabled = False  # the stand-in has none
    train(lambda _: None, 3)  # what the libraries allocate once
    torch.cuda.reset_peak_memory_stats()
    print(json.dumps(plain()), flush=True)
    with vramscope.record(folder / "run", max_size=CAP, quiet=True) as recorder:

        def ended(number: int) -> None:
            recorder.step()
            if number in (N_STEPS - 3, N_STEPS - 1):
                recorder._pipeline.writer.compact()
                recorder.mark(f"step {number}")
                print(json.dumps({"name": f"step {number}", "segments": segments(), **moment()}), flush=True)

        train(ended)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
