"""Memory for columns of a growing run that the system may write to disk and reclaim.

Ten million events are 1 GB of columns. Whoever follows a training needs the last of them each second, and the
others rarely; as anonymous memory they would all stay in the memory of the machine that trains.
"""

import errno
import mmap
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES = 256 << 10
"""Size of a column from which a file pays: a run has some sixty, so what is below takes 15 MB at most."""
_LARGE_BYTES = 4 << 20
"""Smaller columns leave half of the files to those that become large."""
_OF_DESCRIPTORS = 8
"""One column of so many descriptors that the process may have: it takes two to four of them, its file, its
mapping and those of the versions that are in use, and connections need others."""
_MOST_OF_FREE = 1 / 64
"""The largest part of the free space of the disk that one column may take; a run has some twenty."""
_HOT_BYTES = 1 << 20
"""The end of a column, which stays in memory: new rows go there, and pages show them."""


class _File:
    """A file without a name; it is closed with the last column in it."""

    __slots__ = ("__weakref__", "_directory", "_n_bytes", "number")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._n_bytes = 0
        self.number = -1
        with tempfile.TemporaryFile(dir=directory) as file:
            self.number = os.dup(file.fileno())
        _OPEN.add(self)

    def allocate(self, n_bytes: int) -> None:
        """Make the file so long. Raises OSError where the disk has no room to spare."""
        if n_bytes - self._n_bytes > _MOST_OF_FREE * shutil.disk_usage(self._directory).free:
            raise OSError(errno.ENOSPC, "no room to spare", str(self._directory))
        # Allocated now: a page that finds no room later would end the process.
        os.posix_fallocate(self.number, 0, n_bytes)
        self._n_bytes = n_bytes

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


_OPEN: "WeakSet[_File]" = WeakSet()
"""All files of this process."""


def _has_descriptors(n_bytes: int) -> bool:
    """Return whether a column of that size may have a file."""
    import resource  # late: only Linux has all that files need

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = allowed // _OF_DESCRIPTORS
    return allowed == resource.RLIM_INFINITY or len(_OPEN) < (most if n_bytes >= _LARGE_BYTES else most // 2)


class ScratchColumn:
    """Zeros in a file without a name, whose older pages can be released from memory."""

    __slots__ = ("_file", "_mapped", "data")

    def __init__(self, file: _File, n_rows: int, dtype: np.dtype[Any]) -> None:
        """Map *n_rows* rows of *file*. Raises OSError where the disk has no room."""
        n_bytes = n_rows * dtype.itemsize
        file.allocate(n_bytes)
        self._file = file
        self._mapped = mmap.mmap(file.number, n_bytes)
        self.data: NDArray[Any] = np.frombuffer(self._mapped, dtype)

    def longer(self, n_rows: int) -> "ScratchColumn | None":
        """Return the same column with more rows; None where the disk has no room.

        Nothing is copied: all columns of a run grow at once, and copying 3 GB kept a page waiting for 8 s.
        """
        with suppress(OSError, ValueError):
            return ScratchColumn(self._file, n_rows, self.data.dtype)
        return None

    def followed_by(self, end: int, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the rows before *end* and *rows* after them, in a mapping that nobody else writes to.

        Only the pages of *rows* are memory of this process. Raises OSError where there are too many mappings.
        """
        n_bytes = (end + len(rows)) * self.data.itemsize
        mapped = mmap.mmap(self._file.number, n_bytes, access=mmap.ACCESS_COPY)
        found: NDArray[Any] = np.frombuffer(mapped, self.data.dtype)
        found[end:] = rows
        return found

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write *rows* from the row *first* on, where there is room for them. Raises OSError.

        Written to the file and not through the mapping: there, the first touch of each 2 MiB of 20 columns
        took 0.5 to 0.9 s (Linux 6.18), in which no page that follows the run was answered.
        """
        left = np.ascontiguousarray(rows, self.data.dtype).data.cast("B")
        at = first * self.data.itemsize
        while left:
            n_bytes = os.pwrite(self._file.number, left, at)
            left, at = left[n_bytes:], at + n_bytes

    def release(self, end: int) -> None:
        """Release what lies some way before the row *end*; reading it again loads it from the file."""
        cold = (end * self.data.itemsize - _HOT_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        if cold > 0:
            # What a page has read since is released again too.
            self._mapped.madvise(mmap.MADV_DONTNEED, 0, cold)


class Scratch:
    """A directory for columns.

    *directory* is on a disk, None for none. Columns of a run that is growing lie in files from their first
    rows on; what is read once and stays as it is has its place in memory.
    """

    def __init__(self, directory: Path | None, *, is_growing: bool = False) -> None:
        # Elsewhere than on Linux, one or the other is missing, or means something else.
        has_all = hasattr(mmap, "MADV_DONTNEED") and hasattr(os, "posix_fallocate")
        self._directory = directory if has_all else None
        self.is_growing = is_growing

    def growing(self) -> "Scratch":
        """Return the same directory for a run that is known to grow."""
        return Scratch(self._directory, is_growing=True)

    def column(self, n_rows: int, dtype: np.dtype[Any]) -> ScratchColumn | None:
        """Return a column of zeros; None where it is small, or there is no room or no descriptor for it."""
        n_bytes = n_rows * dtype.itemsize
        if self._directory is None or n_bytes < LEAST_BYTES or not _has_descriptors(n_bytes):
            return None
        with suppress(OSError, ValueError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            return ScratchColumn(_File(self._directory), n_rows, dtype)
        return None
