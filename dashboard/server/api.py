"""Requests and responses of the browser's scripts: strict parameters in, compressed columns out.

Columns are sent as ``[u4 length of the header][JSON header][columns]``; the header names the columns, their
types and lengths. A raster is sent as runs of equal pixels; its ids are rows of the lifetimes.
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
    little = {name: np.ascontiguousarray(_small(column)) for name, column in named.items()}
    full = header | {"columns": [[name, each.dtype.str[1:], len(each)] for name, each in little.items()]}
    text = json.dumps(full, separators=(",", ":")).encode()
    parts = [np.uint32(len(text)).tobytes(), text, *(each.tobytes() for each in little.values())]
    body = gzip.compress(b"".join(parts), 1, mtime=0)
    sealed = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}
    return Response(body, mimetype="application/octet-stream", headers=sealed)


def _small(column: NDArray[Any]) -> NDArray[Any]:
    """Return *column* in the smallest integer type that holds it; fractions stay as they are."""
    if column.dtype.kind == "f":
        return column.astype("<f8")
    low, high = (int(column.min(initial=0)), int(column.max(initial=0)))
    kinds = ("u1", "u2", "u4") if low >= 0 else ("i1", "i2", "i4")
    fitting = next(kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return column.astype(fitting)


def register(app: Any) -> None:
    """Register the URL; its answer is a word of its own for every server process."""
    server, sealed = secrets.token_hex(8), {"Cache-Control": "no-store"}
    app.server.add_url_rule(PATH, "alive", lambda: Response(server, 200, sealed, "text/plain"))
