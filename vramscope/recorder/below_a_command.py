"""Begins the recording of a process below ``vramscope run COMMAND``, after it has imported torch."""

import atexit
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from vramscope.recorder import Recorder, record
from vramscope.recorder.configured import RECORDED_RANK
from vramscope.recorder.launchers import launch_of

_PROGRAMS = frozenset({"torchrun", "accelerate", "accelerate-launch", "deepspeed", "vramscope"})
_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch._inductor",
    "accelerate.commands",
    "deepspeed.launcher",
    "vramscope",
)
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Options of Python whose value is the next word."""
_COMPILER = os.path.join("torch", "_inductor", "compile_worker")  # noqa: PTH118 -- a part of a path


def begin() -> None:
    """Begin recording this process if it trains, and end with it.

    Launchers and the helpers of a recorded process import torch and train nothing. A process that
    ``multiprocessing`` spawned is recorded from the end of its ``init_process_group`` on: without one it is
    a worker of a data loader, or another helper.
    """
    if is_no_training(sys.orig_argv) or _is_helper():
        return
    if "--multiprocessing-fork" in sys.orig_argv:
        _after_process_group(_start)
    else:
        _start()


def is_no_training(command: Sequence[str]) -> bool:
    """Whether a command line of Python runs a launcher or a helper of torch.

    Parameters
    ----------
    command
        The interpreter, its options, then a script or ``-m`` and a module, as in ``sys.orig_argv``.
    """
    words = iter(command[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word == "-m":
            name = next(words, "")
            return any(name == module or name.startswith(f"{module}.") for module in _MODULES)
        elif word == "-c":
            return False
        elif not word.startswith("-"):
            return PurePath(word).name in _PROGRAMS or _COMPILER in word
    return False


def _is_helper() -> bool:
    """Whether a recorded process of the same rank started this one, with its environment."""
    launch = launch_of(os.environ)
    return bool(launch.launcher) and os.environ.get(RECORDED_RANK) == str(launch.rank)


def _start() -> None:
    recorder = record()
    recorder.__enter__()
    launch = launch_of(os.environ)
    if launch.launcher:
        os.environ[RECORDED_RANK] = str(launch.rank)
    # It runs before the recorder's own, which would close the block without the error.
    atexit.register(_end, recorder)


def _end(recorder: Recorder) -> None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    recorder.__exit__(
        type(error) if error is not None else None, error, getattr(error, "__traceback__", None)
    )


def _after_process_group(start: Callable[[], None]) -> None:
    """Call *start* once, when this process has joined its process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    join = getattr(distributed, "init_process_group", None)
    if distributed is None or join is None:
        return

    @functools.wraps(join)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        joined = join(*args, **kwargs)
        if distributed.init_process_group is init_process_group:
            distributed.init_process_group = join
            start()
        return joined

    distributed.init_process_group = init_process_group
