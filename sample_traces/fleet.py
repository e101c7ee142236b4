"""Four ranks of one training, of which rank 2 is given twice the batch: ``vramscope ranks`` names it.

Run it as ``python sample_traces/fleet.py``: it starts the four processes with the environment that a launcher
sets. On the simulated device; nothing is sent between the ranks.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RANKS, STEPS, BATCH = 4, 8, 32


def train(directory: str) -> None:
    import torch
    from torch import nn

    import vramscope

    torch.manual_seed(0)
    torch.optim.SGD([torch.zeros(1)])  # torch imports its compiler with the first optimizer
    batch = BATCH * 2 if os.environ["RANK"] == "2" else BATCH
    with vramscope.record(directory, device="simulated"):
        model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(STEPS):
            rows = torch.randn(batch * 16, 256)
            hidden = model(rows)
            hidden.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def main(directory: str = str(HERE / "fleet")) -> None:
    if "RANK" in os.environ:
        train(directory)
        return
    shutil.rmtree(directory, ignore_errors=True)
    command = [sys.executable, __file__, directory]
    ranks = [
        os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        for rank in range(RANKS)
    ]
    running = [subprocess.Popen(command, env=environment) for environment in ranks]
    assert [process.wait() for process in running] == [0] * RANKS


if __name__ == "__main__":
    main(*sys.argv[1:])
