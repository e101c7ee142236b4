"""Recognizes files that contain no data, or compressed data, so that the error says what to do."""

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


_UNPACK = "vramscope reads plain files and gzip: unpack it first, and open what was in it"
_SAVED = (
    "save the snapshot as plain data: torch.cuda.memory._dump_snapshot(path), or pickle.dump; "
    "or take it out of this file: unzip -p FILE '*/data.pkl' > snapshot.pickle"
)


class _UnsupportedKind(NamedTuple):
    """One kind of file that cannot be read."""

    name: str
    fits: Callable[[bytes], bool]
    """Returns whether the first bytes of the content are of this kind."""
    advice: str


def _begins(*words: bytes) -> Callable[[bytes], bool]:
    return lambda start: start.startswith(words)


_KINDS = (
    _UnsupportedKind(
        "a memory timeline page, which holds a picture and no data",
        lambda start: b"<html" in start[:200].lower() and b"memory timeline" in start[:1000].lower(),
        _RAW,
    ),
    _UnsupportedKind(
        "a memory timeline of sums by category, without the single allocations",
        lambda start: _SUMS.match(start) is not None,
        _RAW,
    ),
    _UnsupportedKind(
        "what torch.save writes, a zip archive",
        lambda start: start.startswith(b"PK\x03\x04") and b"/data.pkl" in start[:1000],
        _SAVED,
    ),
    _UnsupportedKind("a zip archive", _begins(b"PK\x03\x04"), _UNPACK),
    _UnsupportedKind("packed by bzip2", _begins(b"BZh"), _UNPACK),
    _UnsupportedKind("packed by xz", _begins(b"\xfd7zXZ\0"), _UNPACK),
    _UnsupportedKind("packed by zstd", _begins(b"\x28\xb5\x2f\xfd"), _UNPACK),
    _UnsupportedKind("packed by gzip twice", _begins(b"\x1f\x8b"), _UNPACK),
    _UnsupportedKind("a tar archive", lambda start: start[257:262] == b"ustar", _UNPACK),
    _UnsupportedKind(
        "a pointer of Git LFS, not the file itself",
        _begins(b"version https://git-lfs.github.com/"),
        "fetch it with: git lfs pull",
    ),
)


def _kind(start: bytes) -> _UnsupportedKind | None:
    return next((kind for kind in _KINDS if kind.fits(start)), None)


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Return whether the file is of a known kind."""
    return _kind(beginning(head)) is not None


def read(path: Path) -> NoReturn:
    """Raise FormatError that says what the file is and what to do instead."""
    with path.open("rb") as file:
        kind = _kind(beginning(file.read(1 << 16)))
    if kind is None:
        raise FormatError(f"{path}: this is of no known kind; {_RAW}")
    raise FormatError(f"{path}: this is {kind.name}; {kind.advice}")


FORMAT = Format("unsupported", sniff, read)
