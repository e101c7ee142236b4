"""A file that grows by whole batches: each is written completely or not at all.

A program may close descriptors that are not its own (``os.closerange``, as daemons do), and the next file
that it opens gets the same number. So each append first checks that the descriptor still refers to this file.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


class AppendFile:
    """An unbuffered file: when ``append`` returns, the operating system has the data."""

    __slots__ = ("_fd", "_identity", "_path", "size")

    def __init__(self, path: Path) -> None:
        """Open or create *path*. Raises OSError."""
        self._path = path
        self._fd = self._opened()
        found = os.fstat(self._fd)
        self._identity = found.st_dev, found.st_ino
        self.size = found.st_size
        """The size of all whole batches, in bytes."""

    def append(self, data: Any) -> int:
        """Append *data* (a buffer); return its size in bytes, or raise OSError with the file unchanged.

        An exception from a signal handler (Ctrl-C) is raised after the batch is complete: a caller must not
        append the same batch again.
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
        """Close the file; with *durable*, wait for the disk first. Raises OSError."""
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
        """Return whether the descriptor still refers to the file that was opened."""
        try:
            found = os.fstat(self._fd)
        except OSError:  # closed
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _reopen_if_lost(self) -> None:
        """Open the existing file again by its path if the descriptor was closed or reused."""
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
        """Write the rest of *data* that is not in the file yet."""
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
