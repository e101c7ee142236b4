"""How much of a file this process has read, from /proc: readers need no code for it."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vramscope.model.partial_curve import PartialCurve

_OPEN = Path("/proc/self/fd")
_PLACES = Path("/proc/self/fdinfo")


class ReadProgress(NamedTuple):
    """Bytes read and size of a file; both compressed for a compressed file."""

    n_read: int
    n_bytes: int
    curve: PartialCurve | None = None
    """The curve of the part that is read; None where the file's format has none."""


def progress(path: Path) -> ReadProgress | None:
    """Return the progress of the open file at *path*; None where not open, or /proc does not show it."""
    with suppress(OSError, ValueError):
        wanted = path.stat()
        for each in _OPEN.iterdir():
            with suppress(OSError):
                if os.path.samestat(each.stat(), wanted):
                    return ReadProgress(_place(each.name), wanted.st_size)
    return None


def _place(number: str) -> int:
    first = (_PLACES / number).read_text().splitlines()[0]
    return int(first.removeprefix("pos:"))
