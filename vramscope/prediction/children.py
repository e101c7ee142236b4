"""Dry runs of a program in processes of their own, so that one run never sees what another one left.

Every child is forked from a process that has imported torch and has never run anything: it starts in
milliseconds. What it finds comes back through a pipe, and is answered with here.
"""

import gc
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from vramscope.errors import CaptureError, UsageError, VramscopeError
from vramscope.prediction.script import Script, execute

if TYPE_CHECKING:
    from vramscope.prediction import Findings, Prediction
    from vramscope.prediction.dry.changes import DryChange
    from vramscope.prediction.dry.values.choices import Otherwise

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
    otherwise: "Otherwise | None" = None
    """What one place of the program is answered otherwise."""
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
    """Yield the number of each trial and its answer as soon as it is known; Ctrl-C ends all of them.

    A program that takes a branch by a value that nobody computed is run again for the other branch first.
    """
    from vramscope.prediction import to_try

    import_torch()
    waiting = list(enumerate(trials))[::-1]
    running: dict[Connection, tuple[int, DryTrial, Any]] = {}
    open_ones: dict[int, _Branches] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (n_workers or _n_cores()):
                number, trial = waiting.pop()
                process, pipe = _begun(trial)
                running[pipe] = number, trial, process
            _import_analyses()
            ready = wait(list(running))
            for pipe in [each for each in running if each in ready]:
                number, trial, process = running.pop(pipe)
                found = _answer(pipe, process)
                if number not in open_ones:
                    wanted = [] if isinstance(found, VramscopeError) else to_try(found)
                    others = [replace(trial, otherwise=each, output=None, is_quiet=True) for each in wanted]
                    waiting += [(number, other) for other in others[::-1]]
                    open_ones[number] = _Branches(found, len(others))
                else:
                    open_ones[number].add(trial, found)
                if open_ones[number].is_complete:
                    yield number, open_ones.pop(number).answer()
    finally:
        for _, _, process in running.values():
            process.terminate()
        for _, _, process in running.values():
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()


class _Branches:
    """The first run of a program, and those of which one answer is changed."""

    def __init__(self, found: "Prediction | VramscopeError", n_wanted: int) -> None:
        self._found = found
        self._n_wanted = n_wanted
        self._others: list[tuple[Otherwise, Prediction | VramscopeError]] = []

    def add(self, trial: DryTrial, found: "Prediction | VramscopeError") -> None:
        """Take a run with another answer, of which only the figures are kept."""
        if not isinstance(found, VramscopeError):
            shutil.rmtree(found.run.parent, ignore_errors=True)
        if trial.otherwise is not None:
            self._others.append((trial.otherwise, found))

    @property
    def is_complete(self) -> bool:
        """Whether every run has ended."""
        return len(self._others) == self._n_wanted

    def answer(self) -> "Prediction | VramscopeError":
        """Return what all runs say together."""
        from vramscope.prediction import with_others

        if isinstance(self._found, VramscopeError):
            return self._found
        return with_others(self._found, self._others)


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
        with _waiting_threads():
            import torch  # noqa: F401 -- for the children

        import vramscope.prediction.dry  # noqa: F401 -- likewise
    finally:
        if was_enabled:
            gc.enable()
    gc.freeze()


@contextmanager
def _waiting_threads() -> Iterator[None]:
    """Let torch's threads sleep between the small tensors of the host instead of turning in circles.

    OpenMP reads this once, when it is loaded; the program does not see it. With two cores the angles of
    GPT-J's layers took 2.8 s instead of 0.5.
    """
    name, before = "OMP_WAIT_POLICY", os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault(name, "passive")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _import_analyses() -> None:
    """Import what answers are made of while the children run: it takes 0.4 s, here of another core."""
    import vramscope.store.read.reader  # noqa: F401 -- for the answers
    from vramscope.analysis import own_analyses

    own_analyses()


def _begun(trial: DryTrial) -> tuple[Any, Connection]:
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(trial, sending))
    process.start()
    sending.close()
    return process, receiving


def _answer(pipe: Connection, process: Any) -> "Prediction | VramscopeError":
    from vramscope.prediction import answer

    try:
        found: Findings | VramscopeError = pipe.recv()
    except EOFError:
        process.join()
        return VramscopeError(f"the program's process ended ({process.exitcode}) before it was predicted")
    finally:
        pipe.close()
    process.join(_GRACE_S)
    if process.is_alive():  # what the program itself started may still wait
        process.terminate()
    try:
        return found if isinstance(found, VramscopeError) else answer(found)
    except VramscopeError as error:
        return error


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
        found: Findings | VramscopeError = _predicted(trial)
    except VramscopeError as error:
        found = type(error)(str(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    pipe.send(found)
    pipe.close()


def _predicted(trial: DryTrial) -> "Findings":
    from vramscope.prediction import DryOptions, dry_run, findings
    from vramscope.prediction.dry import plan

    plan.is_last = True
    # The recording names the program's command, not ours.
    sys.argv[:] = [trial.program.argv0, *trial.given[1:]]
    options = DryOptions(trial.steps, trial.ranks, trial.change, trial.otherwise)
    dry = dry_run(trial.card, trial.capacity, trial.output, options)
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
    return findings(dry)


def _refusal(script: str, error: Exception) -> str:
    """Return one sentence: what the program needs that a dry run does not have."""
    from vramscope.prediction.dry import own_line_of

    text = " ".join(str(error).split())[:300] or "no message"
    where = own_line_of(error.__traceback__)
    at = f" at {where}" if where else ""
    from vramscope.prediction.dry.shim.checkpoints import saved

    if saved and isinstance(error, FileNotFoundError | EOFError):
        file = next((each for each in saved if each == getattr(error, "filename", None)), min(saved))
        return f"{script} cannot run dry{at}: it reads what it saved ({file}), and a dry run saves nothing"
    if isinstance(error, FileNotFoundError):
        return f"{script} cannot run dry{at}: it needs a file that is not there ({text})"
    if isinstance(error, ConnectionError) or "a dry run opens no connection" in text:
        return f"{script} cannot run dry{at}: it needs the network ({text}); give it local files"
    if isinstance(error, ModuleNotFoundError):
        return f"{script} cannot run dry{at}: {text}; install it where vramscope runs"
    return f"{script} cannot run dry{at}: {type(error).__name__}: {text}"
