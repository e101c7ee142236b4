"""A file that grows by whole batches: all of one is there, or nothing of it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any


class AppendFile:
    """Unbuffered: what ``append`` returned for, the operating system has."""

    __slots__ = ("_fd", "size")

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self.size = os.fstat(self._fd).st_size
        """Bytes of whole batches."""

    def append(self, data: Any) -> int:
        """Add *data* (a buffer) at the end; returns its bytes, or raises OSError with the file as it was.

        An exception from a signal handler (Ctrl-C) comes out after the batch is whole: what a caller has
        handed over once, it must not hand over again.
        """
        rest = memoryview(data).cast("B")
        try:
            self._write(rest)
        except OSError:
            self._cut()
            raise
        except BaseException:
            self._finish(rest)
            raise
        self.size += len(rest)
        return len(rest)

    def close(self, *, durable: bool) -> None:
        """Let go of the file; with *durable* after the disk has it. Raises OSError."""
        try:
            if durable:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _write(self, data: memoryview) -> None:
        """What of *data* is not in the file yet."""
        while (done := os.lseek(self._fd, 0, os.SEEK_END) - self.size) < len(data):
            os.write(self._fd, data[done:])

    def _finish(self, data: memoryview) -> None:
        try:
            self._write(data)
        except OSError:
            self._cut()
        else:
            self.size += len(data)

    def _cut(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._fd, self.size)
