"""Calls back at the end of this process, with the exception that ends it."""

import atexit
import functools
import multiprocessing
import multiprocessing.util
import sys
import threading
import traceback
import weakref
from _thread import get_ident
from collections.abc import Callable
from typing import Any, NoReturn

from vramscope.recorder import Recorder

Leave = Callable[[BaseException | None], None]


def when_process_ends(leave: Leave) -> None:
    """Call *leave* once when this process ends, before the recorder's own end closes every block.

    *leave* takes the exception that ends the process, if any.
    """
    once = _Once(leave)
    atexit.register(once.at_exit)
    if multiprocessing.parent_process() is not None:
        # multiprocessing prints what a child raises, and exits as if nothing had been raised. It runs its
        # finalizers while the exception is on its way; from Python 3.13 on, after it was printed.
        multiprocessing.util.Finalize(None, once.in_child, exitpriority=0)
        traceback.print_exc = once.watching(traceback.print_exc)


def leave(recorder: Recorder, error: BaseException | None) -> None:
    """Leave the block of *recorder* with the exception that ends it, if any."""
    recorder.__exit__(None if error is None else type(error), error, getattr(error, "__traceback__", None))


class _Witness:
    """Dies with the exception that it is attached to; pickled with it, it becomes an empty string."""

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        return str, ()


class _Exits:
    """Knows the call of ``sys.exit`` that ended the process: Python forgets it before ``atexit`` runs.

    A program may catch the exception and go on. So what counts is the exception that the main thread lets go
    of outside of all Python code, which Python itself does when it ends the process. ``raise SystemExit`` is
    not seen.
    """

    def __init__(self) -> None:
        self.last: SystemExit | None = None
        self._watched: set[weakref.ref[_Witness]] = set()
        self._original = sys.exit
        self._ours = self._watching(sys.exit)
        sys.exit = self._ours

    def stop(self) -> None:
        """Take the wrapper back, unless the program has one of its own around it."""
        if sys.exit is self._ours:
            sys.exit = self._original

    def _watching(self, original: Callable[..., NoReturn]) -> Any:
        @functools.wraps(original)
        def leave_program(status: str | int | None = None, /) -> NoReturn:
            try:
                original(status)
            except SystemExit as error:
                if error.code and get_ident() == threading.main_thread().ident:
                    error.witness = witness = _Witness()  # type: ignore[attr-defined]
                    self._watched.add(weakref.ref(witness, functools.partial(self._dies, error.code)))
                raise

        return leave_program

    def _dies(self, code: Any, reference: "weakref.ref[_Witness]") -> None:
        self._watched.discard(reference)
        if sys._getframe().f_back is None and get_ident() == threading.main_thread().ident:
            self.last = SystemExit(code)


class _Once:
    def __init__(self, leave: Leave) -> None:
        self._leave: Leave | None = leave
        self._exits = _Exits()
        self._printed: BaseException | None = None

    def watching(self, print_exc: Callable[..., None]) -> Callable[..., None]:
        """Return *print_exc*, which remembers the exception that multiprocessing prints with it."""

        @functools.wraps(print_exc)
        def printing(*words: Any, **options: Any) -> None:
            if sys._getframe(1).f_code is multiprocessing.Process._bootstrap.__code__:  # type: ignore[attr-defined]
                self._printed = sys.exc_info()[1]
            print_exc(*words, **options)

        return printing

    def at_exit(self) -> None:
        """Leave with the exception that Python printed, or the exit code that the program gave."""
        last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self._call(self._printed or last or self._exits.last)

    def in_child(self) -> None:
        """Leave with the exception that is on its way through ``multiprocessing``."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and error.code and error.__context__ is not None:
            # torch.multiprocessing.spawn hands the error to the parent, and exits.
            error = error.__context__
        self._call(error)

    def _call(self, error: BaseException | None) -> None:
        self._exits.stop()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(error)
