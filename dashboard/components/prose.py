"""Sentences of the analyses: what stands between backticks is code."""

from typing import Any

from dash import html


def prose(text: str) -> list[Any]:
    """*text* with its code as such; names in it stay text."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its other one: as it stands
        return [text]
    return [html.Code(html.Bdi(part)) if i % 2 else part for i, part in enumerate(parts) if part]
