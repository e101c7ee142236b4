"""The page "Overview": memory over time, the peak, its largest holders and the findings."""

from typing import Any

from dash import ClientsideFunction, Input, Output, Patch, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from vramscope.model.finding import Finding
from vramscope.model.stacks import Frame
from vramscope.units import format_bytes, format_share

from ..address import Address, restore
from ..components import kpi, legend, states
from ..components.graph import graph, register_zoom
from ..components.panels import live_set, past, stack_table
from ..components.panels.code_box import stack_of, to_code
from ..components.prose import prose
from ..data import Data, View
from ..figures import timeline
from ..figures.drawing.names import place
from ..figures.drawing.series import TIME
from ..figures.timeline import QUANTITIES
from ..queries.answers import (
    clamp,
    fullest,
    moment,
    neighbor,
    series_of,
    totals,
)
from ..queries.headline import (
    claim,
    findings,
    headline,
    past_peak,
    past_words,
)
from ..server.callbacks import (
    Pressed,
    Standing,
    Stored,
    edges_of,
    view_or_nothing,
)
from . import Context, Page

PEAK_KEY, NEXT_KEY, PREVIOUS_KEY = "p", "j", "k"


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    if not len(view.recording.trace) and not len(view.recording.initial.blocks):
        if len(view.recording.counters):
            to = dcc.Link("Waterfall", href=address.go(path="/waterfall").url, className="link")
            return states.counters_only(to)
        return states.nothing_recorded(view.is_live)
    series = series_of(data, view, address.axis or TIME)
    at = _shown_instant(data, view, address, [address.t0, address.t1], address.at)
    is_short = len(view.recording.trace) <= data.pace.events_at_once
    shown = legend.usual(series)
    stretch = timeline.zoomed(series, address.t0, address.t1)
    figure = timeline.figure(series, stretch, shown, at)
    return [
        html.Div(opening(data, view) if is_short else _waiting(data, view), id="ov-opening"),
        past.strip(data, view, address),
        html.Section(
            [
                html.Div(
                    [
                        legend.layout("ov", series, shown),
                        legend.position(),
                        legend.axis_choice(view, address),
                    ],
                    className="chart-bar",
                ),
                graph("ov-graph", figure, f"Memory over time. {claim(data, view)}.", "timeline"),
                legend.phases(series),
            ],
            className="panel chart",
            **{"aria-label": "Memory over time"},
        ),
        live_set.layout("ov", data, view, at, address) if is_short else live_set.waiting("ov"),
        dcc.Store(id="ov-view", data=[address.t0, address.t1]),
        dcc.Store(id="ov-at", data=address.at),
        dcc.Store(id="ov-ready"),
        dcc.Store(id="ov-drawn"),
        dcc.Store(id="ov-later", data=None if is_short else 1),
        dcc.Store(id="ov-answered"),
        dcc.Store(id="ov-done"),
    ]


def opening(data: Data, view: View, *, at_once: bool = True) -> list[Any]:
    """Return the top of the page: the claim about the peak, the findings and the key figures.

    Parameters
    ----------
    data, view
        The recording.
    at_once
        Whether the findings are included; they take seconds per million events.
    """
    first = headline(data, view)
    line = (
        [" ", html.Span(to_code("Show the line", first.stack), className="only-live")] if first.stack else []
    )
    return _opening(data, view, [first.support, *line], _found(data, view) if at_once else [])


def _found(data: Data, view: View) -> list[Any]:
    latest = findings(data, view)
    lines = [_finding(view, found) for found in latest.findings[:6]]
    if lines and latest.instant < len(view.recording.trace):
        lines.append(html.Li(f"Found at {moment(data, view, latest.instant).words}.", className="dim"))
    return lines


_PAGE_OF_KIND = {
    "leak": "/leaks",
    "growing_batch": "/leaks",
    "oom": "/oom",
    "fragmentation": "/fragmentation",
}


def _finding(view: View, found: Finding) -> html.Li:
    """Return a finding whose claim links to its page and whose place opens the line."""
    severity = html.Span(found.severity, className=f"severity {found.severity}")
    page = _PAGE_OF_KIND.get(found.kind)
    claim = (
        dcc.Link(prose(found.claim[:600]), href=_at(view, page).url, className="plain-link")
        if page
        else prose(found.claim[:600])
    )
    if not found.file:
        return html.Li([severity, html.Span(claim)])
    frame = Frame(found.function or "", found.file, found.line or 0)
    stack = stack_of(view.recording.stacks, frame.file, frame.line)
    line = to_code(html.Bdi(place(frame)), stack, frame.function)
    return html.Li([severity, html.Span([claim, " ", html.Span(line, className="dim")])])


def _at(view: View, path: str, at: int | None = None) -> Address:
    """Return the address of a page about this recording."""
    if len(view.run.recordings) < 2:
        return Address(path, run=view.run_id, at=at)
    recording = view.recording
    return Address(path, view.run_id, recording.process.rank, recording.device.index, at=at)


def _waiting(data: Data, view: View) -> list[Any]:
    """Return the top of the page from the totals alone, with the height of the final one."""
    return _opening(data, view, ["Counting who allocated the peak …"], [])


def _opening(data: Data, view: View, support: list[Any], more: list[Any]) -> list[Any]:
    return [
        html.Section(
            [html.H2(claim(data, view), className="claim"), html.P(support, className="support"),
             html.Ul(more, className="findings")],
            className="opening",
        ),
        _kpis(data, view),
    ]  # fmt: skip


def _kpis(data: Data, view: View) -> Any:
    known = totals(data, view)
    full, wide = fullest(data, view), fullest(data, view, "reserved")
    idle = int(known.reserved_bytes[full] - known.allocated_bytes[full])
    share = (
        f"{_percent(idle, int(known.reserved_bytes[full]))} of reserved" if known.reserved_bytes[full] else ""
    )
    last = len(known.allocated_bytes) - 1
    end = "Allocated now" if view.is_live else "Allocated at the end"
    capacity = view.recording.device.total_bytes
    most, where = _highest(
        view, "allocated", int(known.allocated_bytes[full]), moment(data, view, full).words
    )
    top, when = _highest(view, "reserved", int(known.reserved_bytes[wide]), moment(data, view, wide).words)
    room = f"{_percent(top, capacity)} of {format_bytes(capacity)}" if capacity else when
    share = f"{share}, {moment(data, view, full).words}" if most > known.allocated_bytes[full] else share
    has_reserved = view.recording.has_reserved
    now = f"{format_bytes(int(known.reserved_bytes[last]))} reserved" if has_reserved else ""
    room, share = (room, share) if has_reserved else ("not recorded", "not recorded")
    is_past = most > known.allocated_bytes[full]
    ways = (
        _way(view, "/phases" if is_past else "/peak", None if is_past else full, where),
        _way(view, "/fragmentation", wide, room),
        _way(view, "/fragmentation", full, share),
        _way(view, "/peak", last, now),
    )
    return kpi.row(
        kpi.card("allocated", "Peak allocated", most, ways[0]),
        kpi.card("reserved", "Peak reserved", top if has_reserved else None, ways[1]),
        kpi.card("unallocated", "Unallocated at the peak", idle if has_reserved else None, ways[2]),
        kpi.card("allocated", end, int(known.allocated_bytes[last]), ways[3]),
    )


def _way(view: View, path: str, at: int | None, words: str) -> Any:
    """Return the link below a key figure to the page that breaks it down."""
    return dcc.Link(words, href=_at(view, path, at).url, className="plain-link") if words else ""


def _highest(view: View, quantity: str, n_bytes: int, words: str) -> tuple[int, str]:
    """Return *n_bytes* and *words*, or a higher peak of the steps of which only the peaks are retained."""
    before = past_peak(view.recording.past, quantity)
    if before is None or before.n_bytes <= n_bytes:
        return n_bytes, words
    return before.n_bytes, f"{past_words(before)}, no allocations retained"


def _percent(part: int, whole: int) -> str:
    return format_share(part, whole, 0)


def _register(app: Any, data: Data) -> None:
    stack_table.register(app, data, "ov")
    register_zoom(app, "ov")
    app.clientside_callback(
        ClientsideFunction("vramscope", "seen"), Output("ov-drawn", "data"), Input("ov-graph", "figure")
    )

    app.clientside_callback(
        ClientsideFunction("vramscope", "chosen"), Output("ov-done", "data"), Input("ov-at", "data")
    )

    @app.callback(
        Output("ov-graph", "figure"),
        Input("ov-view", "data"), Input("ov-legend", "value"), Input("ov-at", "data"),
        Input("version", "data"), State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def redraw(zoom: Any, shown: list[str] | None, at: int | None, _: Any, stored: Stored | None) -> Any:
        _check_chosen(at)
        return _redraw(data, restore(stored), zoom, _known(shown), at)

    @app.callback(
        Output("ov-at", "data"), Input("key", "data"), State("ov-at", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def jump(key: Pressed | None, at: int | None, stored: Stored | None) -> Any:
        view = view_or_nothing(data, restore(stored))
        return _jump(data, view, (key or {}).get("key"), clamp(data, view, at))

    @app.callback(
        Output("ov-live", "children"), Output("ov-table", "rowData"), Output("ov-table", "selectedRows"),
        Input("ov-at", "data"), Input("ov-view", "data"), Input("version", "data"),
        State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def look(at: int | None, zoom: Any, version: Standing | None, stored: Stored | None) -> Any:
        _check_chosen(at)
        address = restore(stored)
        view = view_or_nothing(data, address)
        known = _shown_instant(data, view, address, zoom, at)
        if ctx.triggered_id == "version" and known <= (version.get("answered", -1) if version else -1):
            raise PreventUpdate  # what was live at a past instant does not change
        return *live_set.content(data, view, known, address), [] if ctx.triggered_id == "ov-at" else no_update

    @app.callback(
        Output("ov-live", "children", allow_duplicate=True),
        Output("ov-table", "rowData", allow_duplicate=True),
        Output("ov-opening", "children", allow_duplicate=True), Output("ov-answered", "data"),
        Input("ov-drawn", "data"), State("ov-later", "data"),
        State("ov-view", "data"), State("ov-at", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def tell(drawn: Any, later: Any, zoom: Any, at: int | None, stored: Stored | None) -> Any:
        # For a long run the holders of the peak come after the chart, then the findings, which take longest.
        if not drawn or not later:
            raise PreventUpdate
        address = restore(stored)
        view = view_or_nothing(data, address)
        known = _shown_instant(data, view, address, zoom, at)
        return *live_set.content(data, view, known, address), opening(data, view, at_once=False), 1

    @app.callback(
        Output("ov-opening", "children"),
        Input("version", "data"), Input("ov-answered", "data"), State("address", "data"),
    )  # fmt: skip
    def renew(_: Any, answered: Any, stored: Stored | None) -> Any:
        if ctx.triggered_id != "version" and not answered:
            raise PreventUpdate
        return opening(data, view_or_nothing(data, restore(stored)))


def _check_chosen(at: int | None) -> None:
    """Raise PreventUpdate where no instant was chosen: Dash calls back for every new page."""
    if at is None and ctx.triggered_id == "ov-at":
        raise PreventUpdate


def _redraw(data: Data, address: Address, zoom: Any, shown: list[str], at: int | None) -> Any:
    """Return new data for the same axes; the range belongs to the user and is never written from here."""
    view = view_or_nothing(data, address)
    series = series_of(data, view, address.axis or TIME)
    patch = Patch()
    cursor = _shown_instant(data, view, address, zoom, at)
    patch["data"] = timeline.traces(series, timeline.zoomed(series, *edges_of(zoom)), shown, cursor)
    return patch


def _shown_instant(data: Data, view: View, address: Address, zoom: Any, at: int | None) -> int:
    """Return the chosen instant; else that of the highest level in view."""
    edges = edges_of(zoom)
    if at is not None or edges == (None, None):
        return clamp(data, view, at)
    series = series_of(data, view, address.axis or TIME)
    return timeline.highest(series, timeline.zoomed(series, *edges))


def _known(shown: Any) -> list[str]:
    return [name for name in QUANTITIES if name in (shown or [])]


def _jump(data: Data, view: View, key: Any, at: int) -> Any:
    """Return the instant that a key leads to: the peak, or the peak of a neighboring step."""
    if key == PEAK_KEY:
        return fullest(data, view)
    to = neighbor(data, view, at, {NEXT_KEY: 1, PREVIOUS_KEY: -1}.get(str(key), 0))
    return no_update if to is None else to


PAGE = Page(name="overview", title="Overview", order=10, path="/overview", layout=_layout, register=_register)
