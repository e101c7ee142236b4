"""The spool of a run that is recorded to a URL, and the process that uploads it.

A process of its own: it needs no time of the training's interpreter, imports no package of a store into the
training, and goes on for a while if the training is killed.
"""

import importlib.util
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from vramscope.errors import MissingExtraError, UsageError
from vramscope.recorder.process import own_environment
from vramscope.remote.upload import UploadState, read_state, spools, write_state

WAIT_S = 60.0
"""How long the end of the program waits for the upload; ``VRAMSCOPE_UPLOAD_WAIT_S`` is another time."""
MIB_PER_S = 64.0
"""The bound of a rank's bandwidth; ``VRAMSCOPE_UPLOAD_MIB_PER_S`` is another one, 0 none."""
EVERY_S = 30.0
"""The time between two uploads of the part that grows; ``VRAMSCOPE_UPLOAD_EVERY_S`` is another time."""
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_OF_ONE_PROCESS = ("memory",)


def spool_of(url: str) -> Path:
    """Return the local directory that a run at *url* is recorded into.

    Raises UsageError if nothing can be recorded to a URL of this kind, MissingExtraError if the package for
    the store is not installed.
    """
    protocol, _, path = url.partition("://")
    if protocol in _OF_ONE_PROCESS:
        raise UsageError(f"{url}: lasts as long as its process only; record to a directory or to a store")
    for package in filter(None, ("fsspec", _PACKAGES.get(protocol))):
        # Not imported: the training's process never needs it.
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "remote")
    inside = "/".join(re.sub(r"^\.+$", "_", part) for part in path.split("/") if part)
    if not inside:
        raise UsageError(f"{url}: name a run, such as {protocol}://bucket/run")
    return spools() / protocol.replace("::", "-") / inside


class UploadProcess:
    """Starts the process that uploads one rank, and waits for it at the end."""

    def __init__(self, rank: Path, url: str) -> None:
        """Start it. Raises OSError if no process can be started; the spool then holds everything."""
        self._rank = rank
        write_state(rank, UploadState(url))
        self._wait_s = _number("VRAMSCOPE_UPLOAD_WAIT_S", WAIT_S)
        speed = _number("VRAMSCOPE_UPLOAD_MIB_PER_S", MIB_PER_S)
        options = ["--to", url, "--parent", str(os.getpid()), "--mib-per-s", str(speed)]
        options += ["--patience", str(self._wait_s)]
        options += ["--every-s", str(_number("VRAMSCOPE_UPLOAD_EVERY_S", EVERY_S))]
        self._process = subprocess.Popen(  # noqa: S603 -- our own command
            [sys.executable, "-m", "vramscope", "upload", str(rank), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=rank,
            env=own_environment(),
        )

    def finish(self) -> str:
        """Let the process send the rest, and wait for it.

        Returns what to report: where the trace is now.
        """
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(self._wait_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
        state = read_state(self._rank)
        url = state.url or state.wanted_url if state is not None else "its URL"
        if self._process.returncode == 0 or (state is not None and state.is_whole):
            return f"uploaded to {url}"
        return (
            f"the trace is whole in {self._rank}, and not yet at {url}: "
            f"`vramscope upload {self._rank}` finishes that"
        )

    def disown(self) -> None:
        """Let go of the process in a forked child: it is the parent's."""
        self._process.returncode = 0
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def _number(name: str, default: float) -> float:
    try:
        return max(float(os.environ.get(name, default)), 0.0)
    except ValueError:
        return default
