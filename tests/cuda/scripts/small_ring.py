"""``python small_ring.py FOLDER``: a history of 1000 entries, twice too small for what happens at once.

Prints a JSON line per mark: what torch reported there. Records into ``FOLDER/run``.
"""

import json
import sys
from pathlib import Path

import children
import torch
from probe import moment, segments
from torch import nn

import vramscope
import vramscope.capture.cuda.history

RING = 1000
N_LOST_PAIRS = 2000


def main(folder: Path) -> None:
    vramscope.capture.cuda.history.MAX_ENTRIES = RING
    torch.backends.cudnn.enabled = False  # the stand-in has none
    torch.optim.SGD([torch.zeros(1)])
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    with vramscope.record(folder / "run", quiet=True) as recorder:

        def here(name: str) -> None:
            recorder.mark(name)
            print(json.dumps({"name": name, "segments": segments(), **moment()}), flush=True)

        def step() -> None:
            model(torch.randn(32, 64, device="cuda")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        def steps() -> None:
            """Enough of them that the history is read meanwhile."""
            for _ in range(8):
                step()

        here("begin")
        steps()
        here("before")
        steps()
        for _ in range(N_LOST_PAIRS):  # one after the other, and nothing left of them
            torch.empty(5000, device="cuda")
        steps()
        here("after the first")
        steps()
        for number in range(N_LOST_PAIRS):  # and some stay, in segments of their own
            made = torch.empty(300_000, device="cuda")
            if number % 500 == 0:
                kept.append(made)
        del made
        steps()
        here("after the second")
        kept.clear()
        steps()
        here("end")
    children.linger()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
