"""What the contents of the inspector share: a title, facts, buttons that pick something else."""

from typing import Any

import numpy as np
from dash import html

from vramscope.units import format_bytes

from ..address import Address
from ..components.panels import stack_table
from ..data import View


def title(kind: str, words: Any, below: Any = None) -> html.Header:
    """Return the heading: what kind of thing is shown, its name or size, and a line below."""
    return html.Header(
        [
            html.P(kind, className="inspector-kind"),
            html.H3(words),
            html.P(below, className="dim") if below else html.Span(),
        ]
    )


def pick(shown: Any, what: str, at: int | None = None) -> html.Button:
    """Return a button that shows *what* in the inspector, and moves the instant where *at* is given."""
    more = {} if at is None else {"data-at": str(at)}
    return html.Button(shown, type="button", className="to-code", **{"data-inspect": what}, **more)


def section(heading: str, *content: Any) -> html.Section:
    """Return a part of the inspector with its heading."""
    return html.Section([html.H4(heading), *content])


def amount(n_bytes: int, *, is_lower_bound: bool = False) -> html.Span:
    """Return a size whose exact bytes appear on hover."""
    at_least = "at least " if is_lower_bound else ""
    return html.Span(f"{at_least}{format_bytes(n_bytes)}", title=f"{n_bytes:,} bytes")


def blocks_link(view: View, words: str, search: str) -> Any:
    """Return a link to the allocations that a search finds."""
    return html.A(words, href=Address("/allocations", *view.here, q=search).url, className="link")


def stack_section(view: View, stack: int) -> html.Section:
    """Return the part of the inspector that shows a stack and its source."""
    shown = stack_table.detail(view, stack)
    return section("Stack", *(shown if isinstance(shown, list) else [shown]))


def holder(code: Any, stack: int) -> Any:
    """Return a button that shows the user's line of a stack."""
    name = line_name(code, stack)
    return pick(html.Bdi(name), f"l{stack}") if name else html.Span("no stack recorded", className="dim")


def keepers(code: Any, blocks: Any, rows: Any, most: int) -> html.Ul:
    """Return the largest blocks among *rows*, each with its line and size."""
    largest = rows[np.argsort(-blocks.size[rows], kind="stable")][:most]
    listed = [html.Li([holder(code, int(blocks.stack_id[k])), amount(int(blocks.size[k]))]) for k in largest]
    return html.Ul(listed, className="picks")


def line_name(code: Any, stack: int) -> str:
    """Return the user's line of a stack as ``forward model.py:12``; '' where it has none."""
    frame = code.frame(stack)
    return f"{frame.function[:80]} {stack_table.marked_place(code, int(code.place[stack]))}" if frame else ""
