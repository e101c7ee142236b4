"""Finds the bounds of containers in the source: comparisons of their length that end their growth."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from vramscope.capture.holders.roots import Word
from vramscope.capture.holders.statement import Name, containers_on, files_of, keeping, name_of, parsed

_BELOW, _ABOVE = (ast.Lt, ast.LtE, ast.NotEq), (ast.Gt, ast.GtE, ast.Eq)
_TURNED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_REMOVING = frozenset({"pop", "popleft", "popitem", "clear", "remove"})
_LEAVES = (ast.Return, ast.Continue)


class LengthLimit(NamedTuple):
    """A comparison with the length of a container that bounds it."""

    line: int
    text: str
    n_items: int
    """0 if the source does not say the number."""


def bounded_at(words: tuple[Word, ...], class_files: tuple[str, ...] = ()) -> Iterator[Word]:
    """Yield ``("limit", file, line, text, at, items)`` for each container on a way that has a bound."""
    for file in files_of(words, class_files):
        for at, name in containers_on(words, file):
            bound = bounds(file).get(name)
            if bound is not None and at >= 0:
                yield ("limit", file, bound.line, bound.text, at, bound.n_items)


@lru_cache(64)
def bounds(file: str) -> dict[Name, LengthLimit]:
    """The bounds of the containers of a file, by variable or attribute.

    A container is bounded where it gets items only below a length, or loses some above one.
    """
    tree = parsed(file)
    numbers = _numbers(tree)
    found: dict[Name, LengthLimit] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            for name, is_below, limit in _lengths(node.test):
                body, rest = (node.body, node.orelse) if is_below else (node.orelse, node.body)
                # A loop that fills a list up to its length grows until its own end.
                kept = {each for part in body for inner in ast.walk(part) for each in keeping(inner)}
                if (isinstance(node, ast.If) and name in kept) or _ends(rest, name):
                    text = f"`{ast.unparse(node.test)}`"
                    found.setdefault(name, LengthLimit(node.lineno, text, numbers.get(ast.unparse(limit), 0)))
    return found


def _lengths(test: ast.expr) -> Iterator[tuple[Name, bool, ast.expr]]:
    """Yield container, whether the test holds below the length, and the length, for each comparison."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, kind, right = node.left, type(node.ops[0]), node.comparators[0]
            for side, limit, way in ((left, right, kind), (right, left, _TURNED.get(kind, kind))):
                is_length = isinstance(side, ast.Call) and ast.unparse(side.func) == "len" and side.args
                if is_length and isinstance(side, ast.Call) and issubclass(way, (*_BELOW, *_ABOVE)):
                    yield from ((name, issubclass(way, _BELOW), limit) for name in name_of(side.args[0]))


def _ends(body: list[ast.stmt], name: Name) -> bool:
    """Whether the statements take items out of the container, or leave before it gets some."""
    return any(name in _removed_from(node) for each in body for node in ast.walk(each)) or (
        bool(body) and isinstance(body[-1], _LEAVES)
    )


def _removed_from(node: ast.AST) -> list[Name]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _REMOVING:
        return list(name_of(node.func.value))
    targets = node.targets if isinstance(node, ast.Delete | ast.Assign) else []
    return [name for target in targets for name in name_of(target)]


def _numbers(tree: ast.AST) -> dict[str, int]:
    """The names that have one number in the file, as ``CAPACITY`` and ``self.size``, and the numbers."""
    found: dict[str, set[object]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found.setdefault(ast.unparse(target), set()).add(getattr(node.value, "value", None))
        elif isinstance(node, ast.Constant):
            found.setdefault(ast.unparse(node), set()).add(node.value)
    return {
        text: value
        for text, values in found.items()
        if len(values) == 1 and type(value := next(iter(values))) is int and value > 0
    }
