"""Requests and responses of the browser's scripts: strict parameters in, compressed columns out.

Columns are sent as ``[u4 length of the header][JSON header][columns]``; the header has name, type, length and
unit of each column, whose values are multiples of the unit. A raster is sent as runs of equal pixels; its ids
are rows of the lifetimes.
"""

import gzip
import json
import math
import secrets
from typing import Any, NoReturn

import numpy as np
from flask import Response, abort, jsonify, request
from numpy.typing import NDArray

from vramscope.errors import VramscopeError

from ..address import restore
from ..data import Data, View

MOST_COLUMNS, MOST_ROWS = 2000, 1600
PATH = "/alive"


def view_of(data: Data) -> View:
    """Return the recording that the request names; 404 where there is none."""
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
    """Return the distinct ids, and the index of its id and the length of every run of equal pixels.

    A run never spans two columns.
    """
    changes = np.ones(pixels.shape, dtype=bool)
    changes[:, 1:] = pixels[:, 1:] != pixels[:, :-1]
    start = np.flatnonzero(changes.ravel())
    length = np.diff(np.append(start, pixels.size))
    ids, local = _numbered(pixels.ravel()[start])
    return ids, local, length


def _numbered(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
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
    parts = [[name, of.dtype.str[1:], len(of), unit] for name, (of, unit) in packed.items()]
    text = json.dumps(header | {"columns": parts}, separators=(",", ":")).encode()
    sent = [np.uint32(len(text)).tobytes(), text, *(column.tobytes() for column, _ in packed.values())]
    body = gzip.compress(b"".join(sent), 1, mtime=0)
    sealed = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}
    return Response(body, mimetype="application/octet-stream", headers=sealed)


def _packed(column: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Return *column* in the smallest integer type, and its unit: the greatest power of two that divides all.

    Numbers of bytes are multiples of 512: they fit into half of what they take as they are. Fractions stay.
    """
    if column.dtype.kind == "f":
        return np.ascontiguousarray(column, "<f8"), 1
    bits = int(np.bitwise_or.reduce(column, initial=0))
    unit = max(bits & -bits, 1)
    numbers = column // unit if unit > 1 else column
    low, high = (int(numbers.min(initial=0)), int(numbers.max(initial=0)))
    kinds = ("u1", "u2", "u4") if low >= 0 else ("i1", "i2", "i4")
    fitting = next((kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max), "f8")
    return np.ascontiguousarray(numbers, f"<{fitting}"), unit


def register(app: Any) -> None:
    """Register the URL; its answer is a word of its own for every server process."""
    server, sealed = secrets.token_hex(8), {"Cache-Control": "no-store"}
    app.server.add_url_rule(PATH, "alive", lambda: Response(server, 200, sealed, "text/plain"))
