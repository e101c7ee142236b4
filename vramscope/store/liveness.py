"""Does the process that writes this trace still live?

A pid alone does not say: it may have been given away since, or belong to another machine or container.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_GONE = ("Z", "X")  # exited, though its parent has not asked yet


@dataclass(frozen=True, slots=True)
class Incarnation:
    """What makes a pid unique; '' and 0 where the system does not tell (not Linux)."""

    boot: str = ""
    """Of the kernel: the same on every container of one machine, new after each start."""
    namespace: str = ""
    """Of pids: containers of one machine count for themselves."""
    started: int = 0
    """When the process started, in clock ticks since the boot."""


def current_incarnation() -> Incarnation:
    """Of this process."""
    try:
        boot, namespace = _BOOT.read_text().strip(), str(_NAMESPACE.readlink())
    except OSError:
        return Incarnation()
    return Incarnation(boot, namespace, _started(os.getpid()) or 0)


def is_alive(host: str, pid: int, incarnation: Incarnation) -> bool | None:
    """Whether the process lives; None where it cannot be told from here."""
    own = current_incarnation()
    if incarnation.boot and own.boot:
        if incarnation.boot != own.boot:
            # The same machine after a restart, or another one that we cannot look into.
            return False if host and host == socket.gethostname() else None
        if incarnation.namespace != own.namespace:
            return None
        return _is_running(pid) and _started(pid) in (None, incarnation.started)
    return _is_running(pid) if host and host == socket.gethostname() else None


def _is_running(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    status = _status(pid)
    return not status or status[0] not in _GONE


def _started(pid: int) -> int | None:
    status = _status(pid)
    return int(status[19]) if len(status) > 19 else None


def _status(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third (the state) on; empty where unreadable."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The second field is the program's name, in brackets, and may hold brackets and spaces itself.
    return text.rpartition(")")[2].split()
