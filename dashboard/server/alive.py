"""The URL that tells an open page whether the server is there, and whether it is the same one."""

import secrets
from typing import Any

from flask import Response

PATH = "/alive"


def register(app: Any) -> None:
    """Register the URL; its answer is a word of its own for every server process."""
    server = secrets.token_hex(8)
    app.server.add_url_rule(PATH, "alive", lambda: _answer(server))


def _answer(server: str) -> Response:
    return Response(server, mimetype="text/plain", headers={"Cache-Control": "no-store"})
