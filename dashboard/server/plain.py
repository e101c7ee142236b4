"""Parts that no callback changes, sent as data: a script makes their elements.

Dash compares everything that it knows at each of the hundred changes of one callback, and makes one more such
change for each component that is new. 47 components of two bars took half of that time on the page Peak.
"""

import json
from collections.abc import Mapping
from typing import Any

from dash.development.base_component import Component

_ATTRIBUTES = {"className": "class", "tabIndex": "tabindex", "colSpan": "colspan"}


def plain(part: Component) -> Component:
    """Return *part* with its content as data; only the components of ``dash.html`` may be in it."""
    content = [_node(each) for each in _children(part)]
    part.children = None
    setattr(part, "data-plain", json.dumps(content, separators=(",", ":")))
    return part


def _node(part: Any) -> Any:
    """Return a text as it is, and an element as its tag, its attributes and its content."""
    if not isinstance(part, Component):
        return str(part)
    if part._namespace != "dash_html_components":
        raise TypeError(f"a component of {part._namespace} cannot be plain")
    props = {name: value for name, value in part.to_plotly_json()["props"].items() if name != "children"}
    named = {_ATTRIBUTES.get(name, name): _text(value) for name, value in props.items()}
    shown = {name: text for name, text in named.items() if text is not None}
    return [part._type.lower(), shown, [_node(each) for each in _children(part)]]


def _children(part: Component) -> list[Any]:
    children = getattr(part, "children", None)
    listed = children if isinstance(children, (list, tuple)) else [children]
    return [each for each in listed if each is not None]


def _text(value: Any) -> str | None:
    """Return the text of an attribute; None where the element has none."""
    if isinstance(value, Mapping):
        dashed = {
            "".join(f"-{c.lower()}" if c.isupper() else c for c in name): v for name, v in value.items()
        }
        return ";".join(f"{name}:{v}" for name, v in dashed.items())
    if isinstance(value, bool):
        return "" if value else None
    return None if value is None else str(value)
