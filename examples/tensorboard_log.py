"""Every step's peak in TensorBoard, and the page of the recording in its log directory."""

from pathlib import Path

from _training import train

from vramscope.integrations.loop import VramscopeHandler
from vramscope.integrations.tensorboard import TensorBoardLog

log = TensorBoardLog("runs/example")
with VramscopeHandler("traces/tensorboard", log=log, every=1, device="simulated", quiet=True) as handler:
    train(handler)
print(*sorted(file.name.split(".")[0] for file in Path("runs/example").iterdir()))
