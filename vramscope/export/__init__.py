"""Our recordings in other people's formats: one a file, ``EXPORT = Export(...)``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vramscope.model.recording import Run


@dataclass(frozen=True, slots=True)
class Export:
    """One output format."""

    name: str
    help: str
    write: Callable[[Run, Path], list[Path]]
    """Writes at or below the path, returns the files made; the caller checked that nothing is overwritten."""
