"""Names the ``for`` statements that hold what they iterate over."""

import ast
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from vramscope.capture.holders.code_places import is_program
from vramscope.capture.holders.roots import Word
from vramscope.capture.holders.statement import parsed
from vramscope.capture.holders.unnamed import is_iterator

_LONGEST = 80


class _Loop(NamedTuple):
    """A ``for`` statement that runs."""

    text: str
    made_by: str
    """The name of what is called for its iterator, such as ``enumerate``; '' if nothing is."""
    function: str
    file: str
    line: int


def words_of(things: Iterable[Any], frame: types.FrameType | None) -> Iterator[tuple[Any, Word]]:
    """Yield each object with its first step: the statement that holds it, where only one can be it."""
    running = list(_running(frame))
    others = []
    for thing in things:
        kind: Any = type(thing)
        code = getattr(thing, "gi_code", None) if kind is types.GeneratorType else None
        name = code.co_name if code is not None else kind.__name__
        loops = [loop for loop in running if loop.made_by and loop.made_by in name]
        loops = loops or [loop for loop in running if loop.made_by not in _NAMED]
        if is_iterator(kind) and len(loops) == 1:
            yield thing, ("for", name, *loops[0][:1], *loops[0][3:])
        else:
            others.append((thing, ("unnamed", name)))
    yield from others


_NAMED = frozenset({"range", "enumerate", "zip", "map", "filter", "reversed"})
"""What makes iterators whose types have the same name."""


def _running(frame: types.FrameType | None) -> Iterator[_Loop]:
    mine = sys._getframe()
    for top in [frame, *(other for other in sys._current_frames().values() if other is not mine)]:
        at = top
        while at is not None:
            if is_program(at.f_code.co_filename):
                yield from _around(at)
            at = at.f_back


def _around(frame: types.FrameType) -> Iterator[_Loop]:
    file, line = frame.f_code.co_filename, frame.f_lineno
    tree = parsed(file)
    for node in ast.walk(tree) if tree is not None and line else ():
        is_around = isinstance(node, ast.For) and node.body[0].lineno <= line <= (
            node.body[-1].end_lineno or 0
        )
        if is_around and isinstance(node, ast.For):
            text = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
            text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
            yield _Loop(text, _name_of(node.iter), frame.f_code.co_name, file, node.lineno)


def _name_of(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else None
    return (
        called.id
        if isinstance(called, ast.Name)
        else called.attr
        if isinstance(called, ast.Attribute)
        else ""
    )
