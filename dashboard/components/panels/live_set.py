"""The panel of live memory at an instant: heading, table by line, and a link to the other page."""

from typing import Any

from dash import html

from ...address import Address
from ...answers import folded, held, kept_by, moment
from ...data import Data, View
from .. import panel as panels
from . import stack_table


def layout(prefix: str, data: Data, view: View, at: int, address: Address) -> html.Section:
    """Return the panel, filled for the instant *at*."""
    return panel(prefix, view, *content(data, view, at, address))


def waiting(prefix: str, view: View) -> html.Section:
    """Return the panel before it is filled: for millions of events that takes seconds, after the chart."""
    return panel(prefix, view, [html.H3("Live memory"), html.P("Counting …", className="dim")], [])


def panel(prefix: str, view: View, heading: list[Any], rows: list[dict[str, Any]]) -> html.Section:
    """Return heading, search box and table."""
    title, box = html.Div(heading, id=f"{prefix}-live"), stack_table.search_box(prefix)
    table = stack_table.layout(prefix, rows, has_holders=len(view.recording.holders) > 0)
    return panels.panel(title, table, beside=box, label="Live memory")


def content(data: Data, view: View, at: int, address: Address) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return heading and rows of the table for the instant *at*."""
    live = held(data, view, at)
    there = moment(data, view, at)
    path, word = (
        ("/overview", "Show on the timeline") if address.path == "/peak" else ("/peak", "Open in Peak")
    )
    recording = (address.run, address.rank, address.device, address.restart)
    more = html.A(word, href=Address(path, *recording, at=at, axis=address.axis).url, className="link")
    blocks = Address("/allocations", *recording, at=at, q=f"live:{at}", axis=address.axis).url
    exact = f"instant {at:,}"
    instant = html.Span("" if there.words == exact else exact, className="dim instant")
    listed = html.A("List its blocks", href=blocks, className="link")
    summary = html.P([f"{stack_table.summary(live)} · ", more, " · ", listed], className="dim")
    heading = [html.H3([f"Live at {there.words}", instant]), summary]
    return heading, stack_table.rows(folded(data, view), live, kept_by(data, view, at))
