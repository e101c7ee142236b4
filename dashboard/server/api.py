"""Requests and responses of the browser's scripts: strict parameters in, compressed columns out.

Columns are sent as ``[u4 length of the header][JSON header][columns]``; the header has name, length, type,
unit and divisor of each column, and the type of its sums where its numbers are changes. A raster is sent as
runs of equal pixels; its ids are rows of the lifetimes.
"""

import gzip
import json
import math
import secrets
from typing import Any, NamedTuple, NoReturn

import numpy as np
from flask import Response, abort, jsonify, request
from numpy.typing import NDArray

from vramscope.errors import VramscopeError

from ..address import restore
from ..data import Data, View
from .malloc_tuning import keep_between_requests

MOST_COLUMNS, MOST_ROWS = 2000, 1600
NS_PER_S, _MOST_EXACT = 1_000_000_000, 1 << 53
_CALMER = 16
"""How many times smaller than the numbers of a column their changes are where these are sent."""
PATH = "/alive"


def view_of(data: Data) -> View:
    """Return the recording that the request names; 404 where there is none."""
    keep_between_requests()
    try:
        return data.view(restore(request.args.to_dict()))
    except VramscopeError:
        abort(404, "This run does not exist, or no longer exists.")


def number(name: str, least: float, most: float) -> float:
    """Return a finite number of the request; 400 where it is not one.

    It is clipped to *least* and *most*.
    """
    try:
        value = float(request.args.get(name, ""))
    except ValueError:
        abort(400, f"{name} must be a number.")
    if not math.isfinite(value):
        abort(400, f"{name} must be finite.")
    return min(max(value, least), most)


def whole(name: str, least: int, most: int) -> int:
    """Return the same as :func:`number`, as an integer."""
    return int(number(name, least, most))


def word(name: str, allowed: tuple[str, ...]) -> str:
    """Return one of *allowed*; the first where the request has another value."""
    value = request.args.get(name, "")
    return value if value in allowed else allowed[0]


def refuse(reason: str) -> NoReturn:
    """Answer 400, with the reason."""
    abort(400, reason)


def absent() -> NoReturn:
    """Answer 404 without a text."""
    abort(404)


def answer(data: dict[str, Any]) -> Response:
    """Return *data* as JSON that is not cached."""
    response: Response = jsonify(data)
    response.headers["Cache-Control"] = "no-store"
    return response


def runs(pixels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the distinct ids of *pixels*, and of all runs of equal ones index of id and length."""
    start = np.flatnonzero(np.append(True, pixels[1:] != pixels[:-1]))
    return *numbered(pixels[start]), np.diff(np.append(start, pixels.size))


def numbered(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distinct *values* ascending, and the index of each; as np.unique, without a sort.

    They are rows of one recording, so a table over all of them is small: 5 bytes per allocation.
    """
    least = int(values.min(initial=0))
    is_there = np.zeros(int(values.max(initial=0)) - least + 1, dtype="?")
    is_there[values - least] = True
    ids = np.flatnonzero(is_there)
    place = np.zeros(len(is_there), dtype="i4")
    place[ids] = np.arange(len(ids), dtype="i4")
    return (ids + least).astype(values.dtype), place[values - least]


def columns(header: dict[str, Any], **named: NDArray[Any]) -> Response:
    """Return *header* and the *named* columns in one compressed body."""
    packed = {name: _packed(column) for name, column in named.items()}
    parts = [
        [name, len(sent.numbers), sent.numbers.dtype.str[1:], sent.unit, sent.divisor, sent.sums]
        for name, sent in packed.items()
    ]
    text = json.dumps(header | {"columns": parts}, separators=(",", ":")).encode()
    sent = [np.uint32(len(text)).tobytes(), text, *(each.numbers.tobytes() for each in packed.values())]
    body = gzip.compress(b"".join(sent), 1, mtime=0)
    sealed = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}
    return Response(body, mimetype="application/octet-stream", headers=sealed)


class _SentColumn(NamedTuple):
    """A column as it is sent: its values are the numbers times the unit, over the divisor."""

    numbers: NDArray[Any]
    unit: int
    divisor: int
    sums: str = ""
    """Type of the sums, where each number is the change since the one before."""


def _packed(column: NDArray[Any]) -> _SentColumn:
    """Return *column* in the smallest integer type, and its unit: the greatest power of two that divides all.

    Numbers of bytes are multiples of 512: they fit into half of what they take as they are. Of what ascends
    the changes are sent: ids take a tenth, and a third of the time to compress. Seconds are sent as whole
    nanoseconds where they are such; other fractions stay.
    """
    divisor = 1
    if column.dtype.kind == "f":
        whole_ns = np.rint(column * NS_PER_S)
        if not np.array_equal(whole_ns / NS_PER_S, column) or np.abs(whole_ns).max(initial=0) > _MOST_EXACT:
            return _SentColumn(np.ascontiguousarray(column, "<f8"), 1, 1)
        column, divisor = whole_ns.astype("i8"), NS_PER_S
    bits = int(np.bitwise_or.reduce(column, initial=0))
    unit = max(bits & -bits, 1)
    whole = (column // unit if unit > 1 else column).astype("i8")
    numbers, changes = _fitting(whole), np.diff(whole, prepend=0)
    if _CALMER * np.abs(changes).sum() >= np.abs(whole).sum():
        return _SentColumn(numbers, unit, divisor)
    return _SentColumn(_fitting(changes), unit, divisor, numbers.dtype.str[1:])


def _fitting(numbers: NDArray[Any]) -> NDArray[Any]:
    low, high = (int(numbers.min(initial=0)), int(numbers.max(initial=0)))
    kinds = ("u1", "u2", "u4") if low >= 0 else ("i1", "i2", "i4")
    fitting = next((kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max), "f8")
    return np.ascontiguousarray(numbers, f"<{fitting}")


def register(app: Any) -> None:
    """Register the URL; its answer is a word of its own for every server process."""
    server, sealed = secrets.token_hex(8), {"Cache-Control": "no-store"}
    app.server.add_url_rule(PATH, "alive", lambda: Response(server, 200, sealed, "text/plain"))
