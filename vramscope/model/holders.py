"""The holders of blocks: the path of references from a name of the program to each block."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vramscope.model.table import Array, Int32, Int64, Table, UInt64
from vramscope.package_data import rows as table_rows

PREFIX = "held by: "
"""Prefix of the labels that named a holder before the trace format had a table of holders (1.4 and 2.3)."""

Word = tuple[Any, ...]
"""``(kind, name, …)``. The first word is one of local, global, context, unnamed, unreachable. Later
kinds: attribute, key, item, closure, frame, traceback, optimizer, ctx, grad, graph, nodes, saved,
variable, hook, kept_at, bound, default, limit, reset, view, end, and part for something without a name.
"""

KINDS = frozenset(
    (
        *("local", "global", "context", "unnamed", "unreachable", "attribute", "key", "item", "closure"),
        *("frame", "traceback", "optimizer", "ctx", "grad", "graph", "nodes", "saved", "variable", "hook"),
        *("kept_at", "bound", "default", "limit", "reset", "view", "end", "part"),
    )
)
_NODES = "nodes"
_COLUMNS_OF = {kind: tuple(columns) for kind, *columns in table_rows(__file__, "holders.tsv")}
"""The columns that hold a word after its kind, in the word's order; every other kind is as ``_USUAL``."""
_USUAL = ("name", "owner", "number")
_TEXTS = ("kind", "name", "owner", "file")
_NONE = -1


@dataclass(frozen=True, slots=True)
class Holding:
    """The path of references that leads to one block."""

    words: tuple[Word, ...]

    def has(self, kind: str) -> bool:
        """Whether the path contains a word of this kind."""
        return any(word[0] == kind for word in self.words)

    def first(self, kind: str) -> Word | None:
        """The first word of this kind, or None."""
        return next((word for word in self.words if word[0] == kind), None)


@dataclass(frozen=True, slots=True)
class Holders(Table):
    """The paths to blocks: one row per word of a path, the words of a path one after the other."""

    TEXT_COLUMNS: ClassVar = frozenset(_TEXTS)

    event: Int64
    """The instant at which capture found the path."""
    address: UInt64
    """Address of the block that was live at that instant."""
    position: Int32
    """Place of the word in its path; 0 begins a path. Nodes of one graph share a place."""
    kind: Int32
    """Index into ``names``: the word's kind, such as ``attribute``."""
    name: Int32
    """Index into ``names``: a variable, an attribute, the index of an item, a statement."""
    owner: Int32
    """Index into ``names``: the type, function or node that the name belongs to."""
    file: Int32
    """Index into ``names``: the file of a local, global, hook or statement."""
    line: Int32
    """Line in that file; −1 where there is none."""
    number: Int64
    """Elements of a graph's tensor, repetitions of a node, identity of a key, or position of the word that a
    statement fills; −1 where there is none."""
    names: tuple[str, ...] = ("",)

    @classmethod
    def of_paths(cls, paths: Iterable[tuple[int, int, Sequence[Word]]]) -> "Holders":
        """Build from paths, each with its instant and the address of its block."""
        known = {"": 0}
        rows = [
            (event, address, position, row)
            for event, address, words in paths
            for position, word in enumerate(words)
            for row in _rows_of(word)
        ]
        columns: dict[str, Any] = {
            "event": [row[0] for row in rows],
            "address": [row[1] for row in rows],
            "position": [row[2] for row in rows],
            "line": [row[3].get("line", _NONE) for row in rows],
            "number": [row[3].get("number", _NONE) for row in rows],
        }
        for text in _TEXTS:
            columns[text] = [known.setdefault(row[3].get(text, ""), len(known)) for row in rows]
        return cls.of(**columns, names=tuple(known))

    def first_rows(self) -> Array:
        """The row at which each path begins."""
        return np.flatnonzero(self.position == 0)

    def holding(self, first: int, end: int) -> Holding:
        """The path in the rows ``[first, end)``."""
        words: list[Word] = []
        for row in range(first, end):
            kind = self.names[self.kind[row]]
            if kind == _NODES and words and int(self.position[row]) == int(self.position[row - 1]):
                words[-1][1].append(self._values(row, kind))
            else:
                values = self._values(row, kind)
                words.append((kind, [values]) if kind == _NODES else (kind, *values))
        return Holding(tuple(words))

    def _values(self, row: int, kind: str) -> list[Any]:
        """The parts of a word after its kind, without those at its end that it does not have."""
        values: list[Any] = []
        for column in _COLUMNS_OF.get(kind, _USUAL):
            value = int(getattr(self, column)[row])
            values.append(self.names[value] if column in _TEXTS else value)
        while len(values) > 1 and values[-1] in ("", _NONE):
            values.pop()
        if kind == "item" and str(values[0]).isdigit():
            values[0] = int(values[0])
        return values


def _rows_of(word: Word) -> Iterator[dict[str, Any]]:
    """Yield the columns of a word: one row, but one for each node of a graph."""
    kind, *values = word
    columns = _COLUMNS_OF.get(kind, _USUAL)
    for each in values[0] if kind == _NODES else [values]:
        cells = dict(zip(columns, each, strict=False))
        yield {"kind": kind} | {
            name: str(value) if name in _TEXTS else int(value) for name, value in cells.items()
        }


def holding_of(name: str) -> Holding | None:
    """Parse the name of a label; None if it names no holder or uses words that this version does not know."""
    if not name.startswith(PREFIX):
        return None
    try:
        words = json.loads(name[len(PREFIX) :])
    except ValueError:
        return None
    if not isinstance(words, list) or not all(isinstance(word, list) and len(word) > 1 for word in words):
        return None
    return Holding(tuple(tuple(word) for word in words))
