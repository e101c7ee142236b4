"""Runs vramscope's own work where a signal handler of the program never interrupts it.

Python runs signal handlers on the main thread, between any two instructions. An exception that a handler
raises (Ctrl-C) would leave our work unfinished there: a lock held, a file half closed, an event lost. Work on
another thread is never interrupted.
"""

import signal
import sys
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep
from traceback import walk_tb
from types import CodeType
from typing import Any

from vramscope.stalls import LOOK_EVERY_S, MOST_LOOKS, Patience, own_thread

_NOT_EXITING = (f"{Path(__file__).parents[2]}/", "/lib/python", "<frozen ")
"""Parts of the names of files whose code does not exit by itself."""
_BEGINS_S = 0.0005
"""Between two looks whether a new thread has begun its work, which takes some 50 µs."""


def undisturbed(do: Callable[[], object], wait_s: float = -1) -> bool:
    """Run *do* where no signal handler interrupts it, and wait for its end.

    Called on the main thread, *do* runs on a new thread (about 50 µs); on other threads it runs directly. An
    exception that a signal handler raises during the wait is raised after *do* has ended.

    After *wait_s* (−1: no limit) *do* continues without being waited for. Returns whether it has ended;
    raises what it raised, or the last exception of a signal handler.
    """
    # While the interpreter ends a new thread never runs: Python 3.11 would wait for it for ever.
    if sys.is_finalizing() or get_ident() != threading.main_thread().ident:
        do()
        return True
    return _Task(do).wait(wait_s)


def unheld(do: Callable[[], object], most_looks: int = MOST_LOOKS) -> bool:
    """Run *do* like ``undisturbed``, on any thread, and stop waiting where the disk stalls; *do* goes on.

    It stalls where one operation is not over after *most_looks* of 0.1 s. Returns whether *do* has ended.
    """
    if sys.is_finalizing():
        do()
        return True
    return _Task(do).wait(LOOK_EVERY_S, Patience(most_looks))


class _Task:
    __slots__ = ("_claim", "_do", "_end", "_error", "_is_over")

    def __init__(self, do: Callable[[], object]) -> None:
        self._do: Callable[[], object] | None = do
        self._error: BaseException | None = None
        self._claim = allocate_lock()
        """The thread that does the work acquires this lock and never releases it."""
        self._end = allocate_lock()
        self._end.acquire()
        self._is_over = False

    def wait(self, wait_s: float, patience: Patience | None = None) -> bool:
        """Begin the work and wait for its end, for *wait_s* or as often as *patience* allows it.

        Raises the exception of a signal handler that ran during the wait, or else that of the work.
        """
        interruption: BaseException | None = None
        is_started, is_waiting = False, True
        while is_waiting:
            try:
                if isinstance(interruption, RuntimeError) and not is_of_a_signal_handler(interruption):
                    interruption = None
                    self._run()  # the interpreter is ending, or no more threads can be started
                if not is_started and not self._is_over:
                    # One call of C code. If it is interrupted at its end it is repeated, and one of the two
                    # threads does the work.
                    start_new_thread(self._start, ())
                    is_started = True
                is_waiting = not self._is_over and (
                    self._end.acquire(timeout=wait_s) or (patience is not None and not patience.is_over())
                )
            except BaseException as error:  # noqa: BLE001, PERF203 -- raised again after the wait
                # Nothing is called here, where another interruption would end the wait.
                interruption = error
        failure, self._error = self._error, None
        if interruption is not None:
            raise interruption
        if failure is not None:
            raise failure
        return self._is_over

    def _start(self) -> None:
        """Start the thread that does the work, on a thread without a name that Python never interrupts.

        An interrupted ``Thread.start`` may leave a lock held, on which the new thread waits for ever. And
        where the last reference to a Thread goes, Python code runs that discards a handler's exception.
        """
        with suppress(Exception):  # no more threads can be started
            thread = own_thread(self._run, "undisturbed")
            thread.start()
            # Not join(): it would leave a Thread for this one, which Python never removes.
            while thread.is_alive() and not self._claim.locked():
                sleep(_BEGINS_S)
        self._run()  # what was not begun: a tracer that the program set for new threads may have raised there

    def _run(self) -> None:
        is_mine = False
        try:
            is_mine = self._claim.acquire(blocking=False)
            if is_mine and self._do is not None:
                self._do()
        except BaseException as error:  # noqa: BLE001 -- raised again on the waiting thread
            self._error = error if is_mine else self._error
        finally:
            if is_mine:
                self._do = None  # what the work refers to is released before the waiting thread continues
                self._is_over = True
                self._end.release()


class Clockwork:
    """Does *work* every *interval_s* seconds on a background thread until stopped, and if so at both ends."""

    def __init__(
        self, work: Callable[[], None], interval_s: float = 0.1, name: str = "nvml", *, at_ends: bool = True
    ) -> None:
        self._work, self._interval_s, self._at_ends = work, interval_s, at_ends
        self._is_over = threading.Event()
        self._is_retired = False
        self._thread = own_thread(self._run, name)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return after the last work is done."""
        self._is_over.set()
        self._thread.join()

    def retire(self) -> None:
        """Stop soon without waiting: the caller may be this very thread, and a fork has no such thread."""
        self._is_retired = True

    def _run(self) -> None:
        if self._at_ends:
            self._work()
        while not self._is_over.wait(self._interval_s):
            if self._is_retired:
                return
            self._work()
        if self._at_ends:
            self._work()


class Guarded:
    """Passes an error of vramscope on, and lets out what belongs to the program: a block of ``with``.

    It has no state, so one serves all threads and blocks that pass their errors to the same function.
    """

    __slots__ = ("_failed", "_lets_out")

    def __init__(
        self, failed: Callable[[BaseException], object], lets_out: tuple[type[Exception], ...] = ()
    ) -> None:
        """Guard a block.

        *failed* takes the error, and what it raises comes out, as do errors of *lets_out*. A block that runs
        as deep as the program lets RecursionError out, and counts it right there: the program caused the
        depth, and another call could exceed the limit again.
        """
        self._failed = failed
        self._lets_out = lets_out

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """End the block: true where the error was vramscope's."""
        if error is None or isinstance(error, self._lets_out) or is_of_the_program(error):
            return False
        self._failed(error)
        return True


def is_of_the_program(error: BaseException) -> bool:
    """Whether *error* ends the program: Ctrl-C, a signal handler's, or an exit that the program sent here.

    An exit that was raised in code of the program which vramscope called, such as the ``write`` of its own
    ``sys.stderr``, would not have come without vramscope.
    """
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)) or is_of_a_signal_handler(error):
        return True
    if isinstance(error, Exception):
        return False
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return not files or any(part in files[-1] for part in _NOT_EXITING)


def is_of_a_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program raised *error*, so that it belongs to the program.

    A handler runs between any two instructions, so it can also raise within our own code.
    """
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _code(handler: Any) -> CodeType | None:
    for _ in range(8):  # a partial of a method of an object …
        inner = getattr(handler, "func", None) or getattr(handler, "__func__", None)
        if inner is None:
            break
        handler = inner
    found = getattr(handler, "__code__", None)
    if found is None:  # an object of a class with __call__
        found = getattr(type(handler).__dict__.get("__call__"), "__code__", None)
    return found if isinstance(found, CodeType) else None
