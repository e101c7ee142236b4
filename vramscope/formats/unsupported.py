"""Files about GPU memory that hold no data to read: recognised, so that the refusal helps."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning

_RAW = (
    'export the same profile as data: profiler.export_memory_timeline("timeline.raw.json.gz"); or record '
    "a memory snapshot: torch.cuda.memory._record_memory_history() before the work, "
    'torch.cuda.memory._dump_snapshot("snapshot.pickle") after it'
)
_SUMS = re.compile(rb"\s*\[\s*\[\s*\d{12,19}\s*[,\]]")


class _Kind(NamedTuple):
    """One kind of file."""

    name: str
    fits: Callable[[bytes], bool]
    """By the first bytes of the content."""


_KINDS = (
    _Kind(
        "a memory timeline page, which holds a picture and no data",
        lambda start: b"<html" in start[:200].lower() and b"memory timeline" in start[:1000].lower(),
    ),
    _Kind(
        "a memory timeline of sums by category, without the single allocations",
        lambda start: _SUMS.match(start) is not None,
    ),
)


def _kind(start: bytes) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.fits(start)), None)


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Whether the file is known by its look."""
    return _kind(beginning(head)) is not None


def read(path: Path) -> NoReturn:
    """Say what the file is and what to do instead."""
    with path.open("rb") as file:
        kind = _kind(beginning(file.read(1 << 16)))
    raise FormatError(f"{path}: this is {kind.name if kind else 'of no known kind'}; {_RAW}")


FORMAT = Format("unsupported", sniff, read)
