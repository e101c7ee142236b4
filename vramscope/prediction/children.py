"""Dry runs of a program in processes of their own, so that one run never sees what another one left.

Every child is forked from a process that has imported torch and has never run anything: it starts in
milliseconds. What it finds comes back through a pipe, and is answered with here.
"""

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from vramscope.errors import VramscopeError
from vramscope.malloc import collector_off
from vramscope.model.prediction import Prediction
from vramscope.prediction.answering import OpenTrial, Outcome, discard
from vramscope.prediction.cards import own_verdict
from vramscope.prediction.once import run_once
from vramscope.prediction.script import execute
from vramscope.prediction.trial import Trial, rooms
from vramscope.store.prediction import write

_GRACE_S = 2.0
_ABORTED = ": a hook or a backward of the program may have raised an error; run a step without vramscope"


def run_dry(trial: Trial, meanwhile: Callable[[], Any] = lambda: None) -> Prediction:
    """Return the answer of one script; raises VramscopeError with one sentence where there is none.

    *meanwhile* is called while the first run is under way.
    """
    ((_, outcome),) = run_all_dry([trial], 1, meanwhile)
    if isinstance(outcome, VramscopeError):
        raise outcome
    return outcome


def run_all_dry(
    trials: Sequence[Trial], n_workers: int | None = None, meanwhile: Callable[[], Any] = lambda: None
) -> Iterator[tuple[int, Outcome]]:
    """Yield the number of each trial and its answer as soon as it is there; Ctrl-C ends all of them."""
    import_torch()
    runs = _Processes(n_workers or _n_cores())
    open_trials = {number: OpenTrial(trial) for number, trial in enumerate(trials)}
    outcomes: dict[int, dict[int, Outcome]] = {number: {} for number in open_trials}
    try:
        for number in reversed(open_trials):
            runs.add(number, open_trials[number].wanted)
        while open_trials:
            runs.begin()
            _import_analyses()
            meanwhile()
            for number, place, outcome in runs.ended():
                outcomes[number][place] = outcome
                if len(outcomes[number]) < len(open_trials[number].wanted):
                    continue
                answer = open_trials[number].take([one for _, one in sorted(outcomes[number].items())])
                outcomes[number] = {}
                if answer is None:
                    runs.add(number, open_trials[number].wanted)
                else:
                    del open_trials[number]
                    yield number, answer
    finally:
        runs.stop()


def on_each_card(found: Prediction, trial: Trial, note: Callable[[int, int], Any]) -> Prediction:
    """Return the prediction with a dry run of its own for each card that it does not decide.

    *note* receives the number of runs that have ended, and of all. The recording keeps what comes of them.
    """
    cards = list(found.cards)
    undecided = [at for at, card in enumerate(cards) if card.fits is None and not card.is_own_run]
    own = replace(trial, capacity=None, directory=None, is_quiet=True, measures_need=False)
    known = {room.name: room for room in rooms()}
    trials = [replace(own, card=cards[at].card) for at in undecided]
    for n, (number, outcome) in enumerate(run_all_dry(trials), start=1):
        if not isinstance(outcome, VramscopeError):
            discard(outcome)
            cards[undecided[number]] = own_verdict(outcome.need, known[outcome.card], outcome.fits)
        note(n, len(trials))
    found = replace(found, cards=tuple(cards))
    write(found)
    return found


class _Processes:
    """Dry runs in processes of their own, so many at once: those that were added last begin first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[tuple[int, int, Trial]] = []
        self._running: dict[Connection, tuple[int, int, Any]] = {}

    def add(self, number: int, trials: Sequence[Trial]) -> None:
        self._waiting += [(number, place, trial) for place, trial in enumerate(trials)][::-1]

    def begin(self) -> None:
        while self._waiting and len(self._running) < self._most:
            number, place, trial = self._waiting.pop()
            process, pipe = _begun(trial)
            self._running[pipe] = number, place, process

    def ended(self) -> Iterator[tuple[int, int, Outcome]]:
        """Wait for the next runs to end; yield the number and the place of each, and what came of it."""
        ready = wait(list(self._running))
        for pipe in [each for each in self._running if each in ready]:
            number, place, process = self._running.pop(pipe)
            yield number, place, _outcome(pipe, process)

    def stop(self) -> None:
        for _, _, process in self._running.values():
            process.terminate()
        for _, _, process in self._running.values():
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
    with collector_off():
        with _waiting_threads():
            import torch  # noqa: F401 -- for the children

        import vramscope.prediction.dry  # noqa: F401 -- likewise
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


def _begun(trial: Trial) -> tuple[Any, Connection]:
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(trial, sending))
    process.start()
    sending.close()
    return process, receiving


def _outcome(pipe: Connection, process: Any) -> Outcome:
    try:
        outcome: Outcome = pipe.recv()
    except EOFError:
        process.join()
        ended = f"the program's process ended ({process.exitcode}) before it was predicted"
        return VramscopeError(ended + _ABORTED * (process.exitcode == -signal.SIGABRT))
    finally:
        pipe.close()
    process.join(_GRACE_S)
    if process.is_alive():  # what the program itself started may still wait
        process.terminate()
    return outcome


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _child(trial: Trial, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
    # What the program prints is not the answer: with --json it would spoil it.
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent if trial.is_quiet else 2, 1)
    if trial.is_quiet:
        os.dup2(silent, 2)
    try:
        outcome: Outcome = _run(trial)
    except VramscopeError as error:
        outcome = type(error)(str(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    pipe.send(outcome)
    pipe.close()


def _run(trial: Trial) -> Prediction:
    program = trial.script
    assert program is not None  # noqa: S101 -- functions run in the process that has them
    # The recording names the program's command, not ours.
    sys.argv[:] = [program.argv0, *trial.arguments]

    def body() -> None:
        try:
            execute(program, trial.arguments)
        except SystemExit as end:
            if end.code not in (None, 0):
                text = f"{trial.name} ended by itself ({end.code}) before it could be predicted"
                raise VramscopeError(text) from None

    try:
        is_sharded = trial.change is not None and trial.change.n_cards > 1
        return run_once(trial, body, is_last=not is_sharded)  # what shards needs all of torch
    except VramscopeError:
        raise
    except Exception as error:
        raise VramscopeError(_refusal(trial.name, error)) from error


def _refusal(script: str, error: Exception) -> str:
    """Return one sentence: what the program needs that a dry run does not have."""
    from vramscope.prediction.dry import own_line_of
    from vramscope.prediction.dry.shim.checkpoints import saved

    text = " ".join(str(error).split())[:300] or "no message"
    where = own_line_of(error.__traceback__)
    at = f" at {where}" if where else ""
    file = getattr(error, "filename", None)
    if isinstance(error, FileNotFoundError) and os.path.abspath(str(file)) in saved:  # noqa: PTH100
        return f"{script} cannot run dry{at}: it reads what it saved ({file}), and a dry run saves nothing"
    if isinstance(error, FileNotFoundError):
        return f"{script} cannot run dry{at}: it needs a file that is not there ({text})"
    if isinstance(error, ConnectionError) or "a dry run opens no connection" in text:
        return f"{script} cannot run dry{at}: it needs the network ({text}); give it local files"
    if isinstance(error, ModuleNotFoundError):
        return f"{script} cannot run dry{at}: {text}; install it where vramscope runs"
    if "uninitialized parameter" in text:
        return (
            f"{script} cannot run dry{at}: a lazy module has no sizes yet; write them, as in nn.Linear(94, 9)"
        )
    return f"{script} cannot run dry{at}: {type(error).__name__}: {text}"
