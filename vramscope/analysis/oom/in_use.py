"""Memory in use when an allocation failed: by category, and the line that held the most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vramscope.analysis.by_module import owners_of
from vramscope.analysis.categories import assign
from vramscope.analysis.folding import fold
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.lines import common_module, module_words, place_words
from vramscope.model.marks import Category
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.units import format_bytes, format_name

_MOST_CATEGORIES = 3
_TOTALS = ("totals_only", "moments_only")
"""Notes of records in which one block stands for all that is allocated."""


class CategoryBytes(NamedTuple):
    """Bytes of one category."""

    name: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class InUse:
    """Memory allocated at one instant, by category, with the line that held the most."""

    by_category: tuple[CategoryBytes, ...] = ()
    """Largest first; unknown is one of them. They sum up to all allocated bytes."""
    line: Frame | None = None
    """The program's line that had allocated the most; None if no stack is known."""
    line_bytes: int = 0
    """Bytes that this line had allocated."""
    module: str = ""
    """Module of that line, or what several have in common; '' if not known."""

    @property
    def words(self) -> str:
        """A phrase such as ``214 MiB activation, 42 MiB parameter; 96 MiB of it from model.py:66``, or ''.

        It names categories only if these cover most of the bytes.
        """
        sums = [each for each in self.by_category if each.name != "unknown"]
        n_known, n_all = (sum(each.n_bytes for each in some) for some in (sums, self.by_category))
        is_mostly_known = 2 * n_known >= n_all
        known = [f"{format_bytes(each.n_bytes)} {each.name}" for each in sums] if is_mostly_known else []
        parts = [", ".join(known[:_MOST_CATEGORIES])] if known else []
        if self.line is not None:
            of_it = " of it" if known else ""
            module = f" in {module_words(self.module)}" if self.module else ""
            place = place_words(self.line.file, self.line.line)
            parts.append(f"{format_bytes(self.line_bytes)}{of_it} from {place}{module}")
        return "; ".join(parts)


def in_use_at(recording: Recording, events: Sequence[int]) -> list[InUse]:
    """Return the memory in use at each of *events*."""
    if not events or any(note.code in _TOTALS for note in recording.notes):
        return [InUse() for _ in events]
    found = lifetimes(recording)
    assigned, folded = assign(recording, found), fold(recording.stacks)
    category, owners = assigned.category, owners_of(recording, found, assigned)
    result = []
    for event in events:
        live = found.largest_at(event)
        n_bytes = found.block_size[live]
        sums = np.zeros(len(Category), "i8")
        np.add.at(sums, category[live], n_bytes)
        order = [i for i in np.argsort(-sums, kind="stable").tolist() if sums[i]]
        by_category = tuple(CategoryBytes(format_name(Category(i)), int(sums[i])) for i in order)
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
        result.append(InUse(by_category, line, most, common_module(modules.get(stack, ()))))
    return result
