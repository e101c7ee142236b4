"""All ranks and devices of a run side by side: bytes at one moment, and the peak of each."""

from typing import Any

from dash import dcc, html

from vramscope.analysis.by_rank import RankBytes, by_rank
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

from ...address import Address
from ...data import Data, View
from .. import panel as panels
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
    rows = [_row(view, found, i, name, (whole, top)) for i, name in enumerate(found.names)]
    words = f"All {len(found)} together: {format_bytes(whole)}"
    title = panels.titled(words, "at their common peak", MEANING)
    columns = ("Recording", "At that moment", "Share", "Reserved", "Own peak", "")
    shown = panels.table(columns, "lrrrrl", rows, "ranks")
    return panels.panel(title, shown, label="All recordings together")


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
    there = Address("/peak", view.run_id, rank, device)
    late = "" if found.is_within[i] else "not recorded at that moment; the nearer end of its recording"
    label = [dcc.Link(name, href=there.go(path="/overview").url, className="link"),
             html.Span(late, className="dim late")]  # fmt: skip
    return html.Tr(
        [
            html.Td(label),
            html.Td(_to(there.go(at=int(found.instant[i])), held), className="number"),
            html.Td(share(held, whole), className="number dim"),
            # Less reserved than allocated: the source knows no segments.
            html.Td(format_bytes(reserved) if reserved >= held else "–", className="number"),
            html.Td(_to(there.go(at=int(found.own_instant[i])), own), className="number"),
            html.Td(panels.peak_bar(held, own, top)),
        ]
    )


def _to(address: Address, n_bytes: int) -> Any:
    title = f"{n_bytes:,} bytes: what was live there"
    return dcc.Link(format_bytes(n_bytes), href=address.url, className="plain-link", title=title)
