"""Export of recordings to the formats of other tools: one per module, ``EXPORT = Export(...)``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vramscope.model.recording import Run


@dataclass(frozen=True, slots=True)
class Export:
    """One output format of ``vramscope export``."""

    name: str
    help: str
    write: Callable[[Run, Path], list[Path]]
    """Writes at or below the path and returns the files made; the caller checks that none exists, and
    that the folder of the path does."""
