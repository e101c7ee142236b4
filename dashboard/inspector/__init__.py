"""The inspector beside every page shows what was picked: a block, an instant, a step, a line, a free block.

What is picked is a letter and a number, in the URL as ``sel``: ``b12`` is a row of the lifetimes, ``i`` the
chosen instant, ``p3`` a step by its number, ``l7`` a stack, ``f5`` a free block of the chosen instant.
"""

import re
from typing import Any, TypedDict

from dash import Input, Output, State, dcc, html, no_update

from vramscope.package_data import rows

from ..address import restore
from ..answers import clamp
from ..components.scripts import in_browser
from ..data import Data, View
from ..server.callbacks import Stored, view_or_nothing
from . import block, free_block, instant, line, step

_SHOWN = {
    "b": block.content,
    "f": free_block.content,
    "i": instant.content,
    "p": step.content,
    "l": line.content,
}
_PICKED = re.compile(r"([bfilp])([0-9]{0,17})", re.ASCII)


_COPIES = rows(__file__, "copies.tsv")


class Selected(TypedDict, total=False):
    """What the script asks the inspector to show."""

    what: str
    at: int | None
    preview: bool


def layout() -> Any:
    """Return the inspector, closed; the shell has it once."""
    close = html.Button("Close", id="inspector-close", className="quiet", title="Close (Esc)")
    copies = [
        html.Button(word, type="button", className="quiet", title=title, **{"data-copy": what})
        for what, word, title in _COPIES
    ]
    hint = html.Span(id="inspector-hint")
    head = html.Div(
        [html.H2("Inspector", className="unseen"), hint, *copies, close], className="inspector-head"
    )
    body = html.Div(id="inspector-body", className="inspector-body", **{"aria-live": "polite"})
    return [
        html.Aside([head, body], id="inspector", className="inspector", hidden=True, tabIndex="-1",
                   **{"aria-label": "Inspector"}),
        dcc.Store(id="selected"),
    ]  # fmt: skip


def register(app: Any, data: Data) -> None:
    """Register the callback that fills the inspector."""

    @app.callback(
        Output("inspector-body", "children"), Input("selected", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def show(selected: Selected | None, stored: Stored | None) -> Any:
        address = restore(stored)
        if not selected or not address.run:
            return no_update
        view = view_or_nothing(data, address)
        return content(data, view, str(selected.get("what")), selected.get("at"))

    in_browser(app, "inspected", Input("address", "data"))


def content(data: Data, view: View, what: str, at: int | None) -> Any:
    """Return what the inspector shows; a sentence where nothing of that name exists.

    *what* is a letter and a number, as in the URL; *at* is None for the instant of the peak.
    """
    known = _PICKED.fullmatch(what)
    if known is None:
        return _nothing()
    made = _SHOWN[known[1]](data, view, int(known[2] or 0), clamp(data, view, at))
    return _nothing() if made is None else made


def _nothing() -> html.P:
    return html.P("This recording has nothing of that name.", className="dim")
