"""The card of one finding: claim, cause, line of code and advice."""

from typing import Any

from dash import html

from vramscope.model.finding import Finding
from vramscope.model.stacks import Frame
from vramscope.units import as_sentence

from ...data import View
from ...figures.drawing.names import place
from ..prose import prose
from . import stack_table


def card(
    found: Finding, *more: Any, links: Any = None, view: View | None = None, url: str = ""
) -> html.Section:
    """Return the card of a finding.

    *more* stands below the source, *links* beside the heading; the source is that of *view*'s recording.
    *url* is the page that the advice names, '' where it names none.
    """
    cause = (found.cause or "").replace("_", " ")
    chips = [html.Span(found.severity, className=f"severity {found.severity}")]
    chips += [html.Span(cause, className="chip")] if cause and cause != "unknown" else []
    words = prose(as_sentence((found.advice or "")[:600]))
    words = [html.A(words, href=url, className="link")] if url else words
    advice = html.P([html.Strong("What helps "), *words], className="advice") if found.advice else None
    shown = [html.H3(prose(found.claim[:700])), where(found, view), advice, *more]
    head = html.Div([html.Div(chips, className="chips"), links], className="card-head")
    return html.Section([head, *(each for each in shown if each is not None)], className="panel card")


def where(found: Finding, view: View | None = None) -> Any:
    """Return the line with its neighbors; None where it is unknown."""
    if not found.file:
        return None
    frame = Frame(found.function or "", found.file, found.line or 0)
    name = [html.Bdi(found.function[:200], className="function")] if found.function else []
    held = [html.Span([" kept by ", html.Code(html.Bdi(found.holder[:200]))])] if found.holder else []
    inside = " in its backward" if found.evidence.get("in_backward") else ""
    line = html.P(
        [*name, html.Bdi(f" {place(frame)}", className="dim"), inside, *held], className="card-where"
    )
    return html.Div([line, stack_table.code(frame, view)])
