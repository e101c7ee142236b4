"""The line of code that a frame names, where this machine has it."""

import re
from pathlib import Path
from typing import NamedTuple

MAX_SOURCE_BYTES = 2 << 20
CONTEXT_LINES = 2


class Line(NamedTuple):
    """One line of a source file."""

    number: int
    text: str


def source(file: str, line: int) -> list[Line]:
    """The lines around *line*; empty where the file is not here.

    A recording may name any file, so only Python sources are opened: their text is what a viewer of code
    expects to see, and nothing else on the disk is.
    """
    path = Path(file)
    if not re.search(r"\.py$", file) or not path.is_absolute() or line < 1:
        return []
    try:
        if not path.is_file() or path.resolve().suffix != ".py" or path.stat().st_size > MAX_SOURCE_BYTES:
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []
    first = max(line - 1 - CONTEXT_LINES, 0)
    return [Line(first + i + 1, text[:400]) for i, text in enumerate(lines[first : line + CONTEXT_LINES])]
