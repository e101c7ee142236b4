"""The panel of what each line needed at its own peak, beside what it held at the peak of the run."""

from typing import Any

from dash import dcc, html

from vramscope.analysis.lines import NO_STACK, CodeLines, code_lines
from vramscope.analysis.own_peaks import OwnPeaks
from vramscope.units import format_bytes

from ...address import Address
from ...answers import ask_allowing_stale, moment
from ...data import Data, View
from ...figures.drawing.names import place
from .. import panel as panels
from .code_box import to_code

MOST_LINES = 12
MEANING = (
    "The most that each line ever held at once, at a moment of its own: these do not add up. What the lines "
    "held at the peak of the run does, and only a line that held something then lowers it."
)


def panel(data: Data, view: View, address: Address) -> Any:
    """Return the panel; an empty element where nothing was allocated."""
    found: OwnPeaks = ask_allowing_stale(data, view, "own_peaks", by="line")
    if not len(found):
        return html.Span()
    known = code_lines(view.recording.stacks)
    more = html.Span(f"and {len(found) - MOST_LINES} more", className="dim")
    title = panels.titled("What each line needed most", "at their own moments", MEANING)
    rows = [_row(data, view, address, (found, i, known)) for i in range(min(len(found), MOST_LINES))]
    shown = panels.table(("Line", "Own peak", "At", "At the run's peak", ""), "lrlrl", rows, "own-peaks")
    beside = more if len(found) > MOST_LINES else html.Span()
    return panels.panel(title, shown, beside=beside, label="Own peaks of the lines")


def _row(data: Data, view: View, address: Address, of: tuple[OwnPeaks, int, CodeLines]) -> html.Tr:
    found, i, known = of
    own, held, at = (
        int(column[i]) for column in (found.own_peak_bytes, found.at_peak_bytes, found.own_instant)
    )
    top = max(int(found.own_peak_bytes[0]), 1)
    there = dcc.Link(moment(data, view, at).words, href=address.go(at=at).url, className="plain-link")
    return html.Tr(
        [
            html.Td(_line(known, int(found.group[i]))),
            html.Td(format_bytes(own), className="number strong", title=f"{own:,} bytes"),
            html.Td(there),
            html.Td(format_bytes(held), className="number dim", title=f"{held:,} bytes"),
            html.Td(panels.peak_bar(held, own, top)),
        ]
    )


def _line(known: CodeLines, line: int) -> Any:
    frame, via = known.frames[line], known.via[line]
    if not frame.file:
        return html.Span(via or NO_STACK, className="function")
    name = f"{frame.function}: {via}" if via else frame.function
    words = [html.Bdi(name[:120], className="function"), html.Bdi(place(frame)[:80], className="place")]
    stack = int((known.of_stack == line).argmax())
    return to_code(
        html.Span(words, className="where", title=f"{name} {frame.file}:{frame.line}"[:400]), stack, name[:80]
    )
