"""One run of a real training program for ``overhead_programs.py``: plain, recorded, or as dear as the floor.

    python benchmarks/_overhead_program.py \
        '{"script": "train.py", "args": […], "steps": 60, "kind": "recorded", "trace": "…"}'

The program is unmodified. A hook on every optimizer takes the time of each step and a checksum of the
parameters after the first steps, and ends the program after the last one. Prints one JSON object as its last
line.
"""

import json
import os
import runpy
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

N_CHECKED = 15
"""Number of steps after which the parameters are compared: a difference grows from there on."""


class EnoughError(Exception):
    """The program has made the steps that are measured."""


class Observer:
    """Takes the times of the program's optimizer steps."""

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []
        self.checksums: list[int] = []

    def step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Take the times after a step; end the program after the last."""
        if len(self.checksums) < N_CHECKED:
            self.checksums.append(_checksum(optimizer))
        self.cpu_s.append(time.process_time())
        self.wall_s.append(time.perf_counter())
        if len(self.cpu_s) >= self._n_steps:
            raise EnoughError


def main() -> None:
    """Run the program, and print what the observer found."""
    asked = json.loads(sys.argv[1])
    if torch.cuda.is_available() and torch.cuda.get_device_name().startswith("Stand-in"):
        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_cudnn_sdp(False)
    observer = Observer(asked["steps"])
    register_optimizer_step_post_hook(observer.step_ends)
    script = Path(asked["script"])
    sys.argv = [str(script), *asked["args"]]
    sys.path[0] = str(script.parent)
    torch.manual_seed(0)
    try:
        with _around(asked["kind"], asked["trace"]):
            runpy.run_path(str(script), run_name="__main__")
    except EnoughError:
        pass
    found = {"cpu_s": observer.cpu_s, "wall_s": observer.wall_s, "checksums": observer.checksums}
    sys.stdout.flush()
    print("\n" + json.dumps(found), flush=True)
    # Worker processes of a data loader that was left in the middle of an epoch may be slow to end.
    os._exit(0)


def _around(kind: str, trace: str) -> Any:
    if kind == "plain":
        return nullcontext()
    if kind == "floor":
        return _history() if torch.cuda.is_available() else Empty()
    import vramscope

    return vramscope.record(trace, quiet=True)


class Empty(TorchDispatchMode):
    """Sees every operator and does nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Avoid torch's wrapper, which takes 1 µs a call, as vramscope's mode does."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator."""
        return func(*args, **(kwargs or {}))


@contextmanager
def _history() -> Iterator[None]:
    """Keep torch's own history of the allocator, with Python's stacks as vramscope asks for them."""
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=250_000)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _checksum(optimizer: Any) -> int:
    """CRC of the optimizer's parameters; on the stand-in, whose memory holds no values, of nothing."""
    found = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.device.type == "cpu":
                found = zlib.crc32(parameter.detach().contiguous().view(-1).numpy().tobytes(), found)
    return found


if __name__ == "__main__":
    main()
