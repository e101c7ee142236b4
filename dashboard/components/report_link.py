"""The link that saves the run as one HTML file that works from disk, offline."""

from urllib.parse import urlencode

from dash import html

PATH = "/api/report"


def link(run_id: str) -> html.A:
    """Return the link; the header of every page of a run has it."""
    title = "This run as one HTML file that works from disk, without a server"
    to = f"{PATH}?{urlencode({'run': run_id})}"
    return html.A("Save report", href=to, className="report-link only-live", title=title, download="")
