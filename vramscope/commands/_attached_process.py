"""Reaches the listener of another process, and says in one sentence why it cannot be reached."""

import os
import pwd
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vramscope.errors import CaptureError
from vramscope.recorder.from_outside.address import NotListeningError, ask, private_home, socket_path

WAIT_S = 30.0
"""Longest wait for a moment of the process between two calls of torch, unless ``--wait`` says another."""
_LONGEST_S = 120.0
"""Time that beginning or ending itself may take: a history of many events is read and written."""
_START_S = 20.0
"""Longest wait for a process of Python 3.14 that was asked to listen."""

_SCRIPT = """\
try:
    from vramscope.recorder.from_outside.listener import allow_attach
    allow_attach()
except BaseException as error:
    with open({answer!r}, "w") as file:
        file.write(f"{{type(error).__name__}}: {{error}}")
"""

Execute = Callable[[int, str], None]
"""Makes a process run the script at a path at its next safe moment, as ``sys.remote_exec`` does."""


def answer_of(
    pid: int, message: Mapping[str, Any], wait_s: float = WAIT_S, execute: Execute | None = None
) -> str:
    """Ask a process to begin or end a recording, and return what it says.

    *message* has ``do`` and its ``options``; the process may wait *wait_s* for a moment between two calls of
    torch. *execute* is ``sys.remote_exec`` if None. Raises CaptureError if there is no such process, it
    cannot be reached, or it refuses.
    """
    user = _user_of(pid)
    try:
        answer = _asked(pid, user, message, wait_s)
    except NotListeningError:
        _make_listen(pid, user, execute or _remote_exec_for(pid))
        answer = _asked(pid, user, message, wait_s)
    if "error" in answer:
        raise CaptureError(f"process {pid}: {answer['error']}")
    return str(answer.get("text", ""))


def command_of(pid: int) -> str:
    """The command line of a process; '' if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def _asked(pid: int, user: int, message: Mapping[str, Any], wait_s: float) -> Mapping[str, Any]:
    try:
        return ask(socket_path(pid, user), {**message, "wait_s": wait_s}, wait_s + _LONGEST_S)
    except NotListeningError:
        raise
    except CaptureError as error:
        raise CaptureError(f"process {pid}: {error}") from None


def _user_of(pid: int) -> int:
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        raise CaptureError(f"there is no process {pid} here") from None
    if os.getuid() not in (owner, 0):
        raise CaptureError(
            f"process {pid} belongs to {_name_of(owner)}: only that user and root may attach to it"
        )
    return owner


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _python_of(pid: int) -> tuple[int, int] | None:
    """The version of Python that a process runs, by its executable and libraries; None if it runs none."""
    places = []
    with suppress(OSError):
        places.append(str(Path(f"/proc/{pid}/exe").readlink()))
    with suppress(OSError):
        places += Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    for place in places:
        found = re.search(r"/(?:lib)?python(\d+)\.(\d+)[a-z]*(?:\.so[.\d]*)?$", place)
        if found:
            return int(found[1]), int(found[2])
    return None


def _remote_exec_for(pid: int) -> Execute:
    """``sys.remote_exec`` if it reaches this process. Raises CaptureError with the reason if not."""
    version = _python_of(pid)
    if version is None:
        name = command_of(pid).partition(" ")[0] or "?"
        raise CaptureError(f"process {pid} ({name}) does not listen, and is no Python that can be made to")
    own = getattr(sys, "remote_exec", None)
    number = ".".join(map(str, version))
    if version < (3, 14):
        raise CaptureError(
            f"process {pid} does not listen, and Python {number} cannot be made to (3.14 can): start it by "
            "`vramscope run --detached`, or call vramscope.allow_attach() in it"
        )
    if own is None or sys.version_info[:2] != version:
        raise CaptureError(
            f"process {pid} runs Python {number}: attach to it with a vramscope of Python {number}"
        )
    return own


def _make_listen(pid: int, user: int, execute: Execute) -> None:
    """Let a process of Python 3.14 call ``allow_attach``, and wait until it listens."""
    home = private_home(os.getuid())
    script, answer = home / f"{pid}-{os.getpid()}.py", home / f"{pid}-{os.getpid()}.error"
    script.write_text(_SCRIPT.format(answer=str(answer)))
    try:
        try:
            execute(pid, str(script))
        except (OSError, RuntimeError) as error:
            is_forbidden = isinstance(error, PermissionError)
            hint = " (kernel.yama.ptrace_scope or a container may forbid it)" if is_forbidden else ""
            raise CaptureError(f"process {pid} cannot be made to listen: {error}{hint}") from None
        end = time.monotonic() + _START_S
        while not socket_path(pid, user).exists():
            if answer.exists() and (text := answer.read_text()):
                raise CaptureError(f"process {pid} cannot listen: {text}")
            if time.monotonic() > end:
                raise CaptureError(
                    f"process {pid} ran no Python code on its main thread within {_START_S:g} s"
                )
            time.sleep(0.02)
    finally:
        script.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
