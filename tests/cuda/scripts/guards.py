"""What the recorder must never call fails when it does; the program itself may."""

import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CALLS = (
    (torch._C, "_cuda_synchronize"),
    (torch._C, "_cuda_emptyCache"),
    (torch._C, "_cuda_resetPeakMemoryStats"),
    (torch._C, "_cuda_resetAccumulatedMemoryStats"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Event, "synchronize"),
    (torch.Tensor, "item"),
    (torch.Tensor, "cpu"),
    (torch.Tensor, "tolist"),
    (torch.Tensor, "__bool__"),
)
WRAPPED = ("step", "zero_grad", "_engine_run_backward", "__next__", "forward")
"""Functions of the program that we stand around: what they call, the program calls."""
STOOD_AROUND = "_cuda_emptyCache"
"""A guarded function that we stand around ourselves: whoever calls our wrapper has called it."""
OURS = f"{Path(__file__).parents[3] / 'vramscope'}/"


class Guards:
    """From now on until the process ends."""

    def __init__(self) -> None:
        self.ours: list[str] = []
        """What our code called, with its place."""
        self.theirs: Counter[str] = Counter()
        """What the program called: proof that the guards stand."""
        for place, name in CALLS:
            if hasattr(place, name):
                setattr(place, name, self._guarded(getattr(place, name), name))

    def _guarded(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            caller, called = sys._getframe(1), name
            if name == STOOD_AROUND and caller.f_code.co_filename == f"{OURS}capture/cuda/emptied_cache.py":
                caller = caller.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(OURS):
                caller, called = caller.f_back, caller.f_code.co_name
            if called in WRAPPED:
                caller = None
            if caller is not None:
                self.ours.append(f"{name} from {caller.f_code.co_filename}:{caller.f_lineno}")
                raise AssertionError(self.ours[-1])
            self.theirs[name] += 1
            return call(*args, **kwargs)

        return guarded
