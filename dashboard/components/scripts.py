"""Callbacks that run in the browser, and a text box whose value is taken after the last letter."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Input, Output, dcc


def in_browser(app: Any, function: str, *parts: Any, at_once: bool = False) -> None:
    """Register a function of ``vramscope`` in the browser for its outputs, inputs and states.

    Without an output it returns nothing of use. It is called for a new page where it is called *at_once*.
    """
    has_output = any(isinstance(part, Output) for part in parts)
    outputs = () if has_output else (Output("sink", "data", allow_duplicate=True),)
    later = "initial_duplicate" if at_once and not has_output else not at_once
    called = ClientsideFunction("vramscope", function)
    app.clientside_callback(called, *outputs, *parts, prevent_initial_call=later)


def box(name: str, value: str | None = None, **look: Any) -> list[Any]:
    """Return the box ``<name>-box`` and the store *name*, which follows it a quarter of a second later."""
    typed = {} if value is None else {"value": value}
    return [dcc.Input(id=f"{name}-box", **typed, **look), dcc.Store(id=name, data=value)]


def register(app: Any, name: str) -> None:
    """Register the callback of one box."""
    in_browser(app, "rested", Output(name, "data"), Input(f"{name}-box", "value"))
