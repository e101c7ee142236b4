"""A page of headings, sentences and tables, printed in a terminal or as Markdown."""

import json
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from vramscope.errors import VramscopeError
from vramscope.units import printable


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of the blocks after it."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """One sentence or line of text."""

    text: str
    kind: str = "plain"
    """``plain``, ``quiet``, ``note``, ``warning``, ``error``; of answers ``yes``, ``partly``, ``no``."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text cells."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str
    """The alignment, one letter per column: ``l`` or ``r``."""


Block = Heading | Text | Grid

# A column of words is wrapped to at least so many letters.
_NARROW = 14
_STYLES = {"plain": "", "quiet": "dim", "note": "yellow", "warning": "yellow", "error": "red"}
_STYLES |= {"yes": "green", "partly": "yellow", "no": "red"}


def print_answer(args: Namespace, as_json: Callable[[], Any], blocks: Iterable[Block]) -> int:
    """Print what a command answers, as JSON where that is wanted, else as a page; return the exit code."""
    if args.json:
        print(json.dumps(as_json(), indent=2))
    else:
        print_page(blocks, is_markdown="markdown" in args and args.markdown)
    return 0


def print_page(blocks: Iterable[Block], *, is_markdown: bool) -> None:
    """Print the page as Markdown or for the terminal."""
    if is_markdown:
        print(markdown(list(blocks)), end="")
    else:
        print_terminal(list(blocks))


def print_terminal(blocks: Iterable[Block]) -> None:
    """Print the page on stdout; on a terminal in color."""
    try:
        from rich.console import Console
    except ImportError:
        # rich is a dependency, but a program run from a checkout may lack it.
        raise VramscopeError("tables need rich: pip install rich, or ask for --json") from None

    class Page(Console):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 -- rich is handling it, and would exit with 1

    console = Page(highlight=False, soft_wrap=False)
    if console.is_terminal:
        _print_blocks(console, blocks)
        return
    console.width = max(console.width, 500)  # a file has no right edge
    with console.capture() as captured:
        _print_blocks(console, blocks)
    # rich pads every cell: the last cell of a row would be as wide as the widest of its column.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _print_blocks(console: Any, blocks: Iterable[Block]) -> None:
    for block in blocks:
        if isinstance(block, Heading):
            console.print(_styled(f"\n{printable(block.text)}", "bold"))
        elif isinstance(block, Grid):
            # The table may be wider than the terminal: a number that is cut off would be another number.
            width, console.width = console.width, max(console.width, _least_width(block))
            console.print(_rich_table(block), crop=False)
            console.width = width
        else:
            mark = "! " if block.kind in ("note", "warning", "error") else ""
            console.print(_styled(mark + printable(block.text), _STYLES[block.kind]))


def _styled(text: str, style: str) -> Any:
    from rich.text import Text as Styled

    return Styled(text, style)


def _least_width(grid: Grid) -> int:
    """Return the least width in letters: figures are never wrapped, columns of words may be narrow."""
    columns = zip(*(row for row in (grid.header, *grid.rows)), strict=True)
    widest = (max(len(printable(cell)) for cell in column) for column in columns)
    return sum(
        (min(width, _NARROW) if align == "l" else width) + 2
        for width, align in zip(widest, grid.align, strict=True)
    )


def _rich_table(grid: Grid) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.show_header = any(grid.header)
    for title, align in zip(grid.header, grid.align, strict=True):
        wide = align == "l"
        table.add_column(title, justify="left" if wide else "right", no_wrap=not wide, overflow="fold")
    for row in grid.rows:
        table.add_row(*(_styled(printable(cell), "") for cell in row))
    return table


def markdown(blocks: Sequence[Block]) -> str:
    """Return the page as GitHub's Markdown."""
    parts = []
    for kind, group in groupby(blocks, key=type):
        if kind is Text:
            parts.append("\n".join(f"- {_escaped(block.text)}" for block in group if isinstance(block, Text)))
        else:
            parts += [_markdown_block(block) for block in group]
    return "\n\n".join(parts) + "\n"


def _markdown_block(block: Block) -> str:
    if isinstance(block, Grid):
        rules = tuple("---" if align == "l" else "---:" for align in block.align)
        return "\n".join(
            f"| {' | '.join(map(_escaped, row))} |" for row in (block.header, rules, *block.rows)
        )
    assert isinstance(block, Heading)  # noqa: S101 - for the type checker
    return f"{'#' * block.level} {_escaped(block.text)}"


def _escaped(text: str) -> str:
    r"""Escape *text*: ``<module>`` is not a tag, ``__init__`` not bold, ``a|b`` one cell."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return printable(text.replace("\n", " "))
