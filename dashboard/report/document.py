"""A run as one HTML file that shows a recording without a server, offline, for years.

The file contains plotly.js, compressed; the browser unpacks it. Its content is made of the pages' components.
"""

import base64
import gzip
from html import escape
from importlib.resources import files
from typing import Any

from flask import Response

from vramscope.model.recording import Recording, Run

from ..address import Address
from ..components import header
from ..components.header import REPORT_PATH
from ..data import Data, View
from ..figures.drawing.theme import CONFIG, palette_css
from ..pages.overview import PAGE as OVERVIEW
from ..server import api
from .chapters import chapters
from .static import Printer, in_memory, script_json

MOST_RECORDINGS = 8
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:"
)
_SHEETS = ("assets/style.css", "assets/fit/fit.css", "assets/shell/home.css", "report/report.css")


def document(run: Run) -> str:
    """Return the HTML of a report of *run*."""
    printer = Printer()
    shown = run.recordings[:MOST_RECORDINGS]
    with in_memory(run) as (data, _):
        parts = [_recording(data, run, recording, printer) for recording in shown]
    left = len(run.recordings) - len(shown)
    if left:
        parts.append(f"<p class='notes'>{left} more recordings are left out of this file.</p>")
    plotly = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    library = base64.b64encode(gzip.compress(plotly, 9, mtime=0)).decode()
    css = "".join([*map(_text, _SHEETS), palette_css()])
    figures = [_alone(figure) for figure in printer.figures]
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(run.name)} · vramscope</title><style>{css}</style></head>",
            f'<body><main class="report" id="main">{"".join(parts)}</main>',
            f'<script type="text/plain" id="plotly">{library}</script>',
            f'<script type="application/json" id="figures">{script_json(figures)}</script>',
            f'<script type="application/json" id="config">{script_json(CONFIG)}</script>',
            f"<script>{_text('report/loader.js')}</script></body></html>",
        )
    )


def _text(name: str) -> str:
    """Return the text of a file of the dashboard."""
    return files(__package__.rpartition(".")[0]).joinpath(name).read_text(encoding="utf-8")


def _alone(figure: dict[str, Any]) -> dict[str, Any]:
    """Return *figure* with Plotly's own hover, as a report lacks the scripts of the pages."""
    kinds = {trace["type"] for trace in figure["data"]}
    return figure if "icicle" in kinds else {**figure, "layout": {**figure["layout"], "hovermode": "x"}}


def _recording(data: Data, run: Run, recording: Recording, printer: Printer) -> str:
    name = next(iter(data.runs.paths()))
    rank, device = recording.process.rank, recording.device.index
    address = Address(OVERVIEW.path, run=name, rank=rank, device=device)
    view = View(name, 0, run, recording)
    parts: list[Any] = [header.run_header(view, address), *header.incomplete(view)]
    if len(recording.trace) or len(recording.initial.blocks):
        parts += chapters(data, view, address)
    parts.append(header.notes(view))
    return printer.html(parts)


def register(app: Any, data: Data) -> None:
    """Register the URL that the header of every page links to."""
    app.server.add_url_rule(REPORT_PATH, "report", lambda: _report(data))


def _report(data: Data) -> Response:
    view = api.view_of(data)
    named = f'attachment; filename="{view.run_id}.html"'
    kept = {"Content-Disposition": named, "Cache-Control": "no-store"}
    return Response(document(view.run), mimetype="text/html", headers=kept)
