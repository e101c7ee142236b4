"""The page "Overview": memory over time, the peak, its largest holders and the findings."""

from typing import Any

from dash import Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from vramscope.analysis.recorded_settings import recorded_limit
from vramscope.analysis.verdicts import GrowthVerdict, memory_growth
from vramscope.analysis.verdicts.missing import full_device, missing_parts, until
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.stacks import Frame
from vramscope.package_data import words
from vramscope.units import as_sentence, format_bytes, format_duration, format_share

from ..address import Address, restore
from ..answers import clamp, findings, fullest, last_oom, moment, series_of, totals
from ..components import instant_parts, legend, states
from ..components import timeline as track
from ..components.definitions import term
from ..components.panels import live_set, stack_table
from ..components.panels.past import counted
from ..components.panels.stack_table import stack_of, to_code
from ..components.prose import claim_heading, prose, sentence
from ..components.scripts import in_browser
from ..data import Data, View
from ..figures.drawing.names import place
from ..figures.drawing.series import TIME, has_clock
from ..figures.drawing.window import highest, zoomed
from ..queries.findings_process import LatestFindings
from ..queries.headline import ahead, beyond_heading, claim, headline, leading, past_peak, past_words
from ..server.callbacks import Stored, view_or_nothing
from . import Context, InstantParts, Instants, Page

ENOUGH_STEPS = 7
"""Steps after which the search for leaks decides."""


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    if not view.recording.has_allocations:
        has_failed = len(view.recording.trace) > 0
        if has_failed:
            return opening(data, view)
        growth = memory_growth(view.recording, data.ask(view, "leaks"), missing_parts(view.recording))
        shown = counted(data, view, states.most_known(view), growth.text)
        return shown or states.nothing_recorded(view.is_live, view)
    series = series_of(data, view, address.axis or TIME)
    is_short = len(view.recording.trace) <= data.pace.events_at_once
    shown = legend.usual(series)
    look = track.TrackStyle("ov-track", "tall-track", {"at": "ov-at"}, shown)
    sentence = f"Memory over time. {claim(data, view)}."
    return [
        html.Div(
            opening(data, view)
            if is_short
            else _opening(data, view, ["Counting who allocated the peak …"], []),
            id="ov-opening",
        ),
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
                track.frame(series, view, sentence, look),
                legend.phases(series, live=view.is_live),
                legend.counted(view),
            ],
            className="panel chart",
            **{"aria-label": "Memory over time"},
        ),
        _live(data, view, address, is_at_once=is_short),
        dcc.Store(id="ov-at", data=address.at),
        dcc.Store(id="ov-drawn"),
        dcc.Store(id="ov-later", data=None if is_short else 1),
        dcc.Store(id="ov-answered"),
        dcc.Store(id="ov-done"),
    ]


def _live(data: Data, view: View, address: Address, *, is_at_once: bool) -> Any:
    """Return what is live at the instant in view; for millions of events it follows the chart."""
    at = _shown_instant(data, view, address) if is_at_once else None
    shown = live_set.waiting("ov", view) if at is None else live_set.layout("ov", data, view, at, address)
    return instant_parts.frame("overview", view, address, at, [shown], follows_zoom=True)


def _parts(data: Data, view: View, at: int, address: Address) -> InstantParts:
    live, rows = live_set.content(data, view, at, address)
    # A chosen instant takes the inspector from the line that it showed.
    selected: dict[str, Any] = {} if address.at is None else {"selectedRows": []}
    return InstantParts({"ov-live": live}, {"ov-table": {"rowData": rows} | selected})


def opening(data: Data, view: View, *, at_once: bool = True) -> list[Any]:
    """Return the top of the page: the claim about the peak, the findings and the key figures.

    Findings take seconds per million events: unless *at_once* they are left out.
    """
    first = headline(data, view)
    line = (
        [" ", html.Span(to_code("Show the line", first.stack), className="only-live")] if first.stack else []
    )
    grave = leading(findings(data, view).findings) if at_once else None
    support = [first.support, *line]
    if grave is not None:
        support = [f"{claim(data, view)}. ", *support]
    return _opening(data, view, support, _found(data, view) if at_once else [], grave)


def _found(data: Data, view: View) -> list[Any]:
    latest = findings(data, view)
    leads, failed = leading(latest.findings) is not None, last_oom(data, view)
    lines = [
        _finding(view, found, is_said=_is_of(found, failed) or (leads and not i))
        for i, found in enumerate(latest.findings[:6])
    ]
    n_steps = len(view.recording.steps)
    if not lines and n_steps >= ENOUGH_STEPS and not view.is_live:
        lines.append(_steady(data, view, n_steps))
    outlook = ahead(data, view)
    if outlook.text:
        word = "warning" if outlook.forecast else "info"
        lines.append(
            html.Li([html.Span(word, className=f"severity {word}"), html.Span(sentence(outlook.text))])
        )
    if latest.instant < len(view.recording.trace):
        lines.append(html.Li(_lag(data, view, latest, has_found=bool(lines)), className="dim"))
    return lines


def _is_of(found: Finding, failed: int) -> bool:
    """Whether a finding is the failed allocation of the heading, the event *failed*."""
    return found.kind == FindingKind.OOM and found.evidence.get("event") == failed


def _lag(data: Data, view: View, latest: LatestFindings, *, has_found: bool) -> str:
    """Return up to when the events of a live run are searched, and how far that is behind them."""
    if not latest.instant:
        return "Searching for leaks, fragmentation and failed allocations …"
    times_ns = totals(data, view).time_ns
    behind_ns = int(times_ns[-1] - times_ns[latest.instant])
    behind = f", {format_duration(behind_ns)} ago" if has_clock(view.recording) and behind_ns > 0 else ""
    what = "These are the findings" if has_found else "Nothing was found"
    return f"{what} up to {moment(data, view, latest.instant).words}{behind}; the search goes on."


def _steady(data: Data, view: View, n_steps: int) -> html.Li:
    """Return that nothing was found; a run that was broken off, or lacks something, is not called fine."""
    missing = missing_parts(view.recording)
    growth = memory_growth(view.recording, data.ask(view, "leaks"), missing)
    full = full_device(view.recording)
    word = "fine" if growth.is_decided and not full else "info"
    text = sentence(full or growth.text)
    if growth.verdict in (GrowthVerdict.NOTHING, GrowthVerdict.LITTLE) and not full:
        end = f", {until(missing)}" if until(missing) else ""
        found = "no leak, no failed allocation, no fragmentation to speak of"
        text = f"Steady over {n_steps:,} steps{end}: {found}."
    return html.Li([html.Span(word, className=f"severity {word}"), html.Span(text)])


_MORE = words(__file__, "pages.tsv", "more")
"""What the page of a finding adds, where the heading says the finding already."""
_PAGE_OF_KIND = words(__file__, "pages.tsv", "page")


def _finding(view: View, found: Finding, *, is_said: bool = False) -> html.Li:
    """Return a finding whose claim links to its page and whose place opens the line.

    Where the heading says it already (*is_said*), the link says the cause, or what its page adds.
    """
    severity = html.Span(found.severity, className=f"severity {found.severity}")
    page = _PAGE_OF_KIND.get(found.kind)
    why = beyond_heading(found)[1] if found.kind == FindingKind.OOM else ""
    kind = "kept" if found.kind == FindingKind.LEAK and found.holder else found.kind
    text = why or _MORE[kind] if is_said else found.claim
    look = "plain-link" if text in found.claim else "link"
    shown = prose(as_sentence(text[:600]))
    claim = html.A(shown, href=_at(view, page).url, className=look) if page else shown
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
    return Address(path, *view.here, at=at)


def _opening(
    data: Data, view: View, support: list[Any], more: list[Any], grave: str | None = None
) -> list[Any]:
    """Return the top of the page; *grave* replaces the peak where something matters more."""
    return [
        html.Section(
            [claim_heading(prose(grave) if grave else claim(data, view)),
             html.P(support, className="support"),
             html.Ul(more, className="findings")],
            className="opening",
        ),
        _kpis(data, view),
    ]  # fmt: skip


def _kpis(data: Data, view: View) -> Any:
    known, has_reserved = totals(data, view), view.recording.has_reserved
    full, wide = fullest(data, view), fullest(data, view, "reserved")
    last, words = len(known.allocated_bytes) - 1, [moment(data, view, at).words for at in (full, wide)]
    allocated, reserved = int(known.allocated_bytes[full]), int(known.reserved_bytes[full])
    most, where = _highest(view, "allocated", allocated, words[0])
    top, room = _highest(view, "reserved", int(known.reserved_bytes[wide]), words[1])
    is_past, capacity = most > allocated, view.recording.device.total_bytes
    limit = recorded_limit(view.recording)
    if limit and top <= limit:
        room = f"{format_share(top, limit, 0)} of the {format_bytes(limit)} allowed"
    elif capacity:
        room = f"{format_share(top, capacity, 0)} of {format_bytes(capacity)}"
        if top > capacity:  # a simulated device that was full; a share would read as an error
            room = f"{format_bytes(top - capacity)} more than its {format_bytes(capacity)}"
    share = f"{format_share(reserved - allocated, reserved, 0)} of reserved" if reserved else ""
    share = f"{share}, {words[0]}" if is_past else share
    now = f"{format_bytes(int(known.reserved_bytes[last]))} reserved"
    if not has_reserved:
        room, share, now = "not recorded", "not recorded", ""
    peak = _way(view, "/phases" if is_past else "/peak", None if is_past else full, where)
    end = "Allocated now" if view.is_live else "Allocated at the end"
    idle = reserved - allocated if has_reserved else None
    cards = [
        _card("allocated", "Peak allocated", most, peak),
        _card("reserved", "Peak reserved", top if has_reserved else None,
              _way(view, "/fragmentation", wide, room)),
        _card("unallocated", "Unallocated at the peak", idle, _way(view, "/fragmentation", full, share)),
        _card("allocated", end, int(known.allocated_bytes[last]), _way(view, "/peak", last, now)),
    ]  # fmt: skip
    return html.Section(cards, className="kpis", **{"aria-label": "Key figures"})


def _card(name: str, label: str, n_bytes: int | None, below: Any = "") -> html.Div:
    """Return the card of one quantity in large type; its exact bytes appear on hover.

    *name* is that of the definition; *n_bytes* is None where it is unknown, which shows as a dash.
    """
    number, unit = ("–", "") if n_bytes is None else format_bytes(n_bytes).split(" ")
    value = html.Div(
        [html.Span(number, className="kpi-number"), html.Span(unit, className="kpi-unit")],
        title="not recorded" if n_bytes is None else f"{n_bytes:,} bytes", className="kpi-value",
    )  # fmt: skip
    above = html.Div(term(name, label), className="kpi-label")
    return html.Div([above, value, html.Div(below, className="kpi-below")], className="kpi")


def _way(view: View, path: str, at: int | None, words: str) -> Any:
    """Return the link below a key figure to the page that breaks it down."""
    return html.A(words, href=_at(view, path, at).url, className="plain-link") if words else ""


def _highest(view: View, quantity: str, n_bytes: int, words: str) -> tuple[int, str]:
    """Return *n_bytes* and *words*, or a higher peak of the steps of which only the peaks are retained."""
    before = past_peak(view.recording, quantity)
    if before is None or before.n_bytes <= n_bytes:
        return n_bytes, words
    return before.n_bytes, f"{past_words(before)}, no allocations retained"


def _register(app: Any, data: Data) -> None:
    stack_table.register(app, "ov")
    track.follow_instant(app, "ov-at")
    track.follow_keys(app, data, "ov-at", clamp)
    in_browser(app, "seen", Output("ov-drawn", "data"), Input("ov-later", "data"), at_once=True)

    in_browser(app, "legendShown", Output("ov-done", "data"), Input("ov-legend", "value"), at_once=True)

    @app.callback(
        Output("ov-opening", "children", allow_duplicate=True), Output("ov-answered", "data"),
        Input("ov-drawn", "data"), State("ov-later", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def tell(drawn: Any, later: Any, stored: Stored | None) -> Any:
        # For a long run the holders of the peak come after the chart, then the findings, which take longest.
        if not drawn or not later:
            raise PreventUpdate
        return opening(data, view_or_nothing(data, restore(stored)), at_once=False), 1

    @app.callback(
        Output("ov-opening", "children"),
        Input("version", "data"), Input("ov-answered", "data"), State("address", "data"),
    )  # fmt: skip
    def renew(_: Any, answered: Any, stored: Stored | None) -> Any:
        if ctx.triggered_id != "version" and not answered:
            raise PreventUpdate
        return opening(data, view_or_nothing(data, restore(stored)))


def _shown_instant(data: Data, view: View, address: Address) -> int:
    """Return the chosen instant; else that of the highest level in view."""
    if address.at is not None or (address.t0, address.t1) == (None, None):
        return clamp(data, view, address.at)
    series = series_of(data, view, address.axis or TIME)
    return highest(series, zoomed(series, address.t0, address.t1))


PAGE = Page(
    name="overview", title="Overview", order=10, path="/overview", layout=_layout, register=_register,
    has_timeline=True, instants=Instants(_shown_instant, _parts),
)  # fmt: skip
