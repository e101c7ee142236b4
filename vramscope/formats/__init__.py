"""Other people's files, read: one format a file, ``FORMAT = Format(...)``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vramscope.model.recording import Run


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of foreign file."""

    name: str
    sniff: Callable[[bytes, Path], bool]
    """``sniff(first 64 KiB, path)``: whether this looks like ours; never raises."""
    read: Callable[[Path], Run]
    """Raises FormatError with what is wrong, where, and what to do."""
