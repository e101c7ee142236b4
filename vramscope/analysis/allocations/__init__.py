"""Searches all allocations of a recording by a line of text."""

from dataclasses import dataclass, field

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.allocations.conditions import Columns, matching
from vramscope.analysis.allocations.language import Field, SearchError, Term, line_term, parse
from vramscope.analysis.by_module import NO_MODULE, owners_of
from vramscope.analysis.categories import categories
from vramscope.analysis.lifetimes import lifetimes
from vramscope.model.recording import Recording
from vramscope.model.table import Int32, Int64, Table, UInt8

__all__ = [
    "ANALYSIS", "Columns", "Field", "FoundAllocations", "SearchError", "Term", "line_term", "matching",
    "parse",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoundAllocations(Table):
    """The allocations that a search found, largest block first."""

    row: Int64
    """Row of ``lifetimes``."""
    block_bytes: Int64
    """Bytes of the block."""
    category: UInt8
    """A ``Category``."""
    module: Int32
    """Index into ``paths``; 0 for none."""
    stack_id: Int32
    """Row of ``recording.stacks``."""
    alloc_event: Int64
    """The event of the allocation; −1 for one before the recording."""
    free_event: Int64
    """The event of the free; −1: never freed; −2: freed before the recording."""
    paths: tuple[str, ...] = (NO_MODULE,)
    recording: Recording = field(default_factory=Recording, repr=False)

    @property
    def total_bytes(self) -> int:
        """Sum of the blocks; they were not all live at the same time."""
        return int(self.block_bytes.sum())


def allocations(recording: Recording, where: str = "") -> FoundAllocations:
    """Return the allocations that meet every term of a search, largest block first.

    Parameters
    ----------
    where
        The search: ``attention`` (part of a function, file or module, or a category), ``"softmax"`` (a whole
        name), ``train.py:13``, ``category:activation``, ``phase:backward``, ``step:3..7``, ``module:*.mlp``,
        ``line:train.py:13`` (that allocated it), ``live:peak``, ``live:end``, ``live:1200`` (1,200 events),
        ``address:0x7f5e40000000``, ``file:``, ``function:``, ``stream:``, ``annotation:output`` (part of a
        text that the program put on it), ``size>64MiB``, ``life<2s``, ``alive`` (never freed), ``before``
        (from before the recording); ``-`` in front excludes. All terms must hold. Empty: all.

    Raises
    ------
    SearchError
        If a term is not understood; it has the letters in ``start`` and ``end``.

    Examples
    --------
    >>> import vramscope
    >>> recording = vramscope.load("sample_traces/transformer").recordings[0]
    >>> found = recording.allocations("category:gradient step:2")
    >>> bool((found.block_bytes > 0).all())
    True
    """
    terms = parse(where)
    found, known = lifetimes(recording), categories(recording).assigned
    owners = owners_of(recording, found, known)
    hit = matching(terms, Columns(recording, found, known.category, lambda: owners), where)
    rows = np.flatnonzero(hit)
    rows = rows[np.argsort(-found.block_size[rows], kind="stable")]
    return FoundAllocations(
        row=rows,
        block_bytes=found.block_size[rows],
        category=known.category[rows],
        module=owners.module[rows],
        stack_id=found.stack_id[rows],
        alloc_event=found.alloc_event[rows],
        free_event=found.free_event[rows],
        paths=owners.paths,
        recording=recording,
    )


ANALYSIS = asking("Which allocations meet these conditions?", allocations)
