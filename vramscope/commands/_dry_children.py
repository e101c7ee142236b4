"""Dry runs of a program in processes of their own, so that one run never sees what another one left.

Every child is forked from a process that has imported torch and has never run anything: it starts in
milliseconds. The answer comes back through a pipe.
"""

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from vramscope.commands._script import Script, execute
from vramscope.errors import CaptureError, UsageError, VramscopeError

if TYPE_CHECKING:
    from vramscope.capture.predicted.changes import DryChange
    from vramscope.dry_run import Prediction

_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class DryTrial:
    """One dry run of a program."""

    program: Script
    given: tuple[str, ...]
    """The name of the program as the user gave it, and its arguments."""
    card: str
    capacity: str | int | None = None
    steps: int | None = 3
    output: str | None = None
    change: "DryChange | None" = None
    ranks: int | None = None
    """The number of ranks of a program that runs on several cards."""
    is_quiet: bool = True
    """Whether what the program prints is dropped; else it goes to stderr."""

    def with_arguments(self, arguments: Sequence[str]) -> "DryTrial":
        """Return the same trial with other arguments of the program."""
        return replace(self, given=(self.given[0], *arguments))


def run_dry(trial: DryTrial) -> "Prediction":
    """Return the answer of one dry run; raises VramscopeError with one sentence where there is none."""
    ((_, found),) = run_all_dry([trial], 1)
    if isinstance(found, VramscopeError):
        raise found
    return found


def run_all_dry(
    trials: Sequence[DryTrial], n_workers: int | None = None
) -> "Iterator[tuple[int, Prediction | VramscopeError]]":
    """Yield the number of each trial and its answer as soon as it is known; Ctrl-C ends all of them."""
    import_torch()
    waiting = list(enumerate(trials))[::-1]
    running: dict[Connection, tuple[int, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (n_workers or _n_cores()):
                number, trial = waiting.pop()
                process, pipe = _begun(trial)
                running[pipe] = number, process
            ready = wait(list(running))
            for pipe in [each for each in running if each in ready]:
                number, process = running.pop(pipe)
                yield number, _answer(pipe, process)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()


def import_torch() -> None:
    """Import torch once, here: the children inherit it.

    Its objects last as long as the process. Hidden from the garbage collector they cost neither the children
    nor the end of this process a search, which takes 0.1 s each time.
    """
    if "torch" in sys.modules:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401 -- for the children

        import vramscope.capture.predicted  # noqa: F401 -- likewise
    finally:
        if was_enabled:
            gc.enable()
    gc.freeze()


def _begun(trial: DryTrial) -> tuple[Any, Connection]:
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(trial, sending))
    process.start()
    sending.close()
    return process, receiving


def _answer(pipe: Connection, process: Any) -> "Prediction | VramscopeError":
    try:
        found: Prediction | VramscopeError = pipe.recv()
    except EOFError:
        process.join()
        return VramscopeError(f"the program's process ended ({process.exitcode}) before it was predicted")
    finally:
        pipe.close()
    process.join(_GRACE_S)
    if process.is_alive():  # what the program itself started may still wait
        process.terminate()
    return found


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------------------------ in the child


def _child(trial: DryTrial, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
    # What the program prints is not the answer: with --json it would spoil it.
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent if trial.is_quiet else 2, 1)
    if trial.is_quiet:
        os.dup2(silent, 2)
    try:
        found: Prediction | VramscopeError = _predicted(trial)
    except VramscopeError as error:
        found = type(error)(str(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    pipe.send(found)
    pipe.close()


def _predicted(trial: DryTrial) -> "Prediction":
    from vramscope.capture.predicted import plan
    from vramscope.dry_run import answer, dry_run

    plan.is_last = True
    # The recording names the program's command, not ours.
    sys.argv[:] = [trial.program.argv0, *trial.given[1:]]
    dry = dry_run(trial.card, trial.capacity, trial.steps, trial.output, trial.ranks, trial.change)
    try:
        dry.do(lambda: execute(trial.program, trial.given[1:]))
    except SystemExit as end:
        if end.code not in (None, 0):
            text = f"{trial.given[0]} ended by itself ({end.code}) before it could be predicted"
            raise VramscopeError(text) from None
    except (UsageError, CaptureError):
        raise
    except Exception as error:
        raise VramscopeError(_refusal(trial.given[0], error)) from error
    return answer(dry)


def _refusal(script: str, error: Exception) -> str:
    """Return one sentence: what the program needs that a dry run does not have."""
    from vramscope.capture.predicted import own_line_of

    text = " ".join(str(error).split())[:300] or "no message"
    where = own_line_of(error.__traceback__)
    at = f" at {where}" if where else ""
    if isinstance(error, FileNotFoundError):
        return f"{script} cannot run dry{at}: it needs a file that is not there ({text})"
    if isinstance(error, ConnectionError) or "a dry run opens no connection" in text:
        return f"{script} cannot run dry{at}: it needs the network ({text}); give it local files"
    if isinstance(error, ModuleNotFoundError):
        return f"{script} cannot run dry{at}: {text}; install it where vramscope runs"
    return f"{script} cannot run dry{at}: {type(error).__name__}: {text}"
