"""The legend: names, definitions and current values of the curves, each with a check box to show it."""

from typing import Any

from dash import dcc, html

from vramscope.model.marks import Phase
from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_name

from ..address import UNZOOMED, Address
from ..data import View
from ..figures.drawing.series import EVENTS, TIME, Series, has_clock
from ..figures.timeline import QUANTITIES
from .definitions import LABEL, term


def usual(series: Series) -> list[str]:
    """Return the curves that are shown at first.

    Capacity and the driver's count are shown only where they would not press the others flat: up to 2.5 and
    4 times the greatest of the others. Active is shown only where it differs from allocated at two
    consecutive instants: between a free and its completion it differs in every trace.
    """
    top = int(max(series.reserved.max(initial=0), series.allocated.max(initial=0)))
    is_all = not top
    apart = series.active != series.allocated
    fitting = {
        "capacity": series.capacity_bytes <= 2.5 * top,
        "device_used": is_all or int(series.device_used.value.max(initial=0)) <= 4 * top,
        "active": bool((apart[1:] & apart[:-1]).any()),
    }
    return [name for name in offered(series) if fitting.get(name, True)]


def offered(series: Series) -> list[str]:
    """Return the curves that this recording has."""
    has = {"device_used": len(series.device_used.position) > 0, "capacity": series.capacity_bytes > 0}
    return [name for name in QUANTITIES if has.get(name, True)]


def layout(prefix: str, series: Series, shown: list[str]) -> Any:
    """Return one entry per curve; the script writes the value under the pointer into ``.value``."""
    options = [{"value": name, "label": _entry(name)} for name in offered(series)]
    return dcc.Checklist(id=f"{prefix}-legend", options=options, value=shown, className="legend", inline=True)


def _entry(name: str) -> html.Span:
    title = html.Span([html.I(className=f"swatch swatch-{name}"), term(name, LABEL[name])], className="name")
    return html.Span([title, html.Output("", className="value", **{"data-q": name})], className="entry")


def readings(series: Series) -> html.Div:
    """Return the curves of a strip, each with its value under the pointer."""
    return html.Div([_entry(name) for name in usual(series)], className="legend readings")


def position() -> html.Div:
    """Return the entry for the position of the pointer on the horizontal axis."""
    value = html.Output("", className="value", **{"data-q": "position"})
    return html.Div([html.Span("At", className="name"), value], className="entry position")


def axis_choice(view: View, address: Address) -> Any:
    """Return the choice of time or events; a text where the source has no clock."""
    if not has_clock(view.recording):
        return html.Span("events (this source has no clock)", className="dim axis-only")
    now = EVENTS if address.axis == EVENTS else TIME
    links = [
        html.A(word, href=address.go(axis=axis, **UNZOOMED).url, className="here" if name == now else "")
        for name, axis, word in ((TIME, "", "Time"), (EVENTS, EVENTS, "Events"))
    ]
    return html.Nav(links, className="segments", id="axis-choice", **{"aria-label": "Horizontal axis"})


def phases(series: Series, *, live: bool = False) -> Any:
    """Return the colors of the lane, for the phases that occur.

    Of a *live* run the script then shows the entries of the phases that occur later.
    """
    present = [phase for phase in Phase if phase != Phase.OTHER and (series.phases.label == phase).any()]
    if not present and not live:
        return html.P("No phases recorded.", className="dim lane-key")
    entries = [_phase(phase, is_shown=phase in present) for phase in Phase
               if phase in present or (live and phase != Phase.OTHER)]  # fmt: skip
    none = [] if present else [html.Span("none so far", className="dim", **{"data-none": "yes"})]
    title = html.Span(term("phase", "Phases"), className="dim")
    return html.Div([title, *none, *entries], className="lane-key")


def counted(view: View) -> Any:
    """Return what is drawn of steps without events; nothing where all have theirs."""
    drawn = (("peak", "peak"), ("level", "level at the end"))
    entries = [html.Span([html.I(className=f"swatch counted-{name}"), word]) for name, word in drawn]
    title = html.Span("Steps without events, by torch's counters", className="dim")
    return html.Div([title, *entries], className="lane-key", hidden=not len(unrecorded(view.recording)))


def _phase(phase: Phase, *, is_shown: bool) -> html.Span:
    swatch = html.I(className=f"swatch phase-{phase.name.lower()}")
    return html.Span([swatch, format_name(phase)], hidden=not is_shown, **{"data-phase": str(int(phase))})
