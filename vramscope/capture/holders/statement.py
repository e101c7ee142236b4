"""Finds the statements that put values into a variable, in the program's source."""

import ast
import linecache
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from vramscope.capture.holders.code_places import file_of_class
from vramscope.capture.holders.containers import KEEPING
from vramscope.capture.holders.roots import Word

_MOST_BYTES = 1 << 20
_CONTAINERS = ("item", "key")

_LONGEST = 120

Name = tuple[str, bool]
"""A name, and whether it is an attribute's."""

_Any = TypeVar("_Any")
_Place = tuple[int, int, int, int]
"""Line and column of a statement's beginning and end, as ``ast`` counts them."""


def kept_at(words: Iterable[Word], class_files: tuple[str, ...] = ()) -> Iterator[Word]:
    """Yield ``("kept_at", file, line, text, at)`` for each container on a way that one statement fills.

    The step ``words[at]`` is an item of the container; *at* is −1 for a variable without a container that
    leads into the graph or that a loop carries on, and for a metric that one call feeds. A container is left
    out unless exactly one statement fills it in the file of the way's first name, or else in one of
    *class_files*. The analysis decides later which of the containers grows.
    """
    words = tuple(words)
    found = (tuple(_kept_in(words, file)) for file in files_of(words, class_files))
    yield from next(filter(None, found), ())


def _kept_in(words: tuple[Word, ...], file: str) -> Iterator[Word]:
    fed = next((word for word in words if word[0] == "reset"), None)
    if fed is not None:
        calls = _feeding(file).get(str(fed[1]).rpartition(".")[2], ())
        if len(calls) == 1:
            yield ("kept_at", file, calls[0][0], _text(file, calls[0]), -1)
        return
    has_graph = any(word[0] == "graph" for word in words)
    for at, name in containers_on(words, file):
        is_plain = not has_graph and (at == -1 or words[at][::2] == ("item", "tuple"))
        found, place_at = () if is_plain else _statements(file).get(name, ()), at
        function = str(words[0][2]) if words[0][0] == "local" else "<module>"
        if not found and (has_graph or (is_plain and not name[1] and name[0] in carried(file, function))):
            found, place_at = _carrying(file).get(name, ()), -1
        if len(found) > 1 and at > 0 and words[at - 1][0] == "key":
            found = tuple(place for place in found if _key(_text(file, place)) in ("", words[at - 1][1]))
        if len(found) == 1:
            yield ("kept_at", file, found[0][0], _text(file, found[0]), place_at)


def _key(text: str) -> str:
    """The constant key in ``history["loss"].append(loss)`` as a path has it; '' if there is none."""
    try:
        node: Any = ast.parse(text).body[0]
    except SyntaxError:  # cut off
        return ""
    item: Any = getattr(getattr(getattr(node, "value", None), "func", None), "value", None)
    return repr(item.slice.value) if isinstance(getattr(item, "slice", None), ast.Constant) else ""


def files_of(words: tuple[Word, ...], class_files: tuple[str, ...]) -> list[str]:
    """The files of a way's first name and frames, if known, and *class_files*; none if it leads through ctx.

    The cause of a leak through ctx is elsewhere, in the autograd Function.
    """
    if any(word[0] == "ctx" for word in words):
        return []
    frames = [str(word[3]) for word in words if word[0] == "frame" and len(word) > 3]
    return list(dict.fromkeys(file for file in (_first_file(words), *frames, *class_files) if file))


def _first_file(words: tuple[Word, ...]) -> str:
    place = {"local": 3, "global": 2}.get(words[0][0], len(words[0]))
    return str(words[0][place]) if len(words[0]) > place else ""


def class_files(words: Sequence[Word], things: Sequence[Any]) -> tuple[str, ...]:
    """The files of the class whose attribute is the last before a container or graph, and of its bases.

    *things* are what the *words* lead to. Without either there is nothing to look for in a file.
    """
    owner = None
    for word, before in zip(words, (None, *things), strict=False):
        if word[0] in (*_CONTAINERS, "graph"):
            return () if owner is None else tuple(filter(None, map(file_of_class, type(owner).__mro__)))
        owner = before if word[0] == "attribute" else owner
    return ()


def containers_on(words: tuple[Word, ...], file: str) -> Iterator[tuple[int, Name]]:
    """Yield the index of each container's item, and the last name before it (variable or attribute).

    In a *file* other than that of the way's first name only attributes have the meaning that they have there.
    """
    is_own = _first_file(words) == file
    name: Name | None = None
    for at, word in enumerate(words):
        if word[0] in _CONTAINERS and name is not None:
            yield at, name
        elif word[0] == "graph":
            if name is not None and not any(before[0] in _CONTAINERS for before in words[:at]):
                yield -1, name
            return
        elif (
            word[0] == "attribute"
            or (word[0] in ("local", "global", "default") and is_own)
            or word[::3] == ("frame", file)
        ):
            name = (str(word[1]), word[0] == "attribute")
        elif at:
            name = None  # a name of another function, in another file
    if name is not None and not any(word[0] in _CONTAINERS for word in words):
        yield -1, name


def carried(file: str, function: str) -> frozenset[str]:
    """Variables that a loop of *function* reads before it assigns them, so they live from turn to turn.

    *function* is a name, or ``<module>`` for the file's own code.
    """
    return _carried(file).get(function, frozenset())


@lru_cache(64)
def _carried(file: str) -> dict[str, frozenset[str]]:
    tree = parsed(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found: dict[str, frozenset[str]] = {}
    for name, body in [("<module>", tree.body), *((each.name, each.body) for each in functions)]:
        loops = [node for node in _own_nodes(body) if isinstance(node, ast.For | ast.While)]
        # Functions of the same name in one file are combined.
        found[name] = found.get(name, frozenset()).union(*map(_read_first, loops))
    return found


def _own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes in the order of their evaluation, without those of inner functions and classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        yield node
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            # The target of an assignment comes first in the tree, but is evaluated last.
            parts = [node.value, *node.targets] if isinstance(node, ast.Assign) else [*parts[1:], parts[0]]
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


@lru_cache(64)
def parsed(file: str) -> ast.Module:
    """Parse a file; empty if its source is missing or cannot be parsed (a notebook's magic commands)."""
    source = "".join(linecache.getlines(file))
    try:
        return ast.parse(source if len(source) <= _MOST_BYTES else "")
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _by_line(found: Iterable[tuple[_Any, Any]]) -> dict[_Any, tuple[_Place, ...]]:
    """Return the places of the nodes that concern each name; the first one of each line."""
    places: dict[_Any, dict[int, _Place]] = {}
    for name, node in found:
        place = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
        places.setdefault(name, {}).setdefault(node.lineno, place)
    return {name: tuple(of_line.values()) for name, of_line in places.items()}


@lru_cache(64)
def _statements(file: str) -> dict[Name, tuple[_Place, ...]]:
    """The statements that append, add or assign items to each name."""
    return _by_line((name, node) for node in ast.walk(parsed(file)) for name in keeping(node))


@lru_cache(64)
def _carrying(file: str) -> dict[Name, tuple[_Place, ...]]:
    """The assignments to each name that read it, or what was assigned from it: they carry a state on."""
    assigned, sources, found = [], dict[str, set[str]](), list[tuple[Name, Any]]()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Assign):
            own, read = (
                {_dotted(each) for each in ast.walk(node) if isinstance(getattr(each, "ctx", None), kind)}
                - {""}
                for kind in (ast.Store, ast.Load)
            )
            assigned.append((node, own, read))
            for name in own:
                sources.setdefault(name, set()).update(read)
    for node, own, read in assigned:
        for name in own & read.union(*(sources[each] for each in read if each in sources)):
            before, _, last = name.rpartition(".")
            found.append(((last, bool(before)), node))
    return _by_line(found)


def _dotted(node: Any) -> str:
    """``self.total`` as it is written; '' for what is no name."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(64)
def _feeding(file: str) -> dict[str, tuple[_Place, ...]]:
    """The calls of each variable or attribute, or of its ``update``, as of a metric."""
    found: list[tuple[str, Any]] = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Call):
            is_update = isinstance(node.func, ast.Attribute) and node.func.attr == "update"
            named = name_of(getattr(node.func, "value", node.func) if is_update else node.func)
            found += [(name, node) for name, _ in named]
    return _by_line(found)


def _text(file: str, place: _Place) -> str:
    """The first line of a statement, without other code on the same line."""
    first, start, last, end = place
    # Columns count bytes.
    line = linecache.getline(file, first).encode()
    text = line[start : end if last == first else None].decode(errors="replace").strip()
    is_cut = last > first or len(text) > _LONGEST
    return f"{text[: _LONGEST - 1]}…" if is_cut else text


def keeping(node: ast.AST) -> Iterator[Name]:
    """Yield the variables that a statement or call puts values into."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPING:
        yield from name_of(node.func.value)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield from name_of(target.value)
    elif isinstance(node, ast.AugAssign):
        yield from name_of(node.target.value if isinstance(node.target, ast.Subscript) else node.target)


def name_of(node: ast.AST) -> Iterator[Name]:
    """Yield the variable or attribute that an expression names, or whose item it is."""
    # seen["first"].append(…), seen.setdefault("first", []).append(…)
    while isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("setdefault", "get")
    ):
        node = node.value if isinstance(node, ast.Subscript) else getattr(node.func, "value", node.func)
    if isinstance(node, ast.Name):
        yield node.id, False
    elif isinstance(node, ast.Attribute):
        yield node.attr, True
