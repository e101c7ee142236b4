"""Files that this process replaces as a whole, and the directory of a rank that it has claimed."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from vramscope.stalls import AtDisk

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)

REPLACED = "the directory was deleted, moved or replaced"
Identity = tuple[int, int]
"""The device and the inode of a file."""


def identity_of(status: os.stat_result) -> Identity:
    """Return what stays of a file when its path is given to another one."""
    return status.st_dev, status.st_ino


def write_all(descriptor: int, data: Any) -> None:
    """Write all of *data*. Raises OSError, also where the system takes nothing and names no error."""
    rest = memoryview(data).cast("B")
    while len(rest):
        n_bytes = os.write(descriptor, rest)
        if not n_bytes:
            raise OSError(errno.EIO, "the disk takes no more bytes")
        rest = rest[n_bytes:]


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> Identity:
    """Replace the file in one step, so that a reader finds a whole one; return its identity.

    The new file is made under a name that nobody can guess, and never through a link. Raises OSError, and
    then the file is unchanged.
    """
    temporary = path.with_name(f"{path.stem}-{token_hex(4)}.tmp")
    descriptor = os.open(temporary, _NEW, 0o666)
    try:
        try:
            write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
            identity = identity_of(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return identity


class OwnFile:
    """A file of which this process makes every version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # With its size: a file of another program may get the inode of a deleted one.
        self._version: tuple[Identity, int] | None = None

    def replace(self, data: bytes, *, durable: bool = False) -> None:
        """Replace the file. Raises OSError, also if another program put its own there, which then stays."""
        with suppress(FileNotFoundError):
            self._check(os.lstat(self.path))
        with AtDisk():
            self._version = replace_file(self.path, data, durable=durable), len(data)

    def remove(self) -> None:
        """Delete the file, if it is there and none of another program."""
        with suppress(OSError):
            self._check(os.lstat(self.path))
            self.path.unlink()

    def overwrite(self, data: bytes, directory: int) -> None:
        """Write *data* over the beginning of the last version, in the space that this version has.

        *directory* is a descriptor of the directory, which may have been moved. Raises OSError.
        """
        flags = os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self.path.name, flags, dir_fd=directory)
        try:
            self._check(os.fstat(descriptor))
            if os.pwrite(descriptor, data, 0) != len(data):
                raise OSError(errno.EIO, "the disk takes no more bytes")
        finally:
            with suppress(OSError):
                os.close(descriptor)

    def _check(self, found: os.stat_result) -> None:
        if (identity_of(found), found.st_size) != self._version:
            raise FileExistsError(errno.EEXIST, "another program put a file of its own there")


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
        try:
            self.hold()
        except OSError:
            with suppress(OSError):
                path.rmdir()
            raise

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
            raise OSError(errno.ESTALE, REPLACED)

    def descriptor(self) -> int:
        """Return the descriptor of the directory, wherever it was moved. Raises OSError."""
        if identity_of(os.fstat(self._descriptor)) != self._identity:
            raise OSError(errno.EBADF, "the program closed the directory")
        return self._descriptor
