"""The listener of this process: a thread that waits on a Unix socket for requests to record or to end it."""

import atexit
import os
import socket
import sys
import threading
from contextlib import closing, suppress
from typing import Any

from vramscope.errors import CaptureError
from vramscope.recorder.from_outside.address import peer_is_ours, receive, send, socket_path
from vramscope.recorder.from_outside.main_thread import MainThread
from vramscope.recorder.from_outside.requests import Attachment
from vramscope.recorder.pipeline import import_everything

_CONVERSATION_S = 10.0
"""Time that the other side has for its request: whoever connects and says nothing must not keep us."""
_LONGEST_WAIT_S = 86_400


def allow_attach() -> None:
    """Let ``vramscope attach PID`` of the same user begin to record this process, and ``detach`` end it.

    Until then nothing is recorded and nothing of the program is hooked: a thread waits on a Unix socket in a
    directory of this user alone. Calling it again changes nothing. A process that was started by
    ``vramscope run --detached`` needs no call, nor does any process of Python 3.14 and newer.

    Raises
    ------
    CaptureError
        Called on another thread than the main thread, or the socket cannot be created.
    """
    if threading.current_thread() is not threading.main_thread():
        raise CaptureError("allow_attach() has to be called on the main thread, which carries out requests")
    if _own.listener is None:
        _own.listener = _OwnListener()


class _OwnListener:
    """The socket of this process and the thread that waits for it."""

    def __init__(self) -> None:
        self._main = MainThread()
        self._one_at_a_time = threading.Lock()
        self.attachment = Attachment()
        self._path = socket_path(os.getpid(), os.getuid())
        self._pid = os.getpid()
        # A process of the same number may have left it.
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(self._path))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise CaptureError(f"{self._path}: cannot listen: {error.strerror}") from None
        threading.Thread(target=self._serve, name="vramscope-attach", daemon=True).start()

    def close(self) -> None:
        """Stop listening; in a forked child only for itself, as the path belongs to its parent."""
        self._socket.close()
        if os.getpid() == self._pid:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:  # closed
                return
            # Whoever says nothing keeps a thread of its own waiting, and no one else.
            threading.Thread(
                target=self._converse, args=(line,), name="vramscope-attach", daemon=True
            ).start()

    def _converse(self, line: socket.socket) -> None:
        with closing(line), suppress(OSError):
            line.settimeout(_CONVERSATION_S)
            asked = receive(line) if peer_is_ours(line) else None
            if asked is not None:
                with self._one_at_a_time:
                    answer = self._answer(asked)
                send(line, answer)

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"text": self._done(asked)}
        except CaptureError as error:
            return {"error": str(error)}
        except Exception as error:  # noqa: BLE001 -- whoever asked receives it; the program goes on
            return {"error": f"{type(error).__name__}: {error}"}

    def _done(self, asked: dict[str, Any]) -> str:
        wait_s, attachment = float(asked["wait_s"]), self.attachment
        if not 0 <= wait_s <= _LONGEST_WAIT_S:
            raise CaptureError(f"it waits 0 to {_LONGEST_WAIT_S:,} s for a moment, not {wait_s:g}")
        if asked["do"] == "detach":
            return str(self._main.run(attachment.end, begins=False, wait_s=wait_s))
        if asked["do"] != "attach":
            raise CaptureError(f"it knows no request {asked['do']!r}: its vramscope is of another version")
        if "torch" not in sys.modules:
            raise CaptureError("it has not imported torch yet")
        import_everything()  # here: an import of some seconds on the main thread would stop the program
        options = dict(asked["options"])
        return str(self._main.run(lambda: attachment.begin(options), begins=True, wait_s=wait_s))


class Detached:
    """A program that ``vramscope run --detached`` runs: it can be attached to from its import of torch on."""

    def __enter__(self) -> None:
        allow_attach()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the recording, if there is one now, as the program ended."""
        if _own.listener is not None:
            _own.listener.attachment.leave(error)


class _ListenerOfProcess:
    """The listener of this process, if any."""

    def __init__(self) -> None:
        self.listener: _OwnListener | None = None

    def close(self) -> None:
        """Stop listening: the process ends, or this is a forked child without the thread."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None


_own = _ListenerOfProcess()
atexit.register(_own.close)
os.register_at_fork(after_in_child=_own.close)
