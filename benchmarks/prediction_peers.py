"""Predictions beside those of other tools, on the same trainings: ``python benchmarks/prediction_peers.py``.

The truth is torch's own allocator on the stand-in. ``MemTracker`` is torch's, in fake tensors on ``cuda``, as
its documentation shows. The formulas are the published ones: accelerate's ``estimate-memory`` takes four
times the parameters for training with Adam, DeepSpeed's ``estimate_zero2_model_states_mem_needs`` takes
20 bytes for each parameter on one GPU. Neither knows activations. 64 MiB of every genuine peak are the two
workspaces that cuBLAS takes on Hopper, which no other tool counts.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from vramscope.units import format_bytes

HERE = Path(__file__).parent
ROOT = HERE.parent
STANDIN = Path(os.environ.get("STANDIN", ROOT / ".cache" / "standin" / "2.13.0" / "python"))
LONGEST_S = 900
BATCH, LENGTH = 16, 128

CHILD = """
import json, os, sys
sys.path.insert(0, {here!r})
import torch
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
import prediction_peers as peers
for name in {names!r}:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            found = peers.{ask}(name)
        except Exception as error:
            found = " ".join(f"{{type(error).__name__}}: {{error}}".split())[:120]
        print("ANSWER", json.dumps([name, found]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="gpt,encoder,mixer,denoiser,recommender")
    parser.add_argument("--out", type=Path, default=HERE / "PREDICTION_PEERS.md")
    args = parser.parse_args()
    if not STANDIN.exists():
        print("no stand-in for a GPU: make standin", file=sys.stderr)
        return 1
    names = args.models.split(",")
    with_cuda = str(STANDIN)
    homes = {"genuine": with_cuda, "ours": sys.executable, "tracked": with_cuda, "formulas": sys.executable}
    found = {ask: _asked(ask, names, home) for ask, home in homes.items()}
    text = page(names, found)
    print(text)
    args.out.write_text(text)
    return 0


def _asked(ask: str, names: list[str], python: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    text = CHILD.format(here=str(HERE), names=names, ask=ask)
    command = [python, "-c", text]
    done = subprocess.run(command, check=True, env=environment, timeout=LONGEST_S, stdout=subprocess.PIPE)
    lines = done.stdout.decode().splitlines()
    return dict(json.loads(line[7:]) for line in lines if line.startswith("ANSWER "))


def page(names: list[str], found: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown: the genuine peak, and how far each tool is off."""
    lines = ["# Predictions beside other tools", "", " ".join((__doc__ or "").split("\n\n")[1].split()), ""]
    lines += [
        f"Batch {BATCH}, sequence {LENGTH}, AdamW, float32, torch 2.13. Percentages are of the genuine peak.",
        "",
    ]
    header = (
        "training",
        "allocated",
        "reserved",
        "vramscope",
        "reserved",
        "MemTracker",
        "accelerate",
        "ZeRO-2",
    )
    lines += [f"| {' | '.join(header)} |", f"| --- {'| --: ' * (len(header) - 1)}|"]
    for name in names:
        allocated, reserved = found["genuine"][name]
        ours, by_formula = found["ours"][name], found["formulas"][name]
        cells = [name, format_bytes(allocated), format_bytes(reserved)]
        cells += [_off(ours[0], allocated), _off(ours[1], reserved), _off(found["tracked"][name], allocated)]
        cells += [_off(each, allocated) for each in by_formula]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Only vramscope predicts reserved memory.", ""])


def _off(predicted: Any, genuine: int) -> str:
    return predicted if isinstance(predicted, str) else f"{100 * (predicted / genuine - 1):+.2f} %"


# ----------------------------------------------------------------------------------- in the children


def genuine(name: str) -> list[int]:
    """Return torch's own peaks."""
    import torch

    _train(name)
    return [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]


def ours(name: str) -> list[int]:
    """Return the peaks of the dry run."""
    from vramscope import predict

    found = predict(lambda: _train(name))
    return [found.peak_allocated_bytes, found.peak_reserved_bytes]


def tracked(name: str) -> int:
    """Return the peak that torch's MemTracker finds."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(), torch.device("cuda"):
        model, optimizer, step = _parts(name)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        for _ in range(2):
            with tracker:
                step()
            tracker.reset_mod_stats()
    snapshot = tracker.get_tracker_snapshot("peak")
    return max(each["Total"] for device, each in snapshot.items() if device.type == "cuda")


def formulas(name: str) -> list[int]:
    """Return the bytes by the formulas of accelerate and of DeepSpeed's ZeRO-2 on one GPU."""
    import _rerun_program as programs

    count = sum(each.numel() for each in programs.MODELS[name][0](False, LENGTH).parameters())
    return [4 * 4 * count, 20 * count]


def _parts(name: str) -> tuple[Any, Any, Any]:
    import _rerun_program as programs
    import torch

    make, batch = programs.MODELS[name]
    model = make(False, LENGTH)
    if next(model.parameters()).device.type != "cuda":
        model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        given = batch(BATCH, LENGTH)
        programs.loss_of(model(*given), given, name).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def _train(name: str) -> None:
    _, _, step = _parts(name)
    for _ in range(3):
        step()


if __name__ == "__main__":
    sys.exit(main())
