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
from ..definitions import explained
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
    extent = html.Span("at their own moments", className="term dim", tabIndex="0")
    title = html.Div([html.H3("What each line needed most"), explained(extent, MEANING)], className="titled")
    head = html.Tr([html.Th("Line"), html.Th("Own peak", className="number"), html.Th("At"),
                    html.Th("At the run's peak", className="number"), html.Th("")])  # fmt: skip
    rows = [_row(data, view, address, (found, i, known)) for i in range(min(len(found), MOST_LINES))]
    return html.Section(
        [html.Div([title, more if len(found) > MOST_LINES else html.Span()], className="panel-bar"),
         html.Table([html.Thead(head), html.Tbody(rows)], className="diff own-peaks")],
        className="panel", **{"aria-label": "Own peaks of the lines"},
    )  # fmt: skip


def _row(data: Data, view: View, address: Address, of: tuple[OwnPeaks, int, CodeLines]) -> html.Tr:
    found, i, known = of
    own, held, at = (
        int(column[i]) for column in (found.own_peak_bytes, found.at_peak_bytes, found.own_instant)
    )
    top = max(int(found.own_peak_bytes[0]), 1)
    bar = html.Div(
        [html.I(style={"left": "0", "width": f"{100 * held / top:.1f}%"}, className="held"),
         html.I(style={"left": f"calc({100 * own / top:.1f}% - 2px)", "width": "2px"}, className="own")],
        className="diff-bar plain",
    )  # fmt: skip
    there = dcc.Link(moment(data, view, at).words, href=address.go(at=at).url, className="plain-link")
    return html.Tr(
        [
            html.Td(_line(known, int(found.group[i]))),
            html.Td(format_bytes(own), className="number strong", title=f"{own:,} bytes"),
            html.Td(there),
            html.Td(format_bytes(held), className="number dim", title=f"{held:,} bytes"),
            html.Td(bar),
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
