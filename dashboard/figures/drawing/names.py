"""Names of frames and counts on a page."""

from vramscope.model.stacks import Frame


def short_file(file: str) -> str:
    """Return the last part of a path."""
    return file.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or file


def place(frame: Frame) -> str:
    """Return file and line as ``model.py:57``."""
    return f"{short_file(frame.file)}:{frame.line}"
