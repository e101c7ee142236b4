"""Rows of marks and labels before they are written, with their names as text, and their tables."""

from collections.abc import Sequence

from vramscope.model.holders import Word
from vramscope.model.marks import Labels, Marks

HolderRow = tuple[int, int, Sequence[Word]]
"""Event, address, words of the path."""

MarkRow = tuple[int, int, int, int, int, int, str]
"""Kind, phase, time_ns, event, thread, value, name."""

LabelRow = tuple[int, int, int, int, str]
"""Event, address, category, element_bytes, name."""


def marks_table(rows: Sequence[MarkRow]) -> Marks:
    """Convert the rows to columns; the index of names belongs to this table alone."""
    *columns, texts = zip(*rows, strict=True)
    names, index = _indexed(texts)
    keys = list(Marks.DTYPES)[:-1]
    return Marks.of(**dict(zip(keys, columns, strict=True)), name=index, names=names)


def labels_table(rows: Sequence[LabelRow]) -> Labels:
    """Convert the rows to columns; the index of names belongs to this table alone."""
    *columns, texts = zip(*rows, strict=True)
    names, index = _indexed(texts)
    keys = list(Labels.DTYPES)[:-1]
    return Labels.of(**dict(zip(keys, columns, strict=True)), name=index, names=names)


def _indexed(texts: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    known: dict[str, int] = {"": 0}
    index = [known.setdefault(text, len(known)) for text in texts]
    return tuple(known), index
