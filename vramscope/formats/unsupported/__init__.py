"""Recognizes files without data about memory, so that the error says what they are and what to do.

The kinds stand in ``kinds.tsv``, a row each.
"""

import re
from functools import cache
from pathlib import Path
from typing import NoReturn

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning, opened
from vramscope.package_data import rows, words

_Kind = tuple[re.Pattern[bytes], str, str]
"""What its first bytes have, what the file is and lacks, and what to do."""


@cache
def _kinds(where: str) -> tuple[_Kind, ...]:
    """Return the kinds that the first bytes show, or those of texts."""
    known = words(__file__, "kinds.tsv", "let")
    flags = re.DOTALL if where == "first" else re.MULTILINE
    return tuple(
        (re.compile(pattern.encode(), flags), what.format(**known), advice.format(**known))
        for pattern, what, advice, *_ in rows(__file__, "kinds.tsv", where)
    )


def why_not(path: Path) -> str:
    """Return what a file seems to be that no format reads, what it lacks, and what to do, as a clause."""
    with path.open("rb") as file:
        head = file.read(1 << 16)
    start = beginning(head)
    try:
        with opened(path) as file:
            while head[:2] == b"\x1f\x8b" and file.read(1 << 22):
                pass
    except FormatError:
        return "its gzip is cut or damaged; copy it again"
    foreign = start.decode("utf-8", "replace").count("\ufffd") + start.count(b"\0")
    is_data = start[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05") or foreign * 20 > len(start)
    offered = _kinds("data" if is_data else "text")
    return "it seems to be {1}; {2}".format(*next(kind for kind in offered if kind[0].search(start)))


def _kind(start: bytes) -> _Kind | None:
    return next((kind for kind in _kinds("first") if kind[0].search(start)), None)


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Return whether the file is of a known kind."""
    return _kind(beginning(head)) is not None


def read(path: Path) -> NoReturn:
    """Raise FormatError that says what the file is and what to do instead."""
    with path.open("rb") as file:
        kind = _kind(beginning(file.read(1 << 16)))
    raise FormatError(f"{path}: this is {kind[1]}; {kind[2]}" if kind else f"{path}: {why_not(path)}")


FORMAT = Format("unsupported", sniff, read)
