"""A command with a button that copies it."""

from typing import Any

from dash import html


def command(text: str, *, name: str = "Copy the command") -> Any:
    """Return *text* as a line of code; the script ``copy.js`` serves the button."""
    button = html.Button("Copy", type="button", className="copy", title=name)
    return html.Div(
        [html.Pre(html.Code(html.Bdi(text)), className="copy-text"), button], className="copyable"
    )
