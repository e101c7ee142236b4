"""Rows before they are written: marks and labels with their names as text, stacks and notes."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np

from vramscope.capture import Sink
from vramscope.model.holders import Holders, Word
from vramscope.model.marks import Labels, Marks, Note
from vramscope.model.stacks import StackBuilder

HolderRow = tuple[int, int, Sequence[Word]]
"""Event, address, words of the path."""

MarkRow = tuple[int, int, int, int, int, int, str]
"""Kind, phase, time_ns, event, thread, value, name."""

Row = TypeVar("Row")
LabelRow = tuple[int, int, int, int, str]
"""Event, address, category, element_bytes, name."""


class LabelBatch(NamedTuple):
    """The labels that one call of a hook gave to blocks of one device, as columns.

    One time and one count serve them all. With a row for each, and for each mark of a module, a reading took
    130 µs instead of 80 for the marks and labels of a step of 25 modules and 40 gradients.
    """

    device: int
    time_ns: int
    n_allocations: int
    """The allocation count at that moment."""
    category: int
    addresses: Sequence[int]
    element_bytes: Sequence[int]
    names: Sequence[str]


def cell_name(file: str) -> str:
    """Return a file as IPython names it where that is a cell, ``cell [3]``; else as it is.

    Such a file has a name made from its text, and is nowhere.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)  # not before IPython 8
    label = named(file) if named is not None else None
    return f"cell {label[1].removeprefix('In')}" if label else file


class StackLog:
    """The distinct stacks, and how many of them are written."""

    def __init__(self, depth: int | None = None) -> None:
        """Keep the innermost *depth* frames of each stack."""
        self.builder = StackBuilder(depth)
        self._n_written = 1

    def write(self, sink: Sink) -> None:
        """Write the stacks that are not written yet."""
        rows = self.builder.rows(self._n_written)
        if rows:
            sink.stacks([(parent, function, cell_name(file), line) for parent, function, file, line in rows])
            self._n_written += len(rows)


class NoteLog:
    """Notes that only the end of a block can give, one for each code."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._codes: set[str] = set()

    def once(self, note: Note) -> None:
        """Add a note unless there was one of its code."""
        if note.code not in self._codes:
            self._codes.add(note.code)
            self._notes.append(note)

    def take(self) -> list[Note]:
        """Remove and return the notes."""
        return drained(self._notes)


def drained(rows: list[Row]) -> list[Row]:
    """Remove and return all current rows; in place, as other threads may be appending."""
    n = len(rows)
    taken = rows[:n]
    del rows[:n]
    return taken


def marks_table(rows: Sequence[MarkRow]) -> Marks:
    """Convert the rows to columns; the index of names belongs to this table alone."""
    return Marks.of(**_columns(Marks, rows)) if rows else Marks.of()


def joined_by_time(parts: Sequence[Marks]) -> Marks:
    """The marks of all parts in the order of their times; those of one time keep their order."""
    joined = Marks.joined(*parts)
    return joined.rows(np.argsort(joined.time_ns, kind="stable"))


def holders_table(rows: Iterable[HolderRow]) -> Holders:
    """Convert the paths to columns."""
    found = Holders.of_paths(rows)
    return replace(found, names=tuple(map(cell_name, found.names)))


def labels_table(rows: Sequence[LabelRow]) -> Labels:
    """Convert the rows to columns; the index of names belongs to this table alone."""
    return Labels.of(**_columns(Labels, rows))


def table_of_batches(batches: Sequence[LabelBatch], events: Sequence[int]) -> Labels:
    """Convert the batches, each with the instant that is its *event*; names are of this table alone."""
    n_labels = [len(batch.names) for batch in batches]
    names, index = _indexed(chain.from_iterable(batch.names for batch in batches))
    return Labels.of(
        event=np.repeat(events, n_labels),
        address=list(chain.from_iterable(batch.addresses for batch in batches)),
        category=np.repeat([batch.category for batch in batches], n_labels),
        element_bytes=list(chain.from_iterable(batch.element_bytes for batch in batches)),
        name=index,
        names=names,
    )


def _columns(table: type[Marks | Labels], rows: Sequence[MarkRow | LabelRow]) -> dict[str, Any]:
    """The columns of rows whose last value is the text of a name, and the names."""
    *columns, texts = zip(*rows, strict=True)
    names, index = _indexed(texts)
    return dict(zip(table.DTYPES, (*columns, index), strict=True)) | {"names": names}


def _indexed(texts: Iterable[str]) -> tuple[tuple[str, ...], list[int]]:
    known: dict[str, int] = {"": 0}
    index = [known.setdefault(text, len(known)) for text in texts]
    return tuple(known), index
