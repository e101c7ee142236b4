"""Marks and labels on their way to the file, with their names still as text."""

from collections.abc import Sequence

from vramscope.model.marks import Labels, Marks

MarkRow = tuple[int, int, int, int, int, int, str]
"""kind, phase, time_ns, event, thread, value, name"""

LabelRow = tuple[int, int, int, int, str]
"""event, address, category, bytes of an element, name"""


def marks_table(rows: Sequence[MarkRow]) -> Marks:
    """The rows as columns; names are indexed for this table alone."""
    *columns, texts = zip(*rows, strict=True)
    names, index = _indexed(texts)
    keys = list(Marks.DTYPES)[:-1]
    return Marks.of(**dict(zip(keys, columns, strict=True)), name=index, names=names)


def labels_table(rows: Sequence[LabelRow]) -> Labels:
    """The rows as columns; names are indexed for this table alone."""
    *columns, texts = zip(*rows, strict=True)
    names, index = _indexed(texts)
    keys = list(Labels.DTYPES)[:-1]
    return Labels.of(**dict(zip(keys, columns, strict=True)), name=index, names=names)


def _indexed(texts: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    known: dict[str, int] = {"": 0}
    index = [known.setdefault(text, len(known)) for text in texts]
    return tuple(known), index
