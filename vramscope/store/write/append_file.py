"""A file that grows by whole batches: each is written completely or not at all.

A program may close descriptors that are not its own (``os.closerange``, as daemons do), and the next file
that it opens gets the same number. So each append first checks that the descriptor still refers to this file.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from vramscope.stalls import AtDisk
from vramscope.store.write.own_file import Identity, identity_of


class AppendFile:
    """Unbuffered: what ``append`` returned for, the operating system has.

    An exception may come between any two instructions (Ctrl-C). So the bytes of whole batches and the batch
    that is being written change together, in one assignment, and how much of a batch is written is asked of
    the file.
    """

    def __init__(
        self, path: Path, known: tuple[Identity, int] | None = None, *, is_new: bool = False
    ) -> None:
        """Open or create *path*; no link is followed.

        *known* is the ``place`` of the file when it was closed. With *is_new* there must be none. Raises
        OSError if another program put a file there, which then stays as it is.
        """
        self._path = path
        self._fd = self._opened(os.O_EXCL if is_new else 0)
        found = os.fstat(self._fd)
        self._identity = identity_of(found)
        self._state: tuple[int, memoryview | None] = (found.st_size, None)
        if known is not None and known != (self._identity, found.st_size):
            os.close(self._fd)
            raise OSError(errno.EEXIST, "another program changed the file")

    @property
    def place(self) -> tuple[Identity, int]:
        """Which file it is, and its size, to be recognized when it is opened again."""
        return self._identity, self.size

    @property
    def size(self) -> int:
        """Bytes of whole batches, after an interrupted one is finished. Raises OSError."""
        self._settle()
        return self._state[0]

    def append(self, data: Any) -> int:
        """Append *data* (a buffer); return its size in bytes, or raise OSError with the file unchanged.

        An exception from a signal handler (Ctrl-C) comes out after the batch is whole: what a caller has
        handed over once, it must not hand over again. After several such exceptions at once the batch is
        finished by the next use of this file.
        """
        rest = memoryview(data).cast("B")
        self._reopen_if_lost()
        self._settle()
        self._cut()
        self._state = (self._state[0], rest)
        try:
            self._settle()
        except BaseException:
            self._settle()
            raise
        return len(rest)

    def close(self, *, durable: bool) -> None:
        """Close the file; with *durable*, wait for the disk first. Raises OSError."""
        if not self._is_ours():
            return
        try:
            self._settle()
            if durable:
                with AtDisk():
                    os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _opened(self, more: int = 0) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        with AtDisk():
            return os.open(self._path, flags | more, 0o666)

    def _is_ours(self) -> bool:
        """Return whether the descriptor still refers to the file that was opened."""
        try:
            found = os.fstat(self._fd)
        except OSError:  # closed
            return False
        return identity_of(found) == self._identity

    def _reopen_if_lost(self) -> None:
        """Open the existing file again by its path if the descriptor was closed or reused."""
        if self._is_ours():
            return
        try:
            found = os.stat(self._path)  # noqa: PTH116 -- as cheap as it goes
        except FileNotFoundError:
            found = None
        if found is None or identity_of(found) != self._identity:
            raise OSError(errno.EBADF, "the program closed the file, and it is gone")
        self._fd = self._opened()

    def _settle(self) -> None:
        """Finish the batch that is being written, if there is one; after an OSError nothing of it is left."""
        size, batch = self._state
        if batch is None:
            return
        try:
            self._reopen_if_lost()
            while (done := os.lseek(self._fd, 0, os.SEEK_END) - size) < len(batch):
                with AtDisk():
                    n_bytes = os.write(self._fd, batch[done:])
                if not n_bytes:
                    raise OSError(errno.EIO, "the disk takes no more bytes")
        except OSError:
            if self._is_ours():
                with suppress(OSError):
                    os.ftruncate(self._fd, size)
            self._state = (size, None)
            raise
        self._state = (size + len(batch), None)

    def _cut(self) -> None:
        """Take away what a failed batch left; the file must then end with the last whole one."""
        size = self._state[0]
        if os.lseek(self._fd, 0, os.SEEK_END) > size:
            os.ftruncate(self._fd, size)
        if os.lseek(self._fd, 0, os.SEEK_END) != size:
            raise OSError(errno.EIO, "another program changed the file")
