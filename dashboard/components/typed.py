"""A box to type in, whose text is taken once the fingers rest.

Dash's own ``debounce=0.3`` puts the caret back to where it was at the last letter, so that who types fast
finds the letters scrambled. This one never touches the box.
"""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Input, Output, dcc


def box(name: str, value: str | None = None, **look: Any) -> list[Any]:
    """The box ``<name>-box`` and the store *name*, which follows it a quarter of a second later."""
    typed = {} if value is None else {"value": value}
    return [dcc.Input(id=f"{name}-box", **typed, **look), dcc.Store(id=name, data=value)]


def register(app: Any, name: str) -> None:
    """The callback of one box."""
    app.clientside_callback(
        ClientsideFunction("vramscope", "rested"),
        Output(name, "data"),
        Input(f"{name}-box", "value"),
        prevent_initial_call=True,
    )
