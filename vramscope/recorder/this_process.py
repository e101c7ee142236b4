"""Describes this process and its job, and names its run."""

import os
import platform
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from vramscope.model.device import Process


def this_process(torch: str, allocator: Mapping[str, str]) -> Process:
    """Describe this process as the manifest of a run stores it."""
    return Process(
        rank=_environ_int("RANK", 0),
        world_size=_environ_int("WORLD_SIZE", 1),
        host=socket.gethostname(),
        pid=os.getpid(),
        command=shlex.join(sys.argv),
        python=platform.python_version(),
        torch=torch,
        allocator=allocator,
    )


def _environ_int(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def default_name() -> str:
    """The default name of a run, ``<script>-<time>``.

    All ranks of a machine use the time at which their launcher started, so they share one name.
    """
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    start_s = _launched_s() if _environ_int("WORLD_SIZE", 1) > 1 else None
    return f"{script}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(start_s))}"


def _launched_s() -> float | None:
    """Start time of the parent process in seconds since the epoch; None if /proc does not show it."""
    try:
        # The second field is the program's name in brackets, which may contain any character.
        fields = Path(f"/proc/{os.getppid()}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return None
    return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
