"""The blocks of a program that are recorded: entered and left in any order, on any thread.

A signal handler of the program (Ctrl-C) may raise between any two instructions. Whatever it interrupts, a
block is left once, and a run is paused when its last block is left.
"""

import atexit
import os
import sys
import threading
from _thread import get_ident, start_new_thread
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Final

from vramscope.capture.undisturbed import Guarded, is_of_a_signal_handler, undisturbed, unheld
from vramscope.errors import CaptureError, UsageError
from vramscope.model.marks import MarkKind, Phase
from vramscope.recorder.messages import warn
from vramscope.recorder.pipeline import Ended, Pipeline, outcome_of
from vramscope.recorder.wrapping import untraced
from vramscope.stalls import LOOK_EVERY_S, is_stalled

if TYPE_CHECKING:
    from vramscope.capture import Capture
    from vramscope.recorder import Recorder


_ENTRANCES: Final = ("<module>", "_run_module_as_main")
"""Where the main program begins: a script or ``-c``, or ``-m``."""


def keep_interrupt() -> None:
    """Set Python's flag again if Ctrl-C ended the main program; to be called last at exit.

    Python remembers an interrupt that nobody caught in a flag, and sends itself SIGINT when everything else
    is done, so that a shell stops its loop. Any ``exec`` of a text while the interpreter ends clears the
    flag, also that of a ``namedtuple`` in a module that is imported only then: the exit status would be 1,
    and the next job of the loop would start.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = error.__traceback__ if type(error) is KeyboardInterrupt else None
    if trace is None or hasattr(sys, "ps1"):  # consoles go on after it
        return
    if trace.tb_frame.f_code.co_name in _ENTRANCES and trace.tb_frame.f_back is None:
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 -- Python offers no other way


_MOST_INTERRUPTIONS = 1000
"""Bound for one exit, so that a program whose signal handlers keep raising still leaves the block."""
_LOOKS_AT_END = 600
"""How often the end of the interpreter looks at an operation that hangs: for a minute."""


class Entry:
    """One entry into a recorded block of a run."""

    __slots__ = ("is_marked", "run", "thread")

    def __init__(self, run: "RecordedBlocks") -> None:
        self.run = run
        self.thread = get_ident()
        self.is_marked = False
        """Whether the end of the block is marked."""


class _Inside(threading.local):
    """The blocks of a run that the current thread is in."""

    def __init__(self) -> None:
        self.inside: set[Entry] = set()


class _Settling:
    """Begins or pauses the recording, on a thread that may wait for the disk longer than the program does."""

    def __init__(self, blocks: "RecordedBlocks", ended: Ended | None) -> None:
        self._blocks = blocks
        self._ended = ended
        self.is_over = False
        self.is_awaited = True
        """Whether the block that began this waits for its end."""

    def run(self) -> None:
        """Settle until it fits the blocks: some may be entered or left while this waits."""
        try:
            while not self.is_over:
                with self._blocks._guard:
                    self._blocks._settle(None, self._ended)
                # First over, then the look: a block that finds it over settles by itself.
                self.is_over = True
                self.is_over = self._blocks.is_settled
        finally:
            self.is_over = True


class RecordedBlocks:
    """The blocks of one recorder."""

    def __init__(self, recorder: "Recorder", pipeline: Pipeline) -> None:
        self.recorder = recorder
        self.pipeline = pipeline
        self._lock = threading.RLock()
        self._transition = threading.Lock()
        """Held while recording begins or pauses."""
        # Sets, not counts: an operation that a signal handler interrupts is repeated and still counts once.
        self._inside: set[Entry] = set()
        self._thread = _Inside()
        self._is_running = False
        self._settling: _Settling | None = None
        self._n_entered = self._n_entered_at_pause = 0
        self._entered: list[Entry] = []
        """The blocks that this recorder's ``with`` entered, of its own run or of the active one."""
        self._guard = Guarded(pipeline.fail, lets_out=(CaptureError, UsageError))

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """Record an event of the program at this moment, if it is in a block."""
        if self._inside:
            self.pipeline.mark(kind, phase, value, name)

    def enter(self, entry: Entry) -> None:
        """Enter a block of the entry's run."""
        self._entered.append(entry)
        if not (_is_own_thread() or sys.is_finalizing()):
            entry.run._add(entry)

    def innermost(self) -> Entry:
        """The last entry of the calling thread, or else of any: a generator may move between threads."""
        of_thread = [entry for entry in self._entered if entry.thread == get_ident()]
        return (of_thread or self._entered)[-1]

    def leave_surely(self, entry: Entry, error: BaseException | None) -> None:
        """Leave a block that may be left already."""
        if entry in self._entered:
            self.leave(entry, error)

    @untraced
    def leave(self, entry: Entry, error: BaseException | None) -> None:
        """Leave a block, however often a signal handler interrupts it; raises what the last one raised."""
        if _is_own_thread():
            with suppress(RuntimeError):  # no thread can be started any more: the end leaves every block
                start_new_thread(self.leave, (entry, error))
            return
        raised: BaseException | None = None
        for _ in range(_MOST_INTERRUPTIONS):
            try:
                if isinstance(raised, Exception) and not is_of_a_signal_handler(raised):
                    break
                entry.run._remove(entry, error)
                if entry in self._entered:
                    self._entered.remove(entry)
                break
            except BaseException as interruption:  # noqa: BLE001 -- raised again below
                # Nothing is called here, where another interruption would leave the loop.
                raised = interruption
        if raised is not None:
            raise raised

    def _add(self, entry: Entry) -> None:
        with self._lock:
            self._inside.add(entry)
            self._n_entered += 1
            self._thread.inside.add(entry)
            runs.active = self
            self._resume()
            if not self.pipeline.has_failed:
                self.pipeline.guarded(lambda capture: capture.enter_thread())
            self.mark(MarkKind.ENTER, value=len(self._inside) - 1)

    def _remove(self, entry: Entry, error: BaseException | None) -> None:
        """Leave a block; may be called again if a signal handler interrupted it."""
        with self._lock:
            if entry in self._inside and not entry.is_marked:
                entry.is_marked = True
                self.mark(MarkKind.EXIT, value=len(self._inside) - 1)
            if self._inside == {entry} and not self.pipeline.has_failed:
                self.pipeline.look_at_end(sys._getframe(), error)
            self._thread.inside &= self._inside - {entry}  # others may have been left on another thread
            if not self._thread.inside:
                self.pipeline.guarded(lambda capture: capture.exit_thread())
            self._inside.discard(entry)
            if not self._inside:
                if runs.active is self:
                    runs.active = None
                self._settle_unheld(outcome_of(error))

    def _resume(self) -> None:
        # A pause that an earlier block began may still be going on: then it has to end first.
        if self._is_running and not self._transition.locked():
            return
        with self._guard:
            is_new = self.pipeline.capture is None and not self.pipeline.has_failed
            opened = self.pipeline.open() if is_new else None
            if opened is None:
                self._settle_unheld(None)
            else:
                undisturbed(lambda: self._settle(opened, None))

    @property
    def is_settled(self) -> bool:
        """Whether it records exactly if a block is entered."""
        return self._is_running == bool(self._inside)

    def _settle_unheld(self, ended: Ended | None) -> None:
        """Settle, and wait for that unless the disk stalls; what waits for the disk then does it later."""
        late = self._settling
        if late is not None and not late.is_over and is_stalled():
            return
        self._settling = settling = _Settling(self, ended)
        settling.is_awaited = unheld(settling.run)

    def _settle(self, opened: "tuple[str, Capture] | None", ended: Ended | None) -> None:
        """Begin recording if a block is entered, and pause it if none is.

        An interrupted thread may no longer wait for an earlier call, which then runs at the same time. So one
        call waits for the other, and each looks at the current state.
        """
        with self._transition:
            if self._inside and not self._is_running:
                self._is_running = True
                if not self.pipeline.has_failed:
                    self.pipeline.begin(opened)
                    self._miss(is_awaited=self._settling is None or self._settling.is_awaited)
            elif not self._inside and self._is_running:
                self.pipeline.stop_flusher()
                self._n_entered_at_pause = self._n_entered
                if self._inside:  # entered while a flush stalled: the recording went on
                    self.pipeline.start_flusher()
                    return
                try:
                    self.pipeline.pause(ended)
                finally:
                    self._is_running = False

    def _miss(self, *, is_awaited: bool) -> None:
        """Count the blocks since the pause, but for the one that began the recording and waited for it."""
        n_missed = self._n_entered - self._n_entered_at_pause - is_awaited
        self._n_entered_at_pause = self._n_entered
        self.pipeline.miss(n_missed)

    def await_pause(self) -> None:
        """Wait until the last block is written, which was left before that if the disk stalled."""
        while not self._inside and self._settling is not None and not self._settling.is_over:
            sleep(LOOK_EVERY_S)

    def end(self) -> None:
        """Leave an open block (a notebook's, a thread's) when the interpreter ends, and write the rest."""
        with self._lock:
            self._inside.clear()
            if not unheld(self._end, _LOOKS_AT_END):
                why = "the disk has taken nothing for a minute"
                warn(f"{self.pipeline.directory}: {why}, and what is not written yet is lost")

    def _end(self) -> None:
        self._settle(None, outcome_of(None))
        if not self._is_running and self.pipeline.capture is not None:
            self._miss(is_awaited=False)
        self.pipeline.end()

    def disown(self) -> None:
        """Detach from the run in a forked child, which copies locks as they are."""
        self._lock, self._transition, self._settling = threading.RLock(), threading.Lock(), None
        self.pipeline.disown()


def _is_own_thread() -> bool:
    """Whether the garbage collector runs a finalizer of the program on a thread of vramscope.

    Whoever holds the lock of the blocks may be waiting for this thread, which therefore never waits for it.
    """
    return threading.current_thread().name.startswith("vramscope-")


class _Runs:
    """The blocks of every recorder of this process."""

    def __init__(self) -> None:
        self.active: RecordedBlocks | None = None
        """The blocks of the run that this process is in; None outside of every block."""
        self.by_directory: dict[Path | None, RecordedBlocks] = {}

    def forget(self) -> None:
        """Forget every run in a forked child: only the parent continues recording them."""
        for blocks in self.by_directory.values():
            blocks.disown()
        self.active = None
        self.by_directory = {}

    def end(self) -> None:
        for blocks in self.by_directory.values():
            blocks.end()
        keep_interrupt()


runs = _Runs()
atexit.register(runs.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=runs.forget)
