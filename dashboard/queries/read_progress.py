"""How much of a file this process has read, from /proc: readers need no code for it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_OPEN = Path("/proc/self/fd")
_PLACES = Path("/proc/self/fdinfo")


class ReadProgress(NamedTuple):
    """Bytes read and size of a file; both compressed for a compressed file."""

    n_read: int
    n_bytes: int


class Readings:
    """The files that are being read for the first time, by run."""

    def __init__(self) -> None:
        self._n_bytes: dict[str, int] = {}
        """Their sizes."""

    def progress(self, name: str, path: Path | None) -> ReadProgress | None:
        """Return how much of the file at *path* is read; None where no file is being read."""
        now = progress(path) if path is not None else None
        if path is None:
            self._n_bytes.pop(name, None)
        if now is not None:
            self._n_bytes[name] = now.n_bytes
        # The file is closed again: all of it is read, and the events are being sorted.
        n_bytes = self._n_bytes.get(name)
        return now or (ReadProgress(n_bytes, n_bytes) if n_bytes is not None else None)


def progress(path: Path) -> ReadProgress | None:
    """Return the progress of the open file at *path*; None where not open, or /proc does not show it."""
    with suppress(OSError, ValueError):
        wanted = path.stat()
        for each in _OPEN.iterdir():
            with suppress(OSError):
                if os.path.samestat(each.stat(), wanted):
                    first = (_PLACES / each.name).read_text().splitlines()[0]
                    return ReadProgress(int(first.removeprefix("pos:")), wanted.st_size)
    return None
