"""What does a frame's line say, and is the file at hand still the one that ran?

Text in, lines out: no file is opened here.
"""

import ast
from dataclasses import dataclass

from vramscope.model.stacks import Frame

_LONGEST = 400
"""Characters of a line that are kept."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a source file."""

    number: int
    text: str
    is_frame: bool
    """Whether it is the line that the frame names."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The lines around a frame's."""

    lines: tuple[SourceLine, ...] = ()
    """Empty where the file has no such line."""
    doubt: str = ""
    """Why the file is not, or may not be, the one that ran; '' where nothing speaks against it."""


def excerpt(
    text: str, frame: Frame, *, context: int = 2, modified_ns: int = 0, recorded_ns: int = 0
) -> Excerpt:
    """The frame's line in the *text* of its file, with *context* lines before and behind it.

    *modified_ns*: when the file was last changed; *recorded_ns*: when the recording began (Unix; 0 = not
    known). A file that changed since may show another line than the one that ran: that is said, never hidden.
    """
    lines = text.splitlines()
    if not 1 <= frame.line <= len(lines):
        return Excerpt(doubt=f"the file has {len(lines)} lines now: it is not the one that ran")
    first = max(frame.line - context, 1)
    return Excerpt(
        tuple(
            SourceLine(number, lines[number - 1][:_LONGEST], number == frame.line)
            for number in range(first, min(frame.line + context, len(lines)) + 1)
        ),
        _doubt(text, frame, 0 < recorded_ns < modified_ns),
    )


def _doubt(text: str, frame: Frame, is_newer: bool) -> str:
    if not _may_hold(text, frame):
        return f"the file has changed since the recording: line {frame.line} is not in {frame.function}()"
    return "the file has changed since the recording began: the line may be another" if is_newer else ""


def _may_hold(text: str, frame: Frame) -> bool:
    """Whether the line lies in a function or class of the frame's name; True where that cannot be told."""
    if not frame.function.isidentifier():  # <module>, <lambda>, <listcomp> …
        return True
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(
        isinstance(node, kinds) and node.name == frame.function and _reaches(node, frame.line)
        for node in ast.walk(tree)
    )


def _reaches(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, line: int) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return first <= line <= (node.end_lineno or node.lineno)
