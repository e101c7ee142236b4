"""What panels consist of: a bar with the title, a key of colors, a table, a choice among a few values."""

from collections.abc import Iterable, Sequence
from typing import Any

from dash import html

from vramscope.units import format_bytes

from .definitions import explained


def panel(
    title: Any, *content: Any, beside: Any = None, kind: str = "", label: str = "", **more: Any
) -> html.Section:
    """Return *content* below a bar with the title and what stands *beside* it; *kind* is a further class."""
    heading = html.H3(title) if isinstance(title, str) else title
    bar = html.Div([heading] if beside is None else [heading, beside], className="panel-bar")
    more = {"aria-label": label or title} | more
    return html.Section([bar, *content], className=f"panel {kind}".strip(), **more)


def titled(title: str, words: str, meaning: str) -> html.Div:
    """Return a title with *words* about its extent, whose meaning appears on hover and focus."""
    extent = html.Span(words, className="term dim", tabIndex="0")
    return html.Div([html.H3(title), explained(extent, meaning)], className="titled")


def color_key(colors: Iterable[tuple[str, Any]], kind: str) -> html.Div:
    """Return what each color stands for."""
    entries = [
        html.Span([html.I(className="swatch", style={"background": color}), word]) for color, word in colors
    ]
    return html.Div(entries, className=f"lane-key {kind}-key")


def parts_bar(parts: Iterable[tuple[str, int]]) -> html.Div:
    """Return a bar of segments: the name of each in the palette of parts, and its bytes."""
    shown = [(f"part part-{name}", {"flexGrow": str(n_bytes)}) for name, n_bytes in parts]
    bar = [html.Span(className=name, style=style) for name, style in shown]
    return html.Div(bar, className="parts", role="presentation")


_SIDES = {"l": None, "r": "number", "d": "number dim"}


def table(columns: Sequence[Any], aligned: str, rows: Sequence[Sequence[Any]], kind: str = "") -> html.Table:
    """Return a table; *aligned* has a letter for each column: ``l``, ``r`` for numbers, ``d`` for dim ones.

    A row has a cell for each column: a ``Td``, or what it contains, where an int is bytes.
    """
    # A column of bars has no name: a heading without words is none to a reader of screens.
    head = [
        html.Th(column, className=None if side == "l" else "number") if column else html.Td()
        for column, side in zip(columns, aligned, strict=True)
    ]
    body = [html.Tr(list(map(_cell, row, aligned))) for row in rows]
    return html.Table([html.Thead(html.Tr(head)), html.Tbody(body)], className=f"diff {kind}".strip())


def _cell(content: Any, side: str) -> html.Td:
    if isinstance(content, html.Td):
        return content
    is_size = isinstance(content, int)
    title = {"title": f"{content:,} bytes"} if is_size else {}
    return html.Td(format_bytes(content) if is_size else content, className=_SIDES[side], **title)


def bar(share: float, kind: str = "", **style: str) -> html.Div:
    """Return a bar of that share of its cell; *kind* is the class that colors it."""
    look = {"left": "0", "width": f"{100 * share:.1f}%"} | ({} if kind else {"background": "var(--ink-3)"})
    return html.Div(html.I(style=look | style, className=kind or None), className="diff-bar plain")


def facts(*rows: tuple[Any, Any], kind: str = "") -> html.Dl:
    """Return names and values; rows without a value are left out. *kind* is a further class."""
    shown = [html.Div([html.Dt(name), html.Dd(value)]) for name, value in rows if value not in (None, "")]
    return html.Dl(shown, className=f"fact-list {kind}".strip())


def peak_bar(held: int, own: int, top: int) -> html.Div:
    """Return the bar of the bytes *held*, with a mark at the own peak."""
    mark = {"left": f"calc({100 * own / top:.1f}% - 2px)", "width": "2px"}
    bars = [
        html.I(style={"left": "0", "width": f"{100 * held / top:.1f}%"}, className="held"),
        html.I(style=mark, className="own"),
    ]
    return html.Div(bars, className="diff-bar plain")


def segments(name: str, links: Iterable[tuple[str, str, bool]]) -> Any:
    """Return a row of links of which one is current.

    *links* are word, address and whether it is the current one, for each value.
    """
    shown = [html.A(word, href=url, className="here" if here else "") for word, url, here in links]
    label = html.Span(name, className="segments-name")
    nav = html.Nav(shown, className="segments", **{"aria-label": name})
    return html.Div([label, nav], className="choice-of")
