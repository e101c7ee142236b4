"""How frames are called on a page."""

from vramscope.model.stacks import Frame


def short_file(file: str) -> str:
    """The last part of a path, as people name a file."""
    return file.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or file


def place(frame: Frame) -> str:
    """``model.py:57``."""
    return f"{short_file(frame.file)}:{frame.line}"


def counted(n: int, what: str) -> str:
    """``1 segment``, ``2 segments``."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"
