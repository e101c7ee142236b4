"""The page "Out of memory": the failed allocations, where the bytes were, and what would have helped."""

from typing import Any

from dash import dcc, html

from vramscope import analysis
from vramscope.units import format_bytes

from ..address import Address
from ..components import renewal, states
from ..components.panels import cause
from ..data import Data, View
from ..queries.answers import moment
from . import Context, Page

_PARTS = (
    ("allocated", "allocated", "requested"),
    ("free_here", "free, for such requests", "inactive_split"),
    ("free_other_streams", "free or pending, other streams", "pending"),
    ("free_other_sizes", "free, other size class", "releasable"),
    ("free_private", "free, private pools", "rounding"),
    ("own_outside", "this process outside of torch", "outside"),
    ("others", "other processes", "others"),
    ("device_free", "free on the device", "none"),
)


def _layout(context: Context) -> Any:
    view = context.data.view(context.address)
    if not len(view.recording.trace):
        return states.nothing_recorded(view.is_live)
    return html.Div(_content(context.data, view, context.address), id="oom-content", className="page")


def _content(data: Data, view: View, address: Address) -> list[Any]:
    failures = data.ask(view, "oom")
    if not len(failures):
        peak = address.go(path="/peak", at=None).url
        near = dcc.Link("The highest use: the peak", href=peak, className="link")
        return [states.state("No allocation failed", "Memory did not run out in this recording.", near)]
    question = analysis.analyses()["oom"]
    findings = question.findings(failures) if question.findings else []
    first = len(failures) - len(findings)
    cards = [_card(data, view, failures, first + i, finding, address) for i, finding in enumerate(findings)]
    times = "1 OOM" if len(failures) == 1 else f"{len(failures):,} OOMs"
    last = "" if len(failures) == 1 else " the last time"
    size = format_bytes(int(failures.size_bytes[-1]))
    claim = f"{times}: {size} requested{last}"
    older = f"The last {len(findings)} of {len(failures):,} are shown." if first else ""
    return [
        html.Section(
            [html.H2(claim, className="claim"), html.P(older, className="support")], className="opening"
        ),
        *reversed(cards),
    ]


def _card(data: Data, view: View, failures: Any, row: int, finding: Any, address: Address) -> Any:
    event = int(failures.event[row])
    room = failures.rooms[row] if row < len(failures.rooms) else None
    links = html.Span(
        [
            html.Span(moment(data, view, event).words, className="dim"),
            dcc.Link("What was live then", href=address.go(path="/peak", at=event).url, className="link"),
            dcc.Link("Segments then", href=address.go(path="/fragmentation", at=event).url, className="link"),
        ],
        className="card-links",
    )
    where = _room(room) if room else None
    return cause.card(finding, where, links=links, recorded_ns=view.run.started_ns)


def _room(room: Any) -> Any:
    known = [(name, label, part, int(getattr(room, f"{name}_bytes"))) for name, label, part in _PARTS]
    shown = [each for each in known if each[3] > 0]
    bar = [html.Span(className=f"part part-{part}", style={"flexGrow": str(n)}) for _, _, part, n in shown]
    entries = [
        html.Div([html.Dt([html.I(className=f"swatch part-{part}"), label]),
                  html.Dd(format_bytes(n), title=f"{n:,} bytes")])
        for _, label, part, n in shown
    ]  # fmt: skip
    largest = format_bytes(room.largest_here_bytes)
    need = f"A block of {format_bytes(room.need_bytes)} was needed; the largest free one had {largest}"
    lacking = f"; the driver lacked {format_bytes(room.lacking_bytes)}" if room.lacking_bytes > 0 else ""
    if room.is_limited:
        limit = format_bytes(room.limit_bytes)
        lacking = f"; {format_bytes(room.over_limit_bytes)} lacked below the limit of {limit}"
    return html.Div(
        [
            html.H4("Where the device's bytes were"),
            html.Div(bar, className="parts", role="presentation"),
            html.Dl(entries, className="part-list"),
            html.P(f"{need}{lacking}.", className="dim"),
        ],
        className="room",
    )


def _register(app: Any, data: Data) -> None:
    renewal.register(app, data, "oom", _content)


PAGE = Page(name="oom", title="Out of memory", order=60, path="/oom", layout=_layout, register=_register)
