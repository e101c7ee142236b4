"""Functions that the formats of plain text share."""

import codecs
from collections.abc import Sequence
from pathlib import Path

from vramscope.model.recording import Recording, Run

_TAIL_BYTES = 64 << 10
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def as_utf8(data: bytes) -> bytes:
    """Return *data* as UTF-8; a file redirected by PowerShell is UTF-16."""
    return data.decode("utf-16", "replace").encode() if data[:2] in _UTF_16 else data


def is_text(start: bytes) -> bool:
    """Return whether the first bytes may be a log: neither binary nor HTML."""
    return bool(start) and b"\0" not in start and not start.lstrip().startswith((b"<", b"{", b"[{", b"[["))


def tail(head: bytes, path: Path) -> bytes:
    """Return the end of a file that is longer than *head*: errors are at the end of a log."""
    try:
        size = path.stat().st_size
        if size <= len(head):
            return b""
        with path.open("rb") as file:
            file.seek(max(size - _TAIL_BYTES, 0))
            found = file.read(_TAIL_BYTES)
            return as_utf8(head[:2] + found) if head[:2] in _UTF_16 else found
    except OSError:
        return b""


def run_of_text(path: Path, recordings: Sequence[Recording]) -> Run:
    """Return a run of recordings from a text, which has no clock."""
    return Run(name=path.name.removesuffix(".gz"), path=str(path), recordings=tuple(recordings))
