"""The directory of a rank, claimed by the process that made it, and no other one at the same path."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from vramscope.store.write.own_file import Identity, identity_of


class Claim:
    """A directory that this process made.

    While it is held its descriptor is open, so that no other directory gets its inode after it was deleted.
    """

    def __init__(self, path: Path) -> None:
        """Make the directory and hold it; of two processes one does. Raises OSError."""
        path.mkdir(parents=True)
        self._path = path
        self._descriptor = -1
        self._identity: Identity | None = None
        self.hold()

    def hold(self) -> None:
        """Open the directory. Raises OSError if it is not the one that was made."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._identity = self._identity or identity_of(os.fstat(self._descriptor))
        self.check()

    def release(self) -> None:
        """Close the directory, which may then be unmounted; ``hold`` goes on."""
        with suppress(OSError):
            os.close(self.descriptor())
        self._descriptor = -1

    def check(self) -> None:
        """Raise OSError if the directory at the path is not the one that was made.

        Takes some microseconds. A job that is started again in a directory that was deleted gets one of its
        own, in which this process writes nothing.
        """
        try:
            is_there = identity_of(os.stat(self._path)) == self._identity  # noqa: PTH116 -- as cheap as it goes
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise OSError(errno.ESTALE, "the directory was deleted, moved or replaced")

    def descriptor(self) -> int:
        """Return the descriptor of the directory, wherever it was moved. Raises OSError."""
        if identity_of(os.fstat(self._descriptor)) != self._identity:
            raise OSError(errno.EBADF, "the program closed the directory")
        return self._descriptor
