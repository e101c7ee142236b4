"""What was in use when an allocation failed: for what, and of which line the most?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vramscope.analysis.by_module import owners_of
from vramscope.analysis.categories import assign
from vramscope.analysis.folding import fold
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.lines import common_module, place_words
from vramscope.analysis.live_set import live_rows
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Category
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.units import format_bytes

_MOST_TOLD = 3
_TOTALS = (NoteCode.TOTALS_ONLY, NoteCode.MOMENTS_ONLY)
"""Notes of records in which one block stands for all that is allocated."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Of what was allocated at one instant."""

    by_category: tuple[tuple[str, int], ...] = ()
    """Names and bytes, largest first; unknown is one of them. They sum up to all that was allocated."""
    line: Frame | None = None
    """The program's line that had allocated the most of it; None where no stack is known."""
    line_bytes: int = 0
    module: str = ""
    """Of that line: the module, or what several have in common; '' where none is known."""

    @property
    def words(self) -> str:
        """``214 MiB activation, 42 MiB parameter; 96 MiB of it from model.py:66``, or ''.

        Categories only where most of it is known.
        """
        sums = {name: n for name, n in self.by_category if name != "unknown"}
        is_told = 2 * sum(sums.values()) >= sum(n for _, n in self.by_category)
        known = [f"{format_bytes(n)} {name}" for name, n in sums.items()] if is_told else []
        said = [", ".join(known[:_MOST_TOLD])] if known else []
        if self.line is not None:
            of_it = " of it" if known else ""
            module = f" in {self.module}" if self.module else ""
            place = place_words(self.line.file, self.line.line)
            said.append(f"{format_bytes(self.line_bytes)}{of_it} from {place}{module}")
        return "; ".join(said)


def holders(recording: Recording, events: Sequence[int]) -> list[Holders]:
    """At each of *events*."""
    if not events or any(note.code in _TOTALS for note in recording.notes):
        return [Holders() for _ in events]
    found = lifetimes(recording)
    assigned, folded = assign(recording, found), fold(recording.stacks)
    category, owners = assigned.category, owners_of(recording, found, assigned)
    told = []
    for event in events:
        live = live_rows(found, event)
        n_bytes = found.block_size[live]
        sums = np.zeros(len(Category), "i8")
        np.add.at(sums, category[live], n_bytes)
        order = [i for i in np.argsort(-sums, kind="stable").tolist() if sums[i]]
        by_category = tuple((Category(i).name.lower().replace("_", " "), int(sums[i])) for i in order)
        lines: dict[tuple[str, int], list[int]] = {}
        modules: dict[int, set[str]] = {}
        rows = folded.of[found.stack_id[live]].tolist(), n_bytes.tolist(), owners.module[live].tolist()
        for stack, size, module in zip(*rows, strict=True):
            if stack:
                frame = folded.stacks.frame(stack)
                mine = lines.setdefault((frame.file, frame.line), [0, stack])
                mine[0] += size
                modules.setdefault(mine[1], set()).add(owners.paths[module])
        most, stack = max(lines.values(), default=[0, 0])
        line = folded.stacks.frame(stack) if stack else None
        told.append(Holders(by_category, line, most, common_module(modules.get(stack, ()))))
    return told
