"""One of a few, as links: a choice is an address."""

from collections.abc import Iterable
from typing import Any

from dash import dcc, html


def segments(name: str, links: Iterable[tuple[str, str, bool]], key: str = "") -> Any:
    """*links* are word, address and whether it is the present one."""
    shown = [dcc.Link(word, href=url, className="here" if here else "") for word, url, here in links]
    label = html.Span(name, className="segments-name")
    more = {"id": key} if key else {}
    nav = html.Nav(shown, className="segments", **more, **{"aria-label": name})
    return html.Div([label, nav], className="choice-of")
