"""Finds out whether the process that writes a trace is still alive.

A pid alone does not answer that: it may have been reused since, or belong to another machine or container.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_GONE = ("Z", "X")  # exited, but its parent has not collected the exit status yet


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The values that make a pid unique; empty and 0 on systems that do not report them (not Linux)."""

    boot: str = ""
    """The boot id of the kernel: the same in every container of a machine, new after each boot."""
    namespace: str = ""
    """The pid namespace: containers of one machine number their processes separately."""
    started: int = 0
    """The start time of the process, in clock ticks since the boot."""


def host_name() -> str:
    """Return the name of this machine; '' where the system, or a program's own function, has none."""
    try:
        return str(socket.gethostname())
    except Exception:  # noqa: BLE001 -- the program may have replaced the function
        return ""


def current_incarnation(boot_file: Path = _BOOT) -> Incarnation:
    """Return the boot id, pid namespace and start time of this process; *boot_file* holds the first."""
    try:
        boot, namespace = boot_file.read_text().strip(), str(_NAMESPACE.readlink())
    except Exception:  # noqa: BLE001 -- open() may be a function of the program
        return Incarnation()
    return Incarnation(boot, namespace, started_ticks(os.getpid()) or 0)


def is_alive(host: str, pid: int, incarnation: Incarnation, own: Incarnation | None = None) -> bool | None:
    """Return whether the process is alive; None if that cannot be found out from this process, *own*."""
    own = current_incarnation() if own is None else own
    if incarnation.boot and own.boot:
        if incarnation.boot != own.boot:
            # Either the same machine after a reboot, or another machine whose processes are not visible here.
            return False if host and host == host_name() else None
        if incarnation.namespace != own.namespace:
            return None
        return _is_running(pid) and started_ticks(pid) in (None, incarnation.started)
    return _is_running(pid) if host and host == host_name() else None


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


def started_ticks(pid: int) -> int | None:
    """When a process began, in ticks of the clock since the boot; None if /proc does not show it."""
    status = _status(pid)
    return int(status[19]) if len(status) > 19 else None


def _status(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third (the state) on; empty if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except Exception:  # noqa: BLE001 -- open() may be a function of the program
        return []
    # The second field is the program's name in brackets; the name may contain brackets and spaces itself.
    return text.rpartition(")")[2].split()
