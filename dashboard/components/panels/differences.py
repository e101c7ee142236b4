"""A table of differences: names with bytes before and after, and the change as a bar."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dash import html

from vramscope.units import format_bytes

from .. import panel as panels
from .stack_table import to_code


class Difference(NamedTuple):
    """One name with its bytes before and after."""

    name: str
    detail: str
    before: int
    after: int
    stack: int = 0
    """Stack of its line; 0 where it is not a line, or the line is unknown."""

    @property
    def change(self) -> int:
        """Bytes after minus bytes before."""
        return self.after - self.before


def table(rows: Sequence[Difference], before: str, after: str, nothing: str, what: str = "What") -> Any:
    """Return the table in the order given.

    *before* and *after* are the headings of the two columns, *what* is that of the names.
    """
    if not rows:
        return html.P(nothing, className="dim nothing")
    top = max(abs(row.change) for row in rows) or 1
    columns = (what, before, after, "Change", "")
    return panels.table(columns, "ldrrl", [_row(row, top) for row in rows])


def _row(row: Difference, top: int) -> list[Any]:
    share = 50 * abs(row.change) / top
    grew = row.change > 0
    style = {"width": f"{share:.1f}%", "left": "50%" if grew else f"{50 - share:.1f}%"}
    bar = html.Div(html.I(style=style, className="more" if grew else "less"), className="diff-bar")
    words = [html.Bdi(row.name[:160], className="function"), html.Bdi(row.detail[:120], className="place")]
    place = html.Span(words, className="where", title=f"{row.name} {row.detail}"[:400])
    name = to_code(place, row.stack, row.name[:80])
    sign = "+" if grew else "−" if row.change else ""
    change = html.Td(
        f"{sign}{format_bytes(abs(row.change))}", className="number strong", title=f"{row.change:+,} bytes"
    )
    return [name, row.before, row.after, change, bar]
