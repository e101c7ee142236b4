"""Sentences of the analyses; text between backticks becomes code."""

from typing import Any

from dash import html


def prose(text: str) -> list[Any]:
    """Return the parts of *text*; those between backticks are code, escaped like all text."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick: the text stays as it is
        return [text]
    return [html.Code(html.Bdi(part)) if i % 2 else part for i, part in enumerate(parts) if part]
