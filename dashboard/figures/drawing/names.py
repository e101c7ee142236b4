"""Names of frames and counts on a page."""

from vramscope.model.stacks import Frame

MOST_LETTERS = 48
_CUT = "…\u2060"
"""What stands for the letters before: a line may not end between it and the name."""


def short_file(file: str) -> str:
    """Return the last part of a path."""
    return file.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or file


def place(frame: Frame) -> str:
    """Return file and line as ``model.py:57``; a very long name keeps its end, where its line is."""
    name = short_file(frame.file)
    return f"{name if len(name) <= MOST_LETTERS else f'{_CUT}{name[1 - MOST_LETTERS :]}'}:{frame.line}"
