"""A file that grows by whole batches: all of one is there, or nothing of it.

A program may close descriptors that are not its own (``os.closerange``, as daemons do), and the next file
that it opens gets the same number. So each append first asks whether the descriptor still is our file.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


class AppendFile:
    """Unbuffered: what ``append`` returned for, the operating system has."""

    __slots__ = ("_fd", "_identity", "_path", "size")

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._fd = self._opened()
        found = os.fstat(self._fd)
        self._identity = found.st_dev, found.st_ino
        self.size = found.st_size
        """Bytes of whole batches."""

    def append(self, data: Any) -> int:
        """Add *data* (a buffer) at the end; returns its bytes, or raises OSError with the file as it was.

        An exception from a signal handler (Ctrl-C) comes out after the batch is whole: what a caller has
        handed over once, it must not hand over again.
        """
        rest = memoryview(data).cast("B")
        self._reopen_if_lost()
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
        if not self._is_ours():
            return
        try:
            if durable:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _opened(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def _is_ours(self) -> bool:
        """Whether the descriptor still leads to the file that was opened."""
        try:
            found = os.fstat(self._fd)
        except OSError:  # closed
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _reopen_if_lost(self) -> None:
        """The descriptor is another file's, or none: by the path, where our file still is there."""
        if self._is_ours():
            return
        try:
            found = os.stat(self._path)  # noqa: PTH116 -- as cheap as it goes
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            raise OSError(errno.EBADF, "the program closed the file, and it is gone")
        self._fd = self._opened()

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
