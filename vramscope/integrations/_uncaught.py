"""The exception that ends a program or a cell, for trainers that do not say that a training failed."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


class UncaughtErrors:
    """Passes the first exception that nobody catches to *ended*, between ``watch`` and ``release``.

    A program's goes to ``sys.excepthook``, which goes on to whatever was there before; a cell's, in IPython,
    is in the result of the cell.
    """

    def __init__(self, ended: Callable[[BaseException], None]) -> None:
        self._ended = ended
        self._is_watching = False
        self._is_hooked = False
        """Whether ours is among the program's hooks; also after the end, where a later hook goes on to it."""
        self._before: Any = sys.excepthook
        self._shell: Any = None

    def watch(self) -> None:
        """Begin to watch; a second call changes nothing."""
        if self._is_watching:
            return
        self._is_watching = True
        # A second time it would come before itself.
        if not self._is_hooked:
            self._is_hooked = True
            self._before, sys.excepthook = sys.excepthook, self._at_exit
        # A program without IPython must not load it.
        ipython = sys.modules.get("IPython")
        self._shell = None if ipython is None else ipython.get_ipython()
        if self._shell is not None:
            self._shell.events.register("post_run_cell", self._after_cell)

    def release(self) -> None:
        """Stop to watch; the program's hook is put back unless another one came after it."""
        if not self._is_watching:
            return
        self._is_watching = False
        if sys.excepthook == self._at_exit:
            self._is_hooked = False
            sys.excepthook = self._before
        if self._shell is not None:
            self._shell.events.unregister("post_run_cell", self._after_cell)
            self._shell = None

    def _at_exit(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self._pass_on(error)
        finally:
            self._before(kind, error, trace)

    def _after_cell(self, result: Any) -> None:
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            self._pass_on(error)

    def _pass_on(self, error: BaseException) -> None:
        if self._is_watching:
            self.release()
            self._ended(error)
