"""Runs a request on the main thread at a moment that suits, as a signal handler without a signal.

``_thread.interrupt_main`` makes the main thread run a Python handler between two instructions, as if the
signal had come; nothing is delivered, so no system call of the program is interrupted. The handler belongs to
a real-time signal that nobody uses. The signal itself is sent only to a main thread that waits in
``threading`` for another thread, where it runs no instructions.
"""

import signal
import sys
import threading
from _thread import allocate_lock, interrupt_main
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any, cast

from vramscope.errors import CaptureError, VramscopeError
from vramscope.recorder.from_outside import moment

_ASK_S = 0.002
"""Time between two attempts; an attempt costs the main thread 20 µs."""
_WAKE_S = 0.2
"""Time between two real signals to a main thread that waits for another one, where only these wake it up."""


class MainThread:
    """Runs requests on the main thread, one at a time; created on that thread."""

    def __init__(self) -> None:
        self._job: _Job | None = None
        self._signal = _unused_signal()
        signal.signal(self._signal, self._on_signal)

    def run(self, do: Callable[[], Any], *, begins: bool, wait_s: float) -> Any:
        """Run *do* on the main thread, called on another one, and return what it returns.

        Raises CaptureError with the text of what *do* raises, or if no moment suits within *wait_s*; then
        *do* never runs.
        """
        job = self._job = _Job(do, begins=begins)
        end, wake = monotonic() + wait_s, monotonic() + _WAKE_S
        while not job.is_over.wait(_ASK_S):
            if job.is_claimed:
                continue
            if monotonic() > end and job.claim():
                raise CaptureError(self._why_late(job, wait_s))
            interrupt_main(self._signal)
            if monotonic() > wake:
                self._wake()
                wake = monotonic() + _WAKE_S
        if job.error:
            raise CaptureError(job.error)
        return job.result

    def _wake(self) -> None:
        """Wake up a main thread that waits for a lock; Python waits on after the handler."""
        main = threading.main_thread().ident
        if main is not None and moment.is_waiting(sys._current_frames().get(main)):
            signal.pthread_kill(main, self._signal)

    def _why_late(self, job: "_Job", wait_s: float) -> str:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        why = job.hindrance or "it runs no Python code, or another handler took our signal"
        return (
            f"its main thread passed no moment between two calls of torch within {wait_s:g} s: {why} "
            f"(at {moment.place(frame)})"
        )

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        job = self._job
        if job is not None and not job.is_claimed:
            job.attempt(frame)


class _Job:
    """One request. The thread that acquires the claim decides: the main thread runs it, or it never runs."""

    def __init__(self, do: Callable[[], Any], *, begins: bool) -> None:
        self._do = do
        self._begins = begins
        self._claim = allocate_lock()
        self.is_over = threading.Event()
        self.hindrance = ""
        """Why the last attempt did not suit; '' before the first."""
        self.result: Any = None
        self.error = ""
        """The text of an exception. The exception itself would keep the frames of the program alive."""

    @property
    def is_claimed(self) -> bool:
        """Whether one side has decided."""
        return self._claim.locked()

    def claim(self) -> bool:
        """Take the decision; False if the other side has taken it."""
        return self._claim.acquire(blocking=False)

    def attempt(self, frame: FrameType | None) -> None:
        """Run the request if the moment suits; called on the main thread, interrupted at *frame*."""
        try:
            self.hindrance = moment.hindrance(frame, begins=self._begins)
            if self.hindrance or not self.claim():
                return
            self.error = "a signal interrupted it"
            self.result = self._do()
            self.error = ""
        except Exception as error:  # noqa: BLE001 -- whoever asked receives it; the program goes on
            is_ours = isinstance(error, VramscopeError)
            self.error = self.hindrance = str(error) if is_ours else f"{type(error).__name__}: {error}"
        finally:
            if self.is_claimed:
                self.is_over.set()


def _unused_signal() -> signal.Signals:
    """Return a real-time signal without a handler. Raises CaptureError if there is none."""
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            return cast("signal.Signals", number)  # a real-time signal has no name
    raise CaptureError("every real-time signal has a handler already: none is left to reach the main thread")
