"""Parts that no callback changes, sent as data: a script makes their elements.

Dash compares everything that it knows at each of the hundred changes of one callback, and makes one more such
change for each component that is new: a fourth of what the browser works when the timeline moves.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from copy import copy
from functools import cached_property, wraps
from typing import Any

from dash import Dash
from dash.development.base_component import Component

_ATTRIBUTES = {"className": "class", "htmlFor": "for"}
_KNOWN_TO_SCRIPTS = {"standing"}
"""Ids of elements whose content scripts change by ``set_props``."""


class ThinDash(Dash):
    """Dash whose callbacks send as data what no other callback changes."""

    def callback(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Register a callback as Dash does."""
        register = super().callback(*arguments, **options)

        def added(function: Callable[..., Any]) -> Callable[..., Any]:
            register(wraps(function)(lambda *values: thinned(function(*values), self.known_ids)))
            return function

        return added

    @cached_property
    def known_ids(self) -> frozenset[str]:
        """The ids of all inputs, outputs and states, once all are registered, among other words."""
        return frozenset(re.findall(r"[\w-]+", str(self._callback_list))) | _KNOWN_TO_SCRIPTS


def thinned(content: Any, known_ids: Set[str] = frozenset()) -> Any:
    """Return what a callback returns, with each part as data in which no callback knows anything.

    *known_ids* are those of the inputs, outputs and states of all callbacks.
    """
    if isinstance(content, (list, tuple)):
        return [thinned(each, known_ids) for each in content]
    inner = getattr(content, "children", None) if isinstance(content, Component) else None
    if not isinstance(inner, (list, tuple, Component)):
        return content  # one component, with a text at most
    part = copy(content)
    part.children = None
    if _is_inert(content, known_ids):
        setattr(part, "data-plain", as_data(_children(content)))
    else:
        part.children = thinned(inner, known_ids)
    return part


def as_data(parts: Sequence[Any]) -> str:
    """Return elements of HTML and texts as the attribute ``data-plain`` of the element that has them."""
    return json.dumps(list(map(_node, parts)), separators=(",", ":"))


def _is_inert(part: Any, known_ids: Set[str]) -> bool:
    """Whether no callback knows *part* nor anything in it, and elements of HTML are all that it has."""
    if not isinstance(part, Component):
        return not isinstance(part, (list, tuple))
    name = getattr(part, "id", "")
    is_free = isinstance(name, str) and name not in known_ids and part._namespace == "dash_html_components"
    return is_free and all(_is_inert(each, known_ids) for each in _children(part))


def _node(part: Any) -> Any:
    """Return a text as it is, and an element as its tag, its attributes and its content."""
    if not isinstance(part, Component):
        return str(part)
    props = part.to_plotly_json()["props"]
    named = {
        _ATTRIBUTES.get(name, name.lower()): text_of(props[name]) for name in props if name != "children"
    }
    shown = {name: text for name, text in named.items() if text is not None}
    return [part._type.lower(), shown, [_node(each) for each in _children(part)]]


def _children(part: Component) -> list[Any]:
    inner = getattr(part, "children", None)
    return [each for each in (inner if isinstance(inner, (list, tuple)) else [inner]) if each is not None]


def text_of(value: Any) -> str | None:
    """Return the text of an attribute; None where the element has none."""
    if isinstance(value, Mapping):
        dashed = {
            "".join(f"-{c.lower()}" if c.isupper() else c for c in name): v for name, v in value.items()
        }
        return "; ".join(f"{name}: {v}" for name, v in dashed.items())
    if isinstance(value, bool):
        return "" if value else None
    return None if value is None else str(value)
