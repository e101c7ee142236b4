"""Measures what recording costs a step of several kinds: transformers, ResNets, a CUDA graph, compiled code.

Each kind runs in a process of its own: blocks of steps without and with recording alternate, and the result
is the median of the ratios of each pair, with the least and the greatest.

    python benchmarks/overhead_by_model.py [--pairs 5] [--steps 20] [--kinds …] [--out overhead_by_model.md]

Run it on a machine with a GPU, or in the stand-in, where nothing computes and the ratios are the worst
possible.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

Step = Callable[[], Any]
MODES = ("counters", "events")


def transformer(width: int, n_blocks: int, batch: tuple[int, int], *, compiled: bool = False) -> Step:
    """A transformer without attention masks, AdamW."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(width, max(width // 64, 1), 4 * width, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, n_blocks, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    run = torch.compile(model) if compiled else model

    def step() -> None:
        run(torch.randn(*batch, width, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def resnet(width: int, n_blocks: int, batch: int, size: int) -> Step:
    """Residual blocks of two convolutions with batch norm, SGD."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        """One block."""

        def __init__(self) -> None:
            super().__init__()
            conv = partial(nn.Conv2d, width, width, 3, padding=1, bias=False)
            self.body = nn.Sequential(conv(), nn.BatchNorm2d(width), nn.ReLU(), conv(), nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            """Add the block's output to its input."""
            return torch.relu(x + self.body(x))

    stem = nn.Conv2d(3, width, 7, stride=2, padding=3)
    model = nn.Sequential(stem, *(Residual() for _ in range(n_blocks))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step() -> None:
        model(torch.randn(batch, 3, size, size, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def graph(width: int, n_blocks: int) -> Step:
    """The replay of a captured forward."""
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(n_blocks))).cuda()
    still = torch.randn(64, width, device="cuda")
    with torch.no_grad():
        model(still)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            model(still)
    return captured.replay


KINDS: dict[str, Callable[[], Step]] = {
    "transformer, small": partial(transformer, 64, 4, (4, 32)),
    "transformer, large": partial(transformer, 1024, 12, (8, 512)),
    "ResNet, small": partial(resnet, 32, 8, 16, 32),
    "ResNet, large": partial(resnet, 256, 16, 32, 224),
    "CUDA graph": partial(graph, 1024, 24),
    "compiled transformer": partial(transformer, 512, 6, (8, 256), compiled=True),
}


def main() -> int:
    """Measure each kind; return 1 if one could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5, help="blocks without and with, each")
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    parser.add_argument("--kinds", default=";".join(KINDS), help="separated by semicolons")
    parser.add_argument("--limit", type=float, default=100, help="seconds that a kind may take")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help="one kind, measured in this process")
    asked = parser.parse_args()
    if asked.child:
        _prepare(asked.child)
        print(json.dumps(measured(KINDS[asked.child](), asked.pairs, asked.steps)))
        return 0
    rows = {kind: _in_a_process(kind, asked) for kind in asked.kinds.split(";")}
    text = table(rows)
    print(text)
    if asked.out:
        asked.out.write_text(text)
    return int(any(not row.get("absent", "skipped").startswith("skipped") for row in rows.values()))


def _prepare(kind: str) -> None:
    """Leave out what the stand-in has not: cuDNN, and kernels for compiled code."""
    import torch

    if torch.cuda.get_device_name().startswith("Stand-in"):
        torch.backends.cudnn.enabled = False
        if kind.startswith("compiled"):
            print(json.dumps({"absent": "skipped: the stand-in runs no kernels"}))
            sys.exit()


def measured(step: Step, n_pairs: int, n_steps: int) -> dict[str, Any]:
    """Return the seconds per step without and with each mode, by block."""
    found: dict[str, Any] = {f"{way} {mode}": [] for mode in MODES for way in ("off", "on")}
    with tempfile.TemporaryDirectory() as folder:
        for mode in MODES:
            recorder = _recorder(Path(folder) / mode, mode)
            with recorder:  # what is compiled or imported once is no cost of a step
                _seconds(step, 3)
            _seconds(step, 3)
            for _ in range(n_pairs):
                found[f"off {mode}"].append(_seconds(step, n_steps))
                with recorder:
                    found[f"on {mode}"].append(_seconds(step, n_steps))
    return found


def _recorder(folder: Path, mode: str) -> Any:
    import vramscope

    return vramscope.record(folder, device="cuda", mode=mode, quiet=True)


def _seconds(step: Step, n_steps: int) -> float:
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(n_steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / n_steps


def _in_a_process(kind: str, asked: argparse.Namespace) -> dict[str, Any]:
    sizes = ["--pairs", str(asked.pairs), "--steps", str(asked.steps)]
    command = [sys.executable, "-W", "ignore", __file__, "--child", kind, *sizes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=asked.limit, check=False)
    except subprocess.TimeoutExpired:
        return {"absent": f"not done after {asked.limit:g} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"absent": f"failed: {last[0][:150]}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table."""
    lines = ["| training | step without, ms | counters | events |", "| --- | ---: | ---: | ---: |"]
    for kind, row in rows.items():
        if "absent" in row:
            lines.append(f"| {kind} | {row['absent'].replace('|', '/')} | | |")
            continue
        off_ms = 1e3 * statistics.median([*row["off counters"], *row["off events"]])
        lines.append(f"| {kind} | {off_ms:.2f} | " + " | ".join(_ratios(row, mode) for mode in MODES) + " |")
    return "\n".join(lines) + "\n"


def _ratios(row: dict[str, Any], mode: str) -> str:
    each = [on / off for off, on in zip(row[f"off {mode}"], row[f"on {mode}"], strict=True)]
    return f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"


if __name__ == "__main__":
    sys.exit(main())
