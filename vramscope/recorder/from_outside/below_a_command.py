"""Begins the recording of a process below ``vramscope run COMMAND``, after it has imported torch."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from vramscope.recorder import record
from vramscope.recorder.configured import DETACHED, RECORDED_RANK
from vramscope.recorder.from_outside.ending import leave, when_process_ends
from vramscope.recorder.from_outside.listener import allow_attach
from vramscope.recorder.process.launchers import launch_of

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
    """Begin recording this process if it trains, and end with it; or let it be attached to, if so asked.

    Launchers and the helpers of a recorded process import torch and train nothing. A process that
    ``multiprocessing`` spawned is recorded from the end of its ``init_process_group`` or from its first
    optimizer on: without these it is a worker of a data loader, or another helper.
    """
    if is_no_training(sys.orig_argv) or _is_helper():
        return
    start = allow_attach if os.environ.get(DETACHED) else _start
    if "--multiprocessing-fork" in sys.orig_argv:
        _when_it_trains(start)
    else:
        start()


def is_no_training(command: Sequence[str]) -> bool:
    """Whether a command line of Python runs a launcher or a helper of torch.

    *command* is the interpreter, its options, then a script or ``-m`` and a module, as in ``sys.orig_argv``.
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
    when_process_ends(lambda error: leave(recorder, error))


def _when_it_trains(start: Callable[[], None]) -> None:
    """Call *start* once: when this process has joined its process group, or makes its first optimizer."""
    distributed: Any = sys.modules.get("torch.distributed")
    optimizers: Any = sys.modules.get("torch.optim")
    undo: list[Callable[[], None]] = []

    def begin_once() -> None:
        if undo:
            while undo:
                undo.pop()()
            start()

    if hasattr(distributed, "init_process_group"):
        _wrap((distributed, "init_process_group"), undo, after=begin_once)
    if hasattr(optimizers, "Optimizer"):
        _wrap((optimizers.Optimizer, "__init__"), undo, before=begin_once)


def _wrap(
    place: tuple[Any, str],
    undo: list[Callable[[], None]],
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Call *before* and *after* around a function until *undo*, which leaves another one's wrapper alone."""
    home, name = place
    original = getattr(home, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before()
        result = original(*args, **kwargs)
        after()
        return result

    def restore() -> None:
        if getattr(home, name) is wrapped:
            setattr(home, name, original)

    setattr(home, name, wrapped)
    undo.append(restore)
