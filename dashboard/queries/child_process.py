"""Processes of our own beside the server, for work that would hold its lock."""

import os
import subprocess
import sys
from contextlib import suppress


def start(module: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a module of the dashboard as a process that answers on its pipes.

    *module* is named as the process imports it; *arguments* follow in its ``sys.argv``.
    """
    # The code of this process, however it was put on the path.
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths},
    )


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that :func:`start` started, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None  # noqa: S101 - for the type checker
        with suppress(BrokenPipeError):  # what was written last reached nobody
            pipe.close()
