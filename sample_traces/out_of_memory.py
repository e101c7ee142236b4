"""A training that runs out of memory: one batch is three times as long as all others.

Run it as ``python sample_traces/out_of_memory.py``: the simulated device has 40 MiB. The request that
fails in step 4 is recorded, and the training goes on without a limit: its memory is that of the host.
"""

import shutil
import sys
from pathlib import Path

import torch
from torch import nn

import vramscope

HERE = Path(__file__).parent
LENGTHS = (64, 64, 64, 64, 192, 64)


def main(directory: str = str(HERE / "out-of-memory")) -> None:
    torch.manual_seed(0)
    shutil.rmtree(directory, ignore_errors=True)
    torch.optim.SGD([torch.zeros(1)])  # torch imports its compiler with the first optimizer
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(128, 512))
    optimizer = torch.optim.AdamW(model.parameters())
    with vramscope.record(directory, device="simulated", capacity="40 MiB"):
        for length in LENGTHS:
            batch = torch.randn(8, length, 128)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:])
