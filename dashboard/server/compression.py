"""Compressed responses: through a tunnel to a GPU server the scripts are 8 MB, compressed a quarter of it."""

import gzip
from base64 import b64encode
from collections import OrderedDict
from hashlib import blake2s, sha256
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from flask import Flask, Response, request

from vramscope.store.write import brotli

_KINDS = ("text/", "application/javascript", "application/json", "image/svg+xml")
_STATIC = ("/_dash-component-suites/", "/assets/")
_LEAST_BYTES = 1 << 10
_LEVEL_ONCE, _LEVEL_EACH_TIME = 6, 1
"""6 makes plotly.js 1.27 MB by Brotli and 1.47 by gzip, in 0.2 s of the processor each; Brotli's 9 saves 3 %
more in 0.7 s. An answer is made once, so 1."""
_MOST_KEPT = 64

_kept: OrderedDict[tuple[str, str, str, int], bytes] = OrderedDict()
_lock = Lock()
_BUNDLES = {"js": "text/javascript", "css": "text/css"}
_FIRST = "theme.js"
"""Stands in the head of the page itself: nothing is painted in the other theme, nor waits for a request."""
_STORE = "store.js"
"""Comes before every other script of the bundle: they subscribe to it."""


def compress(server: Flask) -> None:
    """Register that *server* compresses what a browser accepts compressed."""

    @server.after_request
    def pack(response: Response) -> Response:
        if not _is_worth_it(response):
            return response
        response.direct_passthrough = False
        data = response.get_data()
        if len(data) < _LEAST_BYTES:
            return response
        is_static = request.path.startswith(_STATIC)
        # Browsers name brotli on loopback addresses, so through a tunnel too, and over TLS.
        takes_brotli = request.accept_encodings.quality("br") > 0 and brotli.is_available()
        coding = "br" if is_static and takes_brotli else "gzip"
        response.set_data(
            _once(data, coding) if is_static else gzip.compress(data, _LEVEL_EACH_TIME, mtime=0)
        )
        response.headers["Content-Encoding"] = coding
        response.headers.add("Vary", "Accept-Encoding")
        if is_static and request.args.get("m"):
            # The address has the time of the last change, so what is at it never changes.
            response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response


def _is_worth_it(response: Response) -> bool:
    return (
        response.status_code == 200
        and "gzip" in request.headers.get("Accept-Encoding", "")
        and "Content-Encoding" not in response.headers
        and str(response.mimetype).startswith(_KINDS)
    )


def _once(data: bytes, coding: str) -> bytes:
    """Return a script compressed; it is kept for the next browser."""
    key = (coding, request.path, request.query_string.decode("latin-1"), len(data))
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    packed = brotli.pack(data, _LEVEL_ONCE) if coding == "br" else gzip.compress(data, _LEVEL_ONCE, mtime=0)
    with _lock:
        _kept[key] = packed
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return packed


def bundled(assets: Path, kind: str) -> str:
    """Return every file of a *kind* in *assets*, those of the folder before those of its folders.

    *kind* is ``js`` or ``css``.
    """
    files = sorted(assets.rglob(f"*.{kind}"), key=lambda file: (file.name != _STORE, file.parent, file.name))
    # A script may end without a semicolon, and a comment without a line break.
    return "\n".join(file.read_text(encoding="utf-8") for file in files if file.name != _FIRST)


class Bundles(NamedTuple):
    """What the document names: scripts and sheets by their address, and the first script by its text."""

    addresses: dict[str, str]
    first: str

    @property
    def digest(self) -> str:
        """Return the source expression by which a policy admits the first script."""
        return f"sha256-{b64encode(sha256(self.first.encode()).digest()).decode()}"


def register(server: Flask, assets: Path) -> Bundles:
    """Register the route of each bundle.

    Its address has a digest of the content, so browsers keep it until it changes.
    """
    addresses = {}
    for kind, mimetype in _BUNDLES.items():
        text = bundled(assets, kind)
        digest = blake2s(text.encode(), digest_size=6).hexdigest()

        def answer(text: str = text, mimetype: str = mimetype) -> Response:
            return Response(text, mimetype=mimetype)

        server.add_url_rule(f"/assets/pages.{kind}", f"pages.{kind}", answer)
        addresses[kind] = f"assets/pages.{kind}?m={digest}"
    return Bundles(addresses, (assets / _FIRST).read_text(encoding="utf-8"))
