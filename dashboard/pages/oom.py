"""The page "Out of memory", the home of a dead run: its line, what was live, what would have helped."""

from dataclasses import replace
from typing import Any

from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from vramscope import analysis, package_data
from vramscope.analysis.folding import Folded
from vramscope.analysis.oom import OomMessage, message_of
from vramscope.analysis.oom.cause import Cause, Room
from vramscope.analysis.oom.remedies import Remedies, Remedy, remedies
from vramscope.analysis.pins import PinningLine, pinning_lines, pins
from vramscope.analysis.verdicts import is_exact
from vramscope.analysis.verdicts.missing import full_device, missing_parts, until
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.trace import Action
from vramscope.units import format_bytes, format_share

from ..address import Address, restore
from ..answers import folded, held, last_oom, moment, series_of
from ..components import renewal, states
from ..components.graph import graph
from ..components.panel import bar, facts, panel, parts_bar, table
from ..components.panels import cause, stack_table
from ..components.panels.reserved import function_of
from ..components.panels.stack_table import to_code
from ..components.prose import claim_heading, on_demand, prose, sentence
from ..data import Data, View
from ..figures import approach
from ..figures.approach import known_parts
from ..figures.drawing.names import place
from ..figures.drawing.series import TIME
from ..queries.headline import beyond_heading, out_of_memory
from ..server.callbacks import Stored, view_or_nothing
from . import Behind, Context, Page, counting

MOST_LINES = 8
_SAID = package_data.words(__file__, "pages.tsv", "said")
_PAGE_OF_CAUSE = package_data.words(__file__, "pages.tsv", "cause")


def _layout(context: Context) -> Any:
    view = context.data.view(context.address)
    if not len(view.recording.trace):
        return states.nothing_recorded(view.is_live, view)
    return html.Div(content(context.data, view, context.address), id="oom-content", className="page")


def _without_failure(view: View) -> tuple[str, str]:
    """Return title and text where no failed allocation is among the events."""
    missing, full = missing_parts(view.recording), full_device(view.recording)
    if full:
        return "The simulated device was full", sentence(full)
    if not is_exact(missing):
        return "Whether an allocation failed is not known", sentence(missing[0].text)
    return f"No allocation failed {until(missing)}".strip(), "Memory did not run out in this recording."


def content(data: Data, view: View, address: Address, found: Remedies | None = None) -> list[Any]:
    """Return the panels of the page; the remedies are asked for when it is drawn, unless they are given."""
    failures = data.ask(view, "oom")
    if not len(failures):
        peak = address.go(path="/peak", at=None).url
        near = html.A("The highest use: the peak", href=peak, className="link")
        return [states.state(*_without_failure(view), near)]
    question = analysis.analyses()["oom"]
    findings = question.findings(failures) if question.findings else []
    first = len(failures) - len(findings)
    older = [
        _card(data, view, failures, first + i, finding, address) for i, finding in enumerate(findings[:-1])
    ]
    left = f"The last {len(findings)} of {len(failures):,} are shown." if first else ""
    title = [html.H2("Earlier failures", className="section-title"), html.P(left, className="dim")]
    return [
        *_last(data, view, findings[-1], address, found),
        *([html.Div(title), *reversed(older)] if older else []),
    ]


def _last(data: Data, view: View, finding: Finding, address: Address, found: Remedies | None) -> list[Any]:
    """Return the panels of the failure that came last: the one that ended a dead run."""
    failures = data.ask(view, "oom")
    event, room = int(failures.event[-1]), failures.rooms[-1]
    which = f"The last of {len(failures):,} failed allocations." if len(failures) > 1 else ""
    support = [html.P(which, className="support")] if which else []
    opening = html.Section([claim_heading(out_of_memory(data, view)), *support], className="opening")
    message = message_of(view.run.error, int(failures.size_bytes[-1]))
    return [
        opening,
        html.Div(
            [
                _where(view, finding, address, has_figures=message is not None),
                *([_message(message, is_predicted=failures.is_predicted)] if message else []),
            ],
            className="failure" if message else "",
        ),
        *([_curve(data, view, failures)] if view.recording.has_allocations else []),
        _helps(data, view, address, found),
        *_pinned(data, view, finding, event, address),
        *([_live(data, view, event, address)] if view.recording.has_allocations else []),
        *([_panel("The device's bytes at the failure", _room(room, view.recording))] if room else []),
    ]


def _panel(title: str, *content: Any, aside: Any = "") -> html.Section:
    return panel(title, *content, beside=html.Span(aside, className="dim"))


def _where(view: View, finding: Finding, address: Address, *, has_figures: bool) -> html.Section:
    # The settings that it advises to try are tried below.
    is_tried = "`vramscope fit`" in (finding.advice or "")
    shown = replace(finding, advice=None) if is_tried else finding
    # The heading has the request, torch's message the figures: the cause is what the eye should find here.
    figures, why = beyond_heading(finding)
    if why:
        shown = replace(shown, claim=why)
    beside = (
        html.P(f"{figures[:1].upper()}{figures[1:]}.", className="dim") if why and not has_figures else None
    )
    return cause.card(shown, beside, view=view, url=_named(finding, address))


def _named(finding: Finding, address: Address) -> str:
    """Return the page that the advice of a cause names; '' where it names none."""
    path = _PAGE_OF_CAUSE.get(finding.cause or "")
    return address.go(path=path, at=None).url if path else ""


def _message(message: OomMessage, *, is_predicted: bool) -> html.Section:
    title = "The message it would end with" if is_predicted else "The error's message"
    known = [("Would try to allocate" if is_predicted else "Tried to allocate", message.requested_bytes)]
    known += [(label, message.known[name]) for name, label in _SAID.items() if name in message.known]
    rows = facts(*((label, format_bytes(n_bytes)) for label, n_bytes in known))
    whole = on_demand("The whole message", html.Blockquote(message.text[:4000]))
    return html.Section([html.H3(title), rows, whole], className="panel card")


def _curve(data: Data, view: View, failures: Any) -> html.Section:
    event, size = int(failures.event[-1]), int(failures.size_bytes[-1])
    series = series_of(data, view, TIME)
    room = failures.rooms[-1]
    most, name = _most_room(room) if room is not None and room.limit_bytes > 0 else (0, "")
    steps = view.recording.steps
    begun = steps.start_event[steps.start_event <= event][-approach.STEPS_BEFORE :]
    start = int(begun[0]) if len(begun) else int(event * (1 - approach.SHARE))
    drawn = approach.figure(series, event, start, size, most, name)
    extent = f"the last {len(begun)} steps" if len(begun) > 1 else "the end of the recording"
    sentence = f"Allocated and reserved memory over {extent} before the allocation failed."
    picture = graph("oom-graph", drawn, sentence, "approach")
    words = {"allocated": "allocated", "reserved": "reserved", "requested": f"{format_bytes(size)} requested"}
    key = [html.Span([html.I(className=f"swatch swatch-{name}"), word]) for name, word in words.items()]
    legend = html.Div(key, className="lane-key parts-key")
    return panel("Into the failure", picture, beside=legend, kind="chart")


def _most_room(room: Room) -> tuple[int, str]:
    """Return what the allocator could have had at most, and what that is."""
    if room.limit_bytes < room.capacity_bytes:
        return room.limit_bytes, "limit of this process"
    beside = max(room.outside_bytes, 0)
    return room.capacity_bytes - beside, "room for the allocator" if beside else "capacity of the device"


def _pinned(data: Data, view: View, finding: Finding, event: int, address: Address) -> list[html.Section]:
    """Return the panel of the lines whose blocks kept the free memory in pieces, where that was the cause."""
    if finding.cause != Cause.FRAGMENTATION:
        return []
    found = data.derive(view, ("pins", event), lambda recording: pins(recording, event))
    code = folded(data, view)
    rows = [_pinning(code, each) for each in pinning_lines(view.recording.stacks, found)[:MOST_LINES]]
    if not rows:
        return []
    shown = table(("Line", "Keeps free", "In segments", "Its blocks"), "lrdd", rows)
    there = html.A("Segments", href=address.go(path="/fragmentation", at=event).url, className="link")
    summed = f"{format_bytes(found.total_bytes)} free in segments more than half free · "
    return [_panel("What kept the free memory in pieces", shown, aside=[summed, there])]


def _pinning(code: Folded, each: PinningLine) -> list[Any]:
    frame = code.frame(each.stack_id)
    where = html.Bdi(f" {place(frame)}" if frame else "", className="dim")
    words = [html.Bdi(function_of(code, each.stack_id)[:160], className="function"), where]
    blocks = f"{each.n_blocks:,} · {format_bytes(each.block_bytes)}"
    line = html.Td(to_code(words, each.stack_id), className="where")
    return [line, each.kept_bytes, f"{each.n_segments:,}", blocks]


def _live(data: Data, view: View, event: int, address: Address) -> html.Section:
    live = held(data, view, event)
    rows = stack_table.rows(folded(data, view), live)[:MOST_LINES]
    more = html.A("All of it in Peak", href=address.go(path="/peak", at=event).url, className="link")
    segments = html.A("Segments", href=address.go(path="/fragmentation", at=event).url, className="link")
    shown = table(("Line", "Allocated", "Share", ""), "lrdl", [_line(row) for row in rows])
    aside = [f"{stack_table.summary(live)} · ", more, " · ", segments]
    return _panel("Live at the failure, by line", shown, aside=aside)


def _line(row: dict[str, Any]) -> list[Any]:
    share = float(row["share"])
    via = f": {row['via']}" if row.get("via") else ""
    place = html.Bdi(f" {row.get('place', '')}", className="dim")
    name = [html.Bdi(f"{row['where']}{via}", className="function"), place]
    line = html.Td(to_code(name, int(row.get("stack") or 0)), className="where")
    return [line, int(row["bytes"]), format_share(share, 1.0), bar(share)]


def _helps(data: Data, view: View, address: Address, found: Remedies | None) -> html.Section:
    """Return the panel of what would have helped, which is filled after the page is drawn."""
    if found is not None:
        return _panel("What would help", *helps(found))
    fit = html.A("All of it in Fit", href=address.go(path="/fit", at=None).url, className="link")
    if view.is_live or len(view.recording.trace) > data.pace.events_at_once:
        text = html.P(["The search takes a while for a run of this size: ", fit], className="dim nothing")
        return _panel("What would help", text)
    waiting = html.P("Replaying the run under other settings …", className="dim nothing")
    return _panel(
        "What would help",
        html.Div(waiting, id="oom-helps"),
        dcc.Store(id="oom-ask", data=1),
        aside=fit,
    )


def helps(found: Remedies) -> list[Any]:
    """Return the list of remedies and the command to try."""
    if not found.remedies:
        why = f"Nothing is known that would help. {sentence(found.no_setting)}"
        shown: Any = html.P(prose(why), className="dim nothing")
    else:
        shown = html.Ul([_remedy(each, found.lacking_bytes) for each in found.remedies], className="helps")
    setting = html.P(prose(f"No allocator setting: {found.no_setting}."), className="dim nothing")
    none = found.no_setting and found.remedies
    title = "To try" if any(each.is_replayed for each in found.remedies) else "To run it again"
    lacked = f"Lacking: {format_bytes(found.lacking_bytes)}." if found.lacking_bytes > 0 else ""
    again = [html.P(title, className="dim nothing"), states.copyable(found.command)] if found.command else []
    return [html.P(lacked, className="dim nothing"), shown, *([setting] if none else []), *again]


def _remedy(each: Remedy, lacking: int) -> html.Li:
    sure = html.Span("replayed" if each.is_replayed else "estimate", title=each.basis,
                     className="sure proven" if each.is_replayed else "sure")  # fmt: skip
    cost = [html.Div(sentence(each.cost), className="why")] if each.cost else []
    basis = on_demand("How sure it is", html.P(sentence(each.basis)))
    what = [html.Span(each.name, className="strong"), " ", html.Span(each.how, className="how")]
    saved: Any = ""
    if each.saved_bytes is not None:
        below = "less than is lacking" if each.saved_bytes < lacking else ""
        saved = [html.Div(f"saves {format_bytes(each.saved_bytes)}"), html.Div(below, className="why")]
    return html.Li(
        [sure, html.Div([html.Div(what), *cost, basis]), html.Div(saved, className="saves-bytes")]
    )  # fmt: skip


def _card(data: Data, view: View, failures: Any, row: int, finding: Finding, address: Address) -> Any:
    event = int(failures.event[row])
    room = failures.rooms[row] if row < len(failures.rooms) else None
    links = html.Span(
        [
            html.Span(moment(data, view, event).words, className="dim"),
            html.A("What was live then", href=address.go(path="/peak", at=event).url, className="link"),
            html.A("Segments then", href=address.go(path="/fragmentation", at=event).url, className="link"),
        ],
        className="card-links",
    )
    where = _room(room, view.recording) if room else None
    return cause.card(finding, where, links=links, view=view, url=_named(finding, address))


def _room(room: Any, recording: Recording) -> Any:
    shown = known_parts(room)
    entries = [
        html.Div([html.Dt([html.I(className=f"swatch part-{part.style}"), part.label]),
                  html.Dd(format_bytes(n), title=f"{n:,} bytes")])
        for part, n in shown
    ]  # fmt: skip
    most = "" if recording.has_layout else "at most "
    largest = f"the largest free one for such requests: {most}{format_bytes(room.largest_here_bytes)}"
    largest = largest if room.largest_here_bytes else "none is free for such requests"
    need = f"Needed: a block of {format_bytes(room.need_bytes)}; {largest}"
    lacking = f"; lacking on the device: {format_bytes(room.lacking_bytes)}" if room.lacking_bytes > 0 else ""
    if room.is_limited:
        limit = format_bytes(room.limit_bytes)
        lacking = f"; lacking below the limit of {limit}: {format_bytes(room.over_limit_bytes)}"
    return html.Div(
        [
            parts_bar((part.style, n) for part, n in shown),
            html.Dl(entries, className="part-list"),
            html.P(f"{need}{lacking}.", className="dim"),
        ],
        className="room",
    )


def _register(app: Any, data: Data) -> None:
    renewal.register(app, data, "oom", content)

    @app.callback(Output("oom-helps", "children"), Input("oom-ask", "data"), State("address", "data"))
    def look(asked: int | None, stored: Stored | None) -> Any:
        if not asked:
            raise PreventUpdate
        view = view_or_nothing(data, restore(stored))
        rooms = data.ask(view, "oom").rooms
        room = rooms[-1] if rooms else None
        return helps(data.derive(view, "remedies", lambda recording: remedies(recording, room)))


def _behind(data: Data, view: View) -> Behind:
    if not len(view.recording.trace):
        return counting()(data, view)
    if last_oom(data, view) >= 0:
        return Behind(int((view.recording.trace.action == Action.OOM).sum()))
    return Behind(nothing=_without_failure(view)[0])


PAGE = Page(name="oom", title="Out of memory", order=60, path="/oom", layout=_layout, register=_register,
            behind=_behind)  # fmt: skip
