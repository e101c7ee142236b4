"""The URL of the report of a run: the same file as ``vramscope export --to html`` writes."""

from typing import Any

from flask import Response

from ..components.header import REPORT_PATH
from ..data import Data
from ..server import api
from .document import document


def register(app: Any, data: Data) -> None:
    """Register the URL that the header of every page links to."""
    app.server.add_url_rule(REPORT_PATH, "report", lambda: _report(data))


def _report(data: Data) -> Response:
    view = api.view_of(data)
    named = f'attachment; filename="{view.run_id}.html"'
    kept = {"Content-Disposition": named, "Cache-Control": "no-store"}
    return Response(document(view.run), mimetype="text/html", headers=kept)
