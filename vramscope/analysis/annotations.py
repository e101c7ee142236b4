"""The texts that the program put on its memory, and the allocations that have them.

``torch.cuda.memory._set_memory_metadata`` gives a text to the allocations that follow on its thread, and
``_annotate_tensor`` (torch 2.14) one to an allocation that is there.
"""

from dataclasses import dataclass

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.shared_results import memoized
from vramscope.model.marks import MarkKind
from vramscope.model.recording import Recording
from vramscope.model.table import Array, Int32, Int64, Table


@dataclass(frozen=True, slots=True)
class Annotations(Table):
    """One row per text of an allocation, by allocation and then by time."""

    row: Int64
    """The row of ``lifetimes``."""
    event: Int64
    """The instant of the annotation; that after its ALLOC event for a text that the allocation came with."""
    text: Int32
    """Index into ``texts``."""
    texts: tuple[str, ...] = ("",)

    def texts_of(self, row: int) -> tuple[str, ...]:
        """The texts of one allocation, each once, in the order in which it got them."""
        own = self.text[slice(*np.searchsorted(self.row, (row, row + 1)).tolist())]
        return tuple(dict.fromkeys(self.texts[each] for each in own.tolist()))


@memoized
def annotations(recording: Recording) -> Annotations:
    """Return the texts that the program put on its allocations."""
    marks = recording.marks
    if not np.isin(marks.kind, (MarkKind.ANNOTATION, MarkKind.METADATA)).any():
        return Annotations.of()
    found = lifetimes(recording)
    parts = [_later(recording, found), _born_with(recording, found)]
    row, event, text = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((event, row))
    return Annotations(row[order], event[order], text[order].astype("i4"), marks.names)


_Rows = tuple[Array, Array, Array]


def _born_with(recording: Recording, found: Allocations) -> _Rows:
    """The text that is set before each allocation."""
    marks = recording.marks.rows(recording.marks.kind == MarkKind.METADATA)
    last = np.searchsorted(marks.event, found.alloc_event, side="right") - 1
    text = np.append(marks.name, 0)[last]
    has_text = (found.alloc_event >= 0) & (last >= 0)
    has_text &= np.array([bool(name) for name in marks.names])[text]
    row = np.flatnonzero(has_text)
    return row, found.alloc_event[row] + 1, text[row]


def _later(recording: Recording, found: Allocations) -> _Rows:
    """The allocation that is alive at the address of each annotation."""
    marks = recording.marks.rows(recording.marks.kind == MarkKind.ANNOTATION)
    places, place = np.unique(found.address, return_inverse=True)
    if not len(places):
        return (np.zeros(0, "i8"),) * 3
    # Place and event as one number, so that one search finds the last allocation there before the mark.
    width = len(recording.trace) + 2
    key = place * width + found.alloc_event + 1
    order = np.argsort(key, kind="stable")
    address = marks.value.astype("u8")
    at = np.minimum(np.searchsorted(places, address), len(places) - 1)
    row = order[np.searchsorted(key[order], at * width + marks.event, side="right") - 1]
    is_there = (found.address[row] == address) & (found.alloc_event[row] < marks.event)
    is_there &= (found.free_event[row] < 0) | (found.free_event[row] >= marks.event)
    return row[is_there], marks.event[is_there], marks.name[is_there]


ANALYSIS = asking("Which texts did the program put on its allocations?", annotations)
