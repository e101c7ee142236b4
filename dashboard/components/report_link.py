"""The whole run as one HTML file that works from disk, offline."""

from typing import Any
from urllib.parse import urlencode

from dash import html
from flask import Response

from .. import api
from ..data import Data

PATH = "/api/report"


def link(run_id: str) -> html.A:
    """In the header of every page of a run."""
    title = "This run as one HTML file that works from disk, without a server"
    to = f"{PATH}?{urlencode({'run': run_id})}"
    return html.A("Save report", href=to, className="report-link only-live", title=title, download="")


def register(app: Any, data: Data) -> None:
    """The file."""
    app.server.add_url_rule(PATH, "report", lambda: _report(data))


def _report(data: Data) -> Response:
    from ..report_document import document

    view = api.view_of(data)
    headers = {
        "Content-Disposition": f'attachment; filename="{view.run_id}.html"',
        "Cache-Control": "no-store",
    }
    return Response(document(view.run), mimetype="text/html", headers=headers)
