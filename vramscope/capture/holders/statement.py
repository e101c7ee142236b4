"""Which statement of the program puts things into this variable? Read from its source, once a walk."""

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from vramscope.capture.holders.containers import KEEPING
from vramscope.capture.holders.roots import Word

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


def carried(file: str, function: str) -> frozenset[str]:
    """Variables that a loop of the *function* reads before it assigns them: they live on from turn to turn.

    *function*: its name, ``<module>`` for the file's own code.
    """
    return _carried(file).get(function, frozenset())


@lru_cache(64)
def _carried(file: str) -> dict[str, frozenset[str]]:
    tree = _tree(file)
    if tree is None:
        return {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found: dict[str, frozenset[str]] = {}
    for name, body in [("<module>", tree.body), *((each.name, each.body) for each in functions)]:
        loops = [node for node in _own_nodes(body) if isinstance(node, ast.For | ast.While)]
        # Functions of one name in one file are taken together.
        found[name] = found.get(name, frozenset()).union(*map(_read_first, loops))
    return found


def _own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes in the order they are evaluated, those of inner functions and classes left out."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        yield node
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            # What is assigned comes first in the tree, and last in time.
            parts = (
                [*parts[1:], parts[0]] if not isinstance(node, ast.Assign) else [node.value, *node.targets]
            )
        yield from _own_nodes(parts)


def _read_first(loop: ast.For | ast.While) -> frozenset[str]:
    first: dict[str, bool] = {}
    stored = set()
    for node in _own_nodes(loop.body):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            first.setdefault(node.target.id, True)
        if isinstance(node, ast.Name):
            is_read = isinstance(node.ctx, ast.Load)
            first.setdefault(node.id, is_read)
            if not is_read:
                stored.add(node.id)
    return frozenset(name for name, is_read in first.items() if is_read and name in stored)


def _tree(file: str) -> ast.Module | None:
    """None where the source is not at hand, or not what runs: a notebook's magic, another version."""
    source = "".join(linecache.getlines(file))
    if not 0 < len(source) <= _MOST_BYTES:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


@lru_cache(64)
def _statements(file: str) -> dict[_Name, tuple[_Place, ...]]:
    """Name → what appends to it, assigns an item of it, or adds to it; the first of each line."""
    found: dict[_Name, dict[int, _Place]] = {}
    tree = _tree(file)
    for node in ast.walk(tree) if tree is not None else ():
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
