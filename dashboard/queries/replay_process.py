"""Replays in a process of their own.

A replay of a million events is 2 to 3 s of Python that gives up the interpreter's lock every 5 ms only, and a
reply of the server needs that lock many times: replies took 1.3 s beside a search. The process gets the
requests, not the recording, so it opens no file, and what it answers is what ``replay`` answers.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from vramscope.allocator.settings import Settings
from vramscope.analysis.what_if import Replay, ReplayResult, RequestSequence, replay
from vramscope.errors import VramscopeError

from . import child_process

if TYPE_CHECKING:  # the process starts in half the time without them
    from ..data import Data, View

_NICENESS = 5
"""The server and the browser go first where all cores are busy."""
_LOG = logging.getLogger(__name__)


def is_long(data: "Data", view: "View") -> bool:
    """Return whether a replay of the recording would keep the server from answering."""
    return len(view.recording.trace) > data.pace.events_replayed_here


def replay_for(data: "Data", view: "View") -> Replay:
    """Return how a recording is replayed once: in a process where it is long."""
    return _replayed_apart if is_long(data, view) else replay


def _replayed_apart(
    program: RequestSequence, settings: Settings, capacity_bytes: int | None, total_bytes: int | None
) -> ReplayResult:
    apart = ReplayProcess()
    try:
        return apart.replay(program, settings, capacity_bytes, total_bytes)
    finally:
        apart.close()


class ReplayProcess:
    """A process that replays request sequences; it starts with the first replay, and ends with this one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sent: RequestSequence | None = None
        """The sequence that the process has: trials of one search mostly share theirs."""

    def replay(
        self,
        program: RequestSequence,
        settings: Settings,
        capacity_bytes: int | None,
        total_bytes: int | None,
    ) -> ReplayResult:
        """Return what ``replay`` returns; it is computed in the server where the process fails."""
        with self._lock:
            try:
                found = self._asked(program, (settings, capacity_bytes, total_bytes))
            except (OSError, EOFError, pickle.UnpicklingError):
                _LOG.warning("the process for replays ended; this replay runs in the server", exc_info=True)
                self._end()
                found = None
        if isinstance(found, VramscopeError):
            raise found
        return replay(program, settings, capacity_bytes, total_bytes) if found is None else found

    def close(self) -> None:
        """End the process; a later replay starts another one."""
        with self._lock:
            self._end()

    def _asked(self, program: RequestSequence, options: tuple[Any, ...]) -> ReplayResult | VramscopeError:
        process = self._process = self._process or child_process.start(__name__)
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101 - for the type checker
        pickle.dump((None if program is self._sent else program, options), process.stdin, protocol=5)
        process.stdin.flush()
        self._sent = program
        return pickle.load(process.stdout)  # noqa: S301 - our own process

    def _end(self) -> None:
        process, self._process, self._sent = self._process, None, None
        if process is not None:
            child_process.end(process)


def _serve() -> None:
    """Replay what comes in, until the server closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, and its end ends this one
    os.nice(_NICENESS)
    asked: SimpleQueue[tuple[RequestSequence | None, tuple[Any, ...]]] = SimpleQueue()
    Thread(target=_read, args=(asked,), daemon=True).start()
    known: RequestSequence | None = None
    with suppress(BrokenPipeError):  # the server has ended
        while True:
            program, options = asked.get()
            known = known if program is None else program
            assert known is not None  # noqa: S101 - for the type checker
            pickle.dump(_answer(known, options), sys.stdout.buffer, protocol=5)
            sys.stdout.buffer.flush()
    os._exit(0)


def _read(asked: "SimpleQueue[tuple[RequestSequence | None, tuple[Any, ...]]]") -> None:
    """Pass requests on; a thread of its own sees the end of the server during a replay too."""
    try:
        while True:
            asked.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - written by the server that started this
    finally:
        os._exit(0)  # whatever it is that ended in the middle of a request


def _answer(program: RequestSequence, options: tuple[Any, ...]) -> ReplayResult | VramscopeError:
    try:
        return replay(program, *options)
    except VramscopeError as error:
        return error


if __name__ == "__main__":
    _serve()
