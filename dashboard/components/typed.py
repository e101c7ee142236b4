"""A text box whose value is taken a quarter of a second after the last letter.

Dash's own ``debounce=0.3`` resets the caret to its position at the last letter, which scrambles the letters
of a fast typist. This one never writes into the box.
"""

from __future__ import annotations

from typing import Any

from dash import Input, Output, dcc

from .scripts import in_browser


def box(name: str, value: str | None = None, **look: Any) -> list[Any]:
    """Return the box ``<name>-box`` and the store *name*, which follows it a quarter of a second later."""
    typed = {} if value is None else {"value": value}
    return [dcc.Input(id=f"{name}-box", **typed, **look), dcc.Store(id=name, data=value)]


def register(app: Any, name: str) -> None:
    """Register the callback of one box."""
    in_browser(app, "rested", Output(name, "data"), Input(f"{name}-box", "value"))
