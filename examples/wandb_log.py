"""Every step's peak in a run of Weights & Biases (here offline), and the page of the recording beside it."""

import wandb
from _training import train

from vramscope.integrations.loop import VramscopeHandler
from vramscope.integrations.wandb import WandbLog

settings = wandb.Settings(silent=True)
with wandb.init(project="example", mode="offline", settings=settings) as run:
    with VramscopeHandler("traces/wandb", log=WandbLog(), every=1, device="simulated", quiet=True) as handler:
        train(handler)
    print(f"step {run.summary['vram/step']}: {run.summary['vram/peak_allocated_bytes']:,} bytes at the peak")
