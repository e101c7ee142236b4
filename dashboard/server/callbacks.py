"""Checks of a callback's request before the callback runs: values must fit the callback's annotations.

A browser sends back what a page holds: which callback, the values of its inputs, which of them changed.
Anybody with the token can write such a request by hand, so it is untrusted. Dash itself looks values
up by position and passes them on: a wrong one ends as an exception somewhere in a page, with a
traceback of a kilobyte in the log. Here the request is refused with 400 or 404 and one line in the log.

The annotations of the callbacks are the only place that says what a value may be. ``Any`` stands for a
value that the callback checks by itself.
"""

import json
import logging
import math
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from dash import Dash
from dash.exceptions import DependencyException, PreventUpdate
from flask import Response, abort, request

from vramscope.errors import VramscopeError
from vramscope.units import printable

from ..address import Address
from ..data import Data, View

_LOG = logging.getLogger(__name__)
_PATH = "/_dash-update-component"
_LARGEST_INTEGER = 1 << 63
"""Instants, rows and times are 64-bit integers: a larger number cannot be one of them."""


class Pressed(TypedDict, total=False):
    """A key that was pressed."""

    key: str


class Picked(TypedDict, total=False):
    """What was picked in a picture: a row, a node of a tree or a stack."""

    row: int | None
    node: int | None
    stack: int | None


class Point(TypedDict, total=False):
    """One point of a chart that was clicked."""

    customdata: Any


class Click(TypedDict, total=False):
    """A click into a chart, as Plotly reports it."""

    points: list[Point] | None


OutcomeWord = Literal["running", "finished", "failed", "died", "file", "gone"]
"""How a run ended (``model.recording.Outcome``), or that it cannot be read any more."""


class _Version(TypedDict):
    """Which state of which run."""

    run: str
    version: int
    outcome: OutcomeWord


class Standing(_Version, total=False):
    """The state of a run as the browser last received it."""

    seen: int
    step: int
    pace: float
    total: int
    ahead: list[str]
    stalled: int
    stopped: str
    other: bool
    altered: bool
    why: str


class Ready(TypedDict, total=False):
    """That a page can be laid out: for the first time, or because the run that it waits for has grown."""

    has_grown: bool


class Stored(TypedDict, total=False):
    """An address as the browser keeps it; its other values are read by ``address.restore``."""

    shown: Standing | None
    files: int
    """State of the files of a run that had ended when a page that reads no events was laid out."""
    is_pending: bool
    """Whether the page shows that it is being made."""


class Refusal(Exception):  # noqa: N818 — a request is refused: nothing of ours failed
    """A request that no page of vramscope sends."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


def view_or_nothing(data: Data, address: Address) -> View:
    """Return the view of a callback; raise PreventUpdate where there is none: the shell shows the reason."""
    try:
        return data.view(address)
    except VramscopeError as error:
        raise PreventUpdate from error


def guard(app: Dash) -> None:
    """Register the check that refuses requests no page sends; call it after ``security.protect``."""

    @app.server.before_request
    def check() -> None:
        if request.path != _PATH or request.method != "POST":
            return
        try:
            _check(app.callback_map, _body())
        except Refusal as refusal:
            _LOG.warning("refused a callback: %s", printable(str(refusal))[:300])
            abort(refusal.status, "No page of vramscope sends this request.")

    @app.server.errorhandler(DependencyException)
    def absent(_: DependencyException) -> Response:
        return Response("This file does not exist.", 404, mimetype="text/plain")


def _body() -> dict[str, Any]:
    try:
        # Flask caches the object: Dash gets the same one.
        body = request.get_json(silent=True)
    except RecursionError as error:
        raise Refusal("the body is nested too deeply") from error
    if not isinstance(body, dict):
        raise Refusal("the body is not a JSON object")
    return body


def _check(callbacks: dict[str, Any], body: dict[str, Any]) -> None:
    """Raise Refusal where *body* is not the request of one of *callbacks*."""
    output = body.get("output")
    declared = callbacks.get(output) if isinstance(output, str) else None
    if declared is None or "callback" not in declared:
        raise Refusal(f"there is no callback for {output!r:.80}", 404)
    inputs = _values("inputs", declared["inputs"], body.get("inputs"))
    state = _values("state", declared["state"], body.get("state", []))
    _check_outputs(declared["output"], body.get("outputs"))
    changed = body.get("changedPropIds", [])
    entries = [each for entry in body["inputs"] for each in (entry if isinstance(entry, list) else [entry])]
    names = {f"{_name(each['id'])}.{each['property']}" for each in entries}
    if not isinstance(changed, list) or not all(isinstance(name, str) and name in names for name in changed):
        raise Refusal("changedPropIds names no input")
    for (name, hint), value in zip(_hints(declared["callback"]), [*inputs, *state], strict=True):
        if not fits(value, hint):
            raise Refusal(f"{name} of {output:.80} cannot be {value!r:.80}")


def _hints(callback: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Names and types of a callback's parameters, in order."""
    hints = get_type_hints(getattr(callback, "__wrapped__", callback))
    return [(name, hint) for name, hint in hints.items() if name != "return"]


def _values(part: str, declared: list[dict[str, Any]], sent: Any) -> list[Any]:
    if not isinstance(sent, list) or len(sent) != len(declared):
        raise Refusal(f"{part} are not as declared")
    return [_value(part, wanted, entry) for wanted, entry in zip(declared, sent, strict=True)]


def _value(part: str, wanted: dict[str, Any], entry: Any) -> Any:
    """The value of one slot: a list of values where the slot stands for any number of components."""
    if wanted["id"].startswith("{"):
        pattern = json.loads(wanted["id"])
        if not isinstance(entry, list) or not all(_matches(pattern, wanted, each) for each in entry):
            raise Refusal(f"{part} are not as declared: {wanted['id']}")
        return [each.get("value") for each in entry]
    if not isinstance(entry, dict) or any(entry.get(key) != wanted[key] for key in ("id", "property")):
        raise Refusal(f"{part} are not as declared: {wanted['id']}")
    return entry.get("value")


def _matches(pattern: dict[str, Any], wanted: dict[str, Any], entry: Any) -> bool:
    """Whether *entry* is one of the components that *pattern* stands for; their numbers are integers."""
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), dict):
        return False
    named = entry["id"]
    return (
        entry.get("property") == wanted["property"]
        and named.keys() == pattern.keys()
        and all(
            fits(named[key], int) if word == ["ALL"] else named[key] == word for key, word in pattern.items()
        )
    )


def _check_outputs(declared: Any, sent: Any) -> None:
    several = isinstance(declared, list | tuple)
    wanted = list(declared) if several else [declared]
    entries = sent if several else [sent]
    if not isinstance(entries, list) or len(entries) != len(wanted):
        raise Refusal("outputs are not as declared")
    for each, entry in zip(wanted, entries, strict=True):
        # An output of several callbacks has a suffix after its property, which distinguishes them.
        if (
            not isinstance(entry, dict)
            or entry.get("id") != each.component_id
            or str(entry.get("property")).partition("@")[0] != each.component_property
        ):
            raise Refusal("outputs are not as declared")


def _name(component: str | dict[str, Any]) -> str:
    """The id as Dash writes it: the browser sorts the keys of an id that is an object."""
    if isinstance(component, str):
        return component
    return json.dumps(component, sort_keys=True, separators=(",", ":"))


def fits(value: Any, hint: Any) -> bool:
    """Whether a value out of JSON is of the type *hint*.

    *hint* is ``Any``, ``None``, ``bool``, ``int``, ``float``, ``str``, a ``Literal``, a ``TypedDict``, or
    lists, dicts and unions of these.
    """
    if hint is Any:
        return True
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, each) for each in get_args(hint))
    if hint in _PLAIN:
        return _PLAIN[hint](value)
    return _fits_whole(value, hint)


def _fits_whole(value: Any, hint: Any) -> bool:
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Literal:
        return any(value == word and type(value) is type(word) for word in inner)
    if kind is list:
        return isinstance(value, list) and all(fits(each, inner[0]) for each in value)
    if kind is dict:
        return isinstance(value, dict) and all(fits(each, inner[1]) for each in value.values())
    if is_typeddict(hint):
        named = get_type_hints(hint)
        return (
            isinstance(value, dict)
            and hint.__required_keys__ <= value.keys()
            and all(fits(value[name], each) for name, each in named.items() if name in value)
        )
    raise TypeError(f"{hint} cannot be checked: annotate the callback with what JSON has")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST_INTEGER


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    NoneType: lambda value: value is None,
    bool: lambda value: isinstance(value, bool),
    int: _is_integer,
    float: lambda value: _is_integer(value) or (isinstance(value, float) and math.isfinite(value)),
    str: lambda value: isinstance(value, str),
}
