"""Callbacks that run in the browser: functions of ``assets``."""

from typing import Any

from dash import ClientsideFunction, Output


def in_browser(app: Any, function: str, *parts: Any, at_once: bool = False) -> None:
    """Register a function of ``vramscope`` in the browser for its outputs, inputs and states.

    Without an output it returns nothing of use. It is called for a new page where it is called *at_once*.
    """
    has_output = any(isinstance(part, Output) for part in parts)
    outputs = () if has_output else (Output("sink", "data", allow_duplicate=True),)
    later = "initial_duplicate" if at_once and not has_output else not at_once
    called = ClientsideFunction("vramscope", function)
    app.clientside_callback(called, *outputs, *parts, prevent_initial_call=later)
