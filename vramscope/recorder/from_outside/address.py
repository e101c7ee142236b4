"""The Unix socket of a process that listens, and the messages that go through it."""

import json
import os
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from vramscope.errors import CaptureError
from vramscope.store.read import side_file

_SUFFIX = ".sock"
_MOST_BYTES = 1 << 16
"""Length limit of a message; the longest is a request with its options, some hundred bytes."""


class NotListeningError(CaptureError):
    """The process has no socket that answers."""


def private_home(user: int) -> Path:
    """Return the directory of a user's sockets, created if needed.

    The path is fixed: ``$TMPDIR`` and ``$XDG_RUNTIME_DIR`` differ between a job and the shell beside it.
    Raises CaptureError if it does not belong to that user alone: another one could answer there.
    """
    folder = Path("/tmp") / f"vramscope-attach-{user}"  # noqa: S108 -- checked to be private
    try:
        if user == os.getuid():
            folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except FileNotFoundError:
        return folder
    except OSError as error:
        raise CaptureError(f"{folder}: no directory for sockets: {error.strerror}") from None
    is_theirs = stat.S_ISDIR(found.st_mode) and found.st_uid == user
    if not is_theirs or stat.S_IMODE(found.st_mode) & 0o077:
        raise CaptureError(f"{folder} is no private directory of its user: remove it and try again")
    return folder


def socket_path(pid: int, user: int) -> Path:
    """The path of the socket of process *pid*. Raises CaptureError if its directory is not private."""
    return private_home(user) / f"{pid}{_SUFFIX}"


def listening(user: int) -> list[int]:
    """The processes of a user that listen: one of another program may have the number of a killed one."""
    sockets = [path for path in private_home(user).glob(f"*{_SUFFIX}") if path.stem.isdecimal()]
    return sorted(int(path.stem) for path in sockets if _is_taken(path))


def _is_taken(path: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as line, suppress(OSError):
        line.connect(str(path))
        return True
    return False


def ask(path: Path, message: Mapping[str, Any], longest_s: float) -> dict[str, Any]:
    """Send *message* to the listener at *path*, and return its answer.

    Raises
    ------
    NotListeningError
        Nothing listens.
    CaptureError
        The process did not answer within *longest_s*, or its answer is none.
    """
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as line:
        try:
            line.connect(str(path))
        except OSError:
            raise NotListeningError("it does not listen") from None
        line.settimeout(longest_s)
        try:
            send(line, message)
            answer = receive(line)
        except OSError as error:
            is_late = isinstance(error, TimeoutError)
            raise CaptureError("it did not answer in time" if is_late else f"no answer: {error}") from None
    if answer is None:
        raise CaptureError("it ended before it answered")
    return answer


def send(line: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message to the other side."""
    line.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")


def receive(line: socket.socket) -> dict[str, Any] | None:
    """Return the next message; None if the other side sent none, or something else."""
    data = b""
    while not data.endswith(b"\n") and len(data) < _MOST_BYTES:
        piece = line.recv(_MOST_BYTES)
        if not piece:
            break
        data += piece
    try:
        return side_file.parsed(data)
    except ValueError:
        return None


def peer_is_ours(line: socket.socket) -> bool:
    """Whether the other side runs as this user, or as root; the directory admits no others anyway."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user in (os.getuid(), 0)
