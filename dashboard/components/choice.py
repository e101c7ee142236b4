"""A choice among a few values as links: each value has an address."""

from collections.abc import Iterable
from typing import Any

from dash import dcc, html


def segments(name: str, links: Iterable[tuple[str, str, bool]], key: str = "") -> Any:
    """Return a row of links of which one is current.

    *links* are word, address and whether it is the current one, for each value; *key* is the id of the
    component.
    """
    shown = [dcc.Link(word, href=url, className="here" if here else "") for word, url, here in links]
    label = html.Span(name, className="segments-name")
    more = {"id": key} if key else {}
    nav = html.Nav(shown, className="segments", **more, **{"aria-label": name})
    return html.Div([label, nav], className="choice-of")
