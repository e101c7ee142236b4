"""Which statement of the program puts things into this variable? Read from its source, once a walk."""

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache

from vramscope.capture._keeping import KEEPING
from vramscope.capture._roots import Word

_MOST_BYTES = 1 << 20
_CONTAINERS = ("item", "key")


def kept_at(words: Iterable[Word]) -> Word | None:
    """``("kept_at", file, line, text)`` where the file of the first name has just one such statement."""
    words = tuple(words)
    if any(word[0] == "ctx" for word in words):
        return None  # what is wrong is elsewhere: in the Function
    file, name = _file_and_name(words)
    if not file or not name:
        return None
    found = _statements(file).get(name, ())
    if len(found) != 1:
        return None
    return ("kept_at", file, found[0], linecache.getline(file, found[0]).split("#")[0].strip()[:120])


def _file_and_name(words: tuple[Word, ...]) -> tuple[str, str]:
    """Of the variable or attribute that holds many: the last name before an item, or before the graph."""
    first, name = words[0], ""
    place = {"local": 3, "global": 2}.get(first[0])
    if place is None or len(first) <= place:
        return "", ""
    for at, word in enumerate(words):
        if word[0] in ("graph", *_CONTAINERS):
            return str(first[place]), name
        if word[0] in ("local", "global", "attribute"):
            name = str(word[1])
        elif at and word[0] in ("closure", "grad", "optimizer", "frame"):
            return "", ""
    return str(first[place]), name


@lru_cache(64)
def _statements(file: str) -> dict[str, tuple[int, ...]]:
    """Name → lines whose statements append to it, assign an item of it, or add to it."""
    source = "".join(linecache.getlines(file))
    found: dict[str, list[int]] = {}
    if 0 < len(source) <= _MOST_BYTES:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # not what runs: a notebook's magic, another version
            return {}
        for node in ast.walk(tree):
            for name in _kept_by(node):
                found.setdefault(name, []).append(node.lineno)  # type: ignore[attr-defined]
    return {name: tuple(sorted(set(lines))) for name, lines in found.items()}


def _kept_by(node: ast.AST) -> Iterator[str]:
    """The variables that a statement or call puts something into."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPING:
        yield from _name(node.func.value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield from _name(target.value)
    elif isinstance(node, ast.AugAssign):
        yield from _name(node.target.value if isinstance(node.target, ast.Subscript) else node.target)


def _name(node: ast.AST) -> Iterator[str]:
    while isinstance(node, ast.Subscript):  # seen["first"].append(…)
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
