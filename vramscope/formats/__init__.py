"""Readers of other tools' files: one format per module, ``FORMAT = Format(...)``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vramscope.model.recording import Run

Watch = Callable[[], None]
"""Called after each part of a file that is read, on the thread that reads it; it may wait."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format of other tools' files."""

    name: str
    sniff: Callable[[bytes, Path], bool]
    """``sniff(first 64 KiB, path)`` returns whether the file looks like this format; never raises."""
    read: Callable[[Path], Run]
    """Reads the file. Raises FormatError that says what is wrong, where, and what to do."""
    read_watched: Callable[[Path, Watch], Run] | None = None
    """Reads the file as *read* does, and calls the function after each part; None where it has no parts."""
    is_asked_last: bool = False
    """Whether it is asked only after the others, because it looks through the whole file."""
