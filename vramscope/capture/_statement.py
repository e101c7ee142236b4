"""Which statement of the program puts things into this variable? Read from its source, once a walk."""

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from vramscope.capture._keeping import KEEPING
from vramscope.capture._roots import Word

_MOST_BYTES = 1 << 20
_CONTAINERS = ("item", "key")

_LONGEST = 120

_Name = tuple[str, bool]
"""And whether it is an attribute's."""

_Place = tuple[int, int, int, int]
"""Line and column of its begin and of its end, as ``ast`` counts."""


def kept_at(words: Iterable[Word]) -> Iterator[Word]:
    """``("kept_at", file, line, text, at)`` for each container on the way, ``words[at]`` being its item, that
    has just one such statement in the file of the first name; which of them gets longer is told later.

    *at* is −1 for a variable without a container, that leads into the graph.
    """
    words = tuple(words)
    first = words[0]
    place = {"local": 3, "global": 2}.get(first[0])
    # What is wrong with an attribute of ctx is elsewhere: in the Function.
    if place is None or len(first) <= place or any(word[0] == "ctx" for word in words):
        return
    file = str(first[place])
    for at, name in _names(words):
        found = _statements(file).get(name, ())
        if len(found) == 1:
            yield ("kept_at", file, found[0][0], _text(file, found[0]), at)


def _names(words: tuple[Word, ...]) -> Iterator[tuple[int, _Name]]:
    """Of each container the index of its item's word, and the last name before it: of a variable, or of an
    attribute."""
    name: _Name | None = None
    for at, word in enumerate(words):
        if word[0] in _CONTAINERS and name is not None:
            yield at, name
        elif word[0] == "graph":
            if name is not None and not any(before[0] in _CONTAINERS for before in words[:at]):
                yield -1, name
            return
        elif word[0] in ("local", "global", "attribute"):
            name = (str(word[1]), word[0] == "attribute")
        elif at:
            name = None  # of another function, that has its own file


@lru_cache(64)
def _statements(file: str) -> dict[_Name, tuple[_Place, ...]]:
    """Name → what appends to it, assigns an item of it, or adds to it; the first of each line."""
    source = "".join(linecache.getlines(file))
    found: dict[_Name, dict[int, _Place]] = {}
    if 0 < len(source) <= _MOST_BYTES:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # not what runs: a notebook's magic, another version
            return {}
        for node in ast.walk(tree):
            for name in _kept_by(node):
                found.setdefault(name, {}).setdefault(node.lineno, _place(node))  # type: ignore[attr-defined]
    return {name: tuple(places.values()) for name, places in found.items()}


def _place(node: Any) -> _Place:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _text(file: str, place: _Place) -> str:
    """Of its first line, without what stands beside it."""
    first, start, last, end = place
    # Columns count bytes.
    line = linecache.getline(file, first).encode()
    text = line[start : end if last == first else None].decode(errors="replace").strip()
    is_cut = last > first or len(text) > _LONGEST
    return f"{text[: _LONGEST - 1]}…" if is_cut else text


def _kept_by(node: ast.AST) -> Iterator[_Name]:
    """The variables that a statement or call puts something into."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPING:
        yield from _name(node.func.value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield from _name(target.value)
    elif isinstance(node, ast.AugAssign):
        yield from _name(node.target.value if isinstance(node.target, ast.Subscript) else node.target)


def _name(node: ast.AST) -> Iterator[_Name]:
    while isinstance(node, ast.Subscript):  # seen["first"].append(…)
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id, False
    elif isinstance(node, ast.Attribute):
        yield node.attr, True
