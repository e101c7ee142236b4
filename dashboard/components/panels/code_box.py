"""A dialog with the line of code and stack of a number; any text can be a button that opens it."""

from typing import Any

import numpy as np
from dash import ClientsideFunction, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from vramscope.errors import VramscopeError
from vramscope.model.stacks import Stacks

from ...address import restore
from ...data import Data
from ...server.callbacks import Picked, Stored
from . import stack_table


def to_code(shown: Any, stack: int, name: str = "") -> Any:
    """Return *shown* as a button that opens *stack*; unchanged where *stack* is 0."""
    if stack <= 0:
        return shown
    title = f"Show the line of code{f' of {name}' if name else ''}"
    return html.Button(shown, type="button", className="to-code", title=title, **{"data-stack": str(stack)})


def stack_of(stacks: Stacks, file: str, line: int) -> int:
    """Return a stack whose innermost frame is that line; 0 where none is."""
    at = np.flatnonzero(stacks.line == line)
    names = np.array([stacks.strings[i] == file for i in stacks.file[at].tolist()], "?")
    found = at[names] if len(at) else at
    return int(found[0]) if len(found) else 0


def layout() -> Any:
    """Return the dialog; the shell has it once."""
    close = html.Button("Close", id="code-close", className="quiet")
    return [
        html.Dialog(
            [html.Div(id="code-answer", className="detail-like"), close],
            id="code-box", className="help code-box", **{"aria-label": "Line of code"},
        ),
        dcc.Store(id="code-ask"), dcc.Store(id="code-open"),
    ]  # fmt: skip


def register(app: Any, data: Data) -> None:
    """Register the callback that fills the dialog."""

    @app.callback(
        Output("code-answer", "children"), Input("code-ask", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def answer(ask: Picked | None, stored: Stored | None) -> Any:
        try:
            view = data.view(restore(stored))
        except VramscopeError as error:
            raise PreventUpdate from error
        return stack_table.detail(view, (ask or {}).get("stack"))

    app.clientside_callback(
        ClientsideFunction("vramscope", "opened"), Output("code-open", "data"),
        Input("code-answer", "children"), prevent_initial_call=True,
    )  # fmt: skip
