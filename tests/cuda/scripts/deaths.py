"""``python deaths.py FOLDER``: trainings to which something bad happens, each without us and recorded.

Each prints what it computed and what torch reported about its memory, so that the two can be compared.
Recorded, it records into ``FOLDER/KIND``.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from children import Work, in_child, linger
from torch import Tensor, nn

N_STEPS = 6


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((64,), float(index))


def oom_caught(_: nn.Module) -> None:
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("out of memory, and on we go")


def oom_uncaught(_: nn.Module) -> None:
    torch.empty(1 << 42, dtype=torch.uint8, device="cuda")


def killed_in_backward(model: nn.Module) -> None:
    # What is older than two seconds must be on disk.
    time.sleep(2.5)
    result = model(torch.randn(32, 64, device="cuda"))
    result.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    result.sum().backward()


def exits_at_once(_: nn.Module) -> None:
    time.sleep(2.5)
    sys.stdout.flush()
    os._exit(7)


def disk_full(_: nn.Module) -> None:
    """No file may grow from here on; a full disk fails the same call."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


def forks(_: nn.Module) -> None:
    child = os.fork()
    if child == 0:
        print("child", sum(range(10)), flush=True)
        sys.exit(0)
    print("child ended with", os.waitpid(child, 0)[1])
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
    print("loaded", [float(batch.sum()) for batch in loader])


def hooks_raise(model: nn.Module) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a hook of the user's")

    handle = model[0].register_forward_hook(fail)
    try:
        model(torch.randn(32, 64, device="cuda"))
    except ValueError as error:
        print("forward:", error)
    handle.remove()
    result = model(torch.randn(32, 64, device="cuda"))
    result.register_hook(fail)
    try:
        result.sum().backward()
    except ValueError as error:
        print("backward:", error)
    time.sleep(0.1)  # autograd's thread may still let go of what the failed backward made


def moment() -> dict[str, list[int]]:
    stats = torch.cuda.memory_stats()
    counts = ("allocation.all.allocated", "allocation.all.freed", "active.all.freed")
    names = ("allocated", "active", "reserved", "requested")
    return {
        "counts": [stats[name] for name in counts],
        "bytes": [stats[f"{name}_bytes.all.current"] for name in names],
        "live": stats["allocation.all.current"],
        "peak": [stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]],
    }


HAPPENS: dict[str, dict[int, Callable[[nn.Module], None]]] = {
    "survives": {1: oom_caught, 2: forks, 3: hooks_raise},
    "oom_uncaught": {3: oom_uncaught},
    "killed_in_backward": {3: killed_in_backward},
    "exits_at_once": {3: exits_at_once},
    "disk_full": {3: disk_full},
}
"""Kind → after which step what happens."""


def train(happens: dict[int, Callable[[nn.Module], None]]) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(N_STEPS):
        loss = model(torch.randn(32, 64, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps({"step": number, "loss": loss.item(), **moment()}), flush=True)
        if number in happens:
            happens[number](model)


def run(directory: Path | None, kind: str) -> None:
    torch.cuda.init()
    print(json.dumps(moment()))
    recorder = nullcontext()
    if directory is not None:
        import vramscope

        recorder = vramscope.record(directory, quiet=True)
    try:
        with recorder:
            train(HAPPENS[kind])
        print(json.dumps({"end": torch.rand(4).tolist(), **moment()}))
    finally:
        linger()


def main(folder: Path) -> Work | None:
    for kind in HAPPENS:
        for mode, directory in (("plain", None), ("recorded", folder / kind)):
            work = in_child(partial(run, directory, kind), folder / f"{kind}-{mode}")
            if work is not None:
                return work
    return None


if __name__ == "__main__":
    work = main(Path(sys.argv[1]))
    if work is not None:
        work()
