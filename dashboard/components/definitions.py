"""Definitions of the quantities and terms, shown on hover and on focus."""

from typing import Any

from dash import html

from vramscope.package_data import words

DEFINITION = words(__file__, "definitions.tsv", "definition")
LABEL = words(__file__, "definitions.tsv", "label")


def term(name: str, text: Any = None) -> Any:
    """Return *text* with the definition of *name* for pointer and keyboard."""
    label = html.Span(text if text is not None else LABEL.get(name, name), className="term", tabIndex="0")
    return explained(label, DEFINITION[name])


def explained(child: Any, sentence: str) -> Any:
    """Return *child* with a sentence that appears on hover and focus."""
    # An attribute of its own element: an element around it would be another item of its row.
    setattr(child, "data-means", sentence)
    return child
