"""Which lines of the program hold these bytes? One row per place, the framework's frames folded."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from vramscope.analysis.folding import fold, holders
from vramscope.model.stacks import Frame, Stacks


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes that came from one place."""

    n_bytes: int
    n_blocks: int
    frames: tuple[Frame, ...]
    """The program's own, innermost first; empty where there are none."""
    via: str
    """The framework's function that the program called there; '' where it called none."""
    n_folded: int
    """How many frames of the framework and C++ are not among ``frames``."""


def lines(stacks: Stacks, stack_id: NDArray[Any], n_bytes: NDArray[Any], count: NDArray[Any]) -> list[Line]:
    """Rows by stack, joined where they read the same, largest first."""
    folded = fold(stacks)
    held = holders(folded, stack_id, n_bytes, count)
    columns = (held.folded_id, held.via, held.n_bytes, held.count, held.example)
    found = []
    for own, via, total, number, example in zip(*(column.tolist() for column in columns), strict=True):
        frames = folded.stacks.frames(own)
        n_folded = len(stacks.frames(example)) - len(frames)
        found.append(Line(total, number, frames, folded.strings[via], n_folded))
    return found
