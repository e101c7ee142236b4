"""What do formats of plain text share?"""

from collections.abc import Sequence
from pathlib import Path

from vramscope.model.recording import Recording, Run

_TAIL_BYTES = 64 << 10


def is_text(start: bytes) -> bool:
    """Whether the first bytes may be a log; neither binary nor HTML."""
    return bool(start) and b"\0" not in start and not start.lstrip().startswith((b"<", b"{", b"[{", b"[["))


def tail(head: bytes, path: Path) -> bytes:
    """The end of a file that begins with *head* and goes on: errors are at the end of a log."""
    try:
        size = path.stat().st_size
        if size <= len(head):
            return b""
        with path.open("rb") as file:
            file.seek(max(size - _TAIL_BYTES, 0))
            return file.read(_TAIL_BYTES)
    except OSError:
        return b""


def run_of_text(path: Path, recordings: Sequence[Recording]) -> Run:
    """A run of what was found in a text, which has no clock."""
    return Run(name=path.name.removesuffix(".gz"), path=str(path), recordings=tuple(recordings))
