"""Runs scripts of the corpus recorded: ``python tests/leaks/run.py OUT DEVICE STEPS SCRIPT …``.

Each script has a ``main(steps, device)``. Comments in it say what is to be found: ``# LEAK: cause`` on every
line that allocates what stays, ``# HOLDER: name`` once, ``# KEPT`` on the line that keeps it.
"""

import gc
import importlib.util
import sys
import time
from pathlib import Path

import torch

import vramscope


def load(script: Path):
    """The script as a module of its own, as if imported."""
    name = f"leaks_{script.parent.name}_{script.stem}"
    spec = importlib.util.spec_from_file_location(name, script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def record(script: Path, out: Path, device: str, steps: int) -> None:
    """Run one script, recorded, after what earlier ones left in memory is dropped."""
    torch.manual_seed(0)
    module = load(script)
    gc.collect()
    with vramscope.record(out, device="cuda" if device == "cuda" else "simulated", quiet=True):
        module.main(steps, "cuda" if device == "cuda" else "cpu")
    del sys.modules[module.__name__]


def main() -> None:
    out, device, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if device == "cuda":
        torch.backends.cudnn.enabled = False
    torch.set_num_threads(1)  # small tensors; threads would only wait for each other
    torch.optim.SGD([torch.zeros(1)])  # imports the compiler
    # No collection and no search goes through torch's own objects with every script: 0.3 s of CPU each time,
    # and on a busy machine all of the time that a search has. Nor are they searched as what a program froze.
    gc.collect()
    gc.freeze()
    gc.get_freeze_count = lambda: 0
    for script in map(Path, sys.argv[4:]):
        record(script, out / f"{script.parent.name}-{script.stem}-{steps}", device, steps)
    time.sleep(0.3)  # autograd's thread lets go of Python objects


if __name__ == "__main__":
    main()
