"""Shows the source lines of a frame, and whether the file may have changed since the recording.

Works on text: no file is opened here.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from vramscope.model.stacks import Frame

_LONGEST = 400
"""Characters kept per line."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a source file."""

    number: int
    text: str
    is_frame: bool
    """Whether it is the line that the frame names."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The lines around a frame's line."""

    lines: tuple[SourceLine, ...] = ()
    """The lines; empty where the file has no such line."""
    doubt: str = ""
    """Why the file is not, or may not be, the one that ran; '' without such a reason."""


def excerpt(
    text: str, frame: Frame, *, context: int = 2, modified_ns: int = 0, recorded_ns: int = 0
) -> Excerpt:
    """The frame's line in the *text* of its file, with *context* lines before and after it.

    A file that changed since the recording may show another line than the one that ran: the result says so.

    *modified_ns* is when the file was last changed, *recorded_ns* when the recording began; 0 where unknown.
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


def kept_excerpt(
    lines: Mapping[int, str], frame: Frame, *, context: int = 2, modified_ns: int = 0, recorded_ns: int = 0
) -> Excerpt:
    """The frame's line among the *lines* that a recording keeps of its file; parameters as in ``excerpt``."""
    near = range(frame.line - context, frame.line + context + 1)
    is_newer = 0 < recorded_ns < modified_ns
    doubt = "the file was changed while the program ran: the line may be another" if is_newer else ""
    if frame.line not in lines:
        return Excerpt()
    return Excerpt(
        tuple(SourceLine(n, lines[n][:_LONGEST], n == frame.line) for n in near if n in lines), doubt
    )


def _doubt(text: str, frame: Frame, is_newer: bool) -> str:
    if not _may_hold(text, frame):
        return f"the file has changed since the recording: line {frame.line} is not in {frame.function}()"
    return "the file has changed since the recording began: the line may be another" if is_newer else ""


def _may_hold(text: str, frame: Frame) -> bool:
    """Whether the line lies in a function or class of the frame's name; True where that cannot be decided."""
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
