"""All ranks and devices of a run side by side: bytes at one moment, and the peak of each."""

from typing import Any

from dash import dcc, html

from vramscope.analysis.by_rank import NONE, RankBytes, by_rank
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

from ...address import Address
from ...data import Data, View
from ..definitions import explained
from .breakdown import share

MEANING = (
    "At the moment when the sum over all of them was greatest. The peak of each, the mark on its bar, is at "
    "a different moment, so the peaks do not add up."
)


def panel(data: Data, view: View) -> Any:
    """Return the panel; None for one recording, or where the recordings share no clock."""
    recordings = [each for each in view.run.recordings if len(each.trace)]
    if len(recordings) < 2:
        return None
    try:
        found: RankBytes = _asked(data, view, recordings)
    except UsageError:
        return None
    whole, top = found.total_bytes, max(int(found.own_peak_bytes.max()), 1)
    head = html.Tr(
        [html.Th("Recording"), html.Th("At that moment", className="number"),
         html.Th("Share", className="number"), html.Th("Reserved", className="number"),
         html.Th("Own peak", className="number"), html.Th("")]
    )  # fmt: skip
    rows = [_row(view, found, i, name, (whole, top)) for i, name in enumerate(found.names)]
    extent = html.Span("at their common peak", className="term dim", tabIndex="0")
    title = [html.H3(f"All {len(found)} together: {format_bytes(whole)}"), explained(extent, MEANING)]
    return html.Section(
        [html.Div(html.Div(title, className="titled"), className="panel-bar"),
         html.Table([html.Thead(head), html.Tbody(rows)], className="diff ranks")],
        className="panel", **{"aria-label": "All recordings together"},
    )  # fmt: skip


def _asked(data: Data, view: View, recordings: list[Recording]) -> RankBytes:
    def make(_: Recording) -> RankBytes:
        return by_rank(recordings[0], recordings[1:])

    return data.answers(view).lagging("by_rank", lambda: data.derive(view, "by_rank", make))


def _row(view: View, found: RankBytes, i: int, name: str, scale: tuple[int, int]) -> html.Tr:
    whole, top = scale
    rank, device = int(found.rank[i]), int(found.device[i])
    held, own, reserved = (
        int(found.allocated_bytes[i]),
        int(found.own_peak_bytes[i]),
        int(found.reserved_bytes[i]),
    )
    if held == NONE:
        return html.Tr([html.Td(name), html.Td("not recorded", colSpan=5, className="dim")])
    there = Address("/peak", view.run_id, rank, device)
    late = "" if found.is_within[i] else "not recorded at that moment; the nearer end of its recording"
    label = [dcc.Link(name, href=there.go(path="/overview").url, className="link"),
             html.Span(late, className="dim late")]  # fmt: skip
    bar = html.Div(
        [html.I(style={"left": "0", "width": f"{100 * held / top:.1f}%"}, className="held"),
         html.I(style={"left": f"calc({100 * own / top:.1f}% - 2px)", "width": "2px"}, className="own")],
        className="diff-bar plain",
    )  # fmt: skip
    return html.Tr(
        [
            html.Td(label),
            html.Td(_to(there.go(at=int(found.instant[i])), held), className="number"),
            html.Td(share(held, whole), className="number dim"),
            # Less reserved than allocated: the source knows no segments.
            html.Td(format_bytes(reserved) if reserved >= held else "–", className="number"),
            html.Td(_to(there.go(at=int(found.own_instant[i])), own), className="number"),
            html.Td(bar),
        ]
    )


def _to(address: Address, n_bytes: int) -> Any:
    title = f"{n_bytes:,} bytes: what was live there"
    return dcc.Link(format_bytes(n_bytes), href=address.url, className="plain-link", title=title)
