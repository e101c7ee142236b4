"""Sentences of pages and analyses; text between backticks becomes code."""

import re
from typing import Any

from dash import html


def prose(text: str) -> list[Any]:
    """Return the parts of *text*; those between backticks are code, escaped like all text."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick: the text stays as it is
        return [text]
    return [html.Code(html.Bdi(part)) if i % 2 else part for i, part in enumerate(parts) if part]


_UNIT = re.compile(r" (?=· )|(?<=[0-9]) (?=(?:[KMGTP]iB|B|%|h|min|s|ms|µs|ns|GB)(?![A-Za-z]))")


def on_demand(name: str, *content: Any) -> html.Details:
    """Return what not everybody needs, behind its name."""
    return html.Details([html.Summary(name), *content], className="message")


def claim_heading(parts: str | list[Any]) -> html.H2:
    """Return the heading of what a page found; no line ends before a unit, or begins with a dot."""
    listed = parts if isinstance(parts, list) else [parts]
    kept = [_UNIT.sub("\u00a0", part) if isinstance(part, str) else part for part in listed]
    return html.H2(kept if isinstance(parts, list) else kept[0], className="claim")


def sentence(text: str) -> str:
    """Return *text* with a capital and a period; no capital where it begins with the name of a setting."""
    first = text.split(" ", 1)[0]
    return f"{text if ':' in first[:-1] or '.' in first else text[:1].upper() + text[1:]}."
