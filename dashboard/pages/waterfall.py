"""The page "Waterfall": all bytes of the device by part, from live tensors to other processes."""

from typing import Any

from dash import Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from vramscope import analysis
from vramscope.analysis.lines import line_words, lines
from vramscope.analysis.summary import at_instant, pinned_words
from vramscope.analysis.waterfall import BAR_WORDS, missing_parts
from vramscope.units import format_bytes, format_count, format_duration, format_share

from ..address import restore
from ..answers import series_of, totals
from ..components import states
from ..components.definitions import DEFINITION, explained
from ..components.graph import graph
from ..components.panel import bar, color_key, panel, table
from ..components.panels import cause
from ..components.prose import claim_heading
from ..data import Data, View
from ..figures import device
from ..figures.drawing.series import TIME, origin_ns
from ..figures.drawing.window import Window, training, window
from ..server.callbacks import Click, Pressed, Stored, view_or_nothing
from . import Behind, Context, Page

MOST_LINES = 10


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    found = data.ask(view, "waterfall")
    pinned = _pinned(data, view)
    if not len(found) and pinned:
        known = html.P("The memory that the program pinned on the host is known.", className="support")
        return [
            html.Section([claim_heading("The device was not sampled"), known], className="opening"),
            *pinned,
        ]
    if not len(found) and states.has_no_device(view):
        return states.nothing_recorded(view.is_live, view)
    if not len(found):
        return states.state(
            "The device was not sampled",
            "The waterfall needs samples of the counters of torch and of the driver (NVML). "
            "A file that torch wrote, and a simulated device, have none.",
            ["Record on the GPU: ", states.command('with vramscope.record("traces/run"):')],
            ["Or counters alone, cheap enough to leave on: ", states.command('record(mode="counters")')],
        )
    row = found.fullest
    grown = analysis.analyses()["waterfall"]
    findings = grown.findings(found) if grown.findings else []
    picture = graph("wf-graph", _picture(data, view, row), "The device over time.", "timeline-like")
    there = [name for name, n_bytes in device.stacked(found).items() if n_bytes.any()]
    key = color_key(((device.COLOR[name], BAR_WORDS[name].on_page) for name in there), "band")
    # Seconds may lie between two samples, in which the device had other levels.
    drawn = f"{format_count(len(found), 'sample')}; a level is drawn until the next one. "
    click = html.Span("Click a moment to see its parts.", className="only-live")
    hint = html.P([drawn, click], className="dim")
    chart = panel("The device over time", key, picture, kind="chart", beside=hint)
    # One sample is no course over time: its parts are all there is.
    chart.hidden = len(found) < 2
    return [
        html.Section(_opening(found, row), id="wf-opening", className="opening"),
        chart,
        html.Section(_bars(data, view, row), id="wf-bars", className="panel", **{"aria-label": "All bytes"}),
        *pinned,
        *[cause.card(finding) for finding in findings],
        dcc.Store(id="wf-row", data=row),
    ]  # fmt: skip


def _axis(data: Data, view: View) -> tuple[int, Window | None]:
    """Return zero of the axis in ns and its range in s, as a timeline above has them."""
    if not len(view.recording.trace):
        return int(data.ask(view, "waterfall").time_ns[0]), None
    origin, series = origin_ns(view.recording, totals(data, view)), series_of(data, view, TIME)
    if series.axis != TIME:
        return origin, None
    opens = None if view.is_live else training(series)
    return origin, opens or window(series, None, None)


def _picture(data: Data, view: View, row: int) -> dict[str, Any]:
    return device.figure(data.ask(view, "waterfall"), view.recording.steps, row, *_axis(data, view))


def _pinned(data: Data, view: View) -> list[html.Section]:
    """Return the panel of the lines that pinned host memory; nothing where its events are not known."""
    found = data.derive(view, "pinned", lambda each: at_instant(each.pinned, "peak") if each.pinned else None)
    if found is None or not found.peak_bytes:
        return []
    title, held = pinned_words(view.recording, found)
    shown, total = lines(found.live), found.peak_bytes
    rows = []
    for line in shown[:MOST_LINES]:
        where = html.Td(html.Bdi(line_words(line)[:300]), className="where")
        rows.append([where, line.n_bytes, format_share(line.n_bytes, total), f"{line.n_blocks:,}"])
    more = f"the largest {MOST_LINES} of {len(shown)} lines · " if len(shown) > MOST_LINES else ""
    body = table(("Line", "In use", "Share", "Blocks"), "lrdd", rows)
    beside = html.Span(f"{more}{held}", className="dim")
    return [panel(f"{title[:1].upper()}{title[1:]}", body, beside=beside, label="Pinned host memory")]


def _opening(found: Any, row: int) -> list[Any]:
    used, total, reserved, allocated = (
        int(column[row])
        for column in (found.used_bytes, found.total_bytes, found.reserved_bytes, found.allocated_bytes)
    )
    if used >= 0:
        share = f" of {format_bytes(total)}" if total > 0 else ""
        claim = f"{format_bytes(used)}{share} used on the device"
        text = _beyond(used, reserved)
    else:
        did, n_bytes = ("reserved", reserved) if reserved >= 0 else ("allocated", allocated)
        claim = f"torch had {did} {format_bytes(max(n_bytes, 0))}"
        text = "The driver's counters are not recorded, so the use outside of torch is unknown."
    return [claim_heading(claim), html.P(text, className="support")]


def _beyond(used: int, reserved: int) -> str:
    if reserved < 0:
        return "What torch had reserved is not recorded."
    beyond = format_bytes(max(used - reserved, 0))
    return f"torch had reserved {format_bytes(reserved)} of it; {beyond} were outside of torch."


def _bars(data: Data, view: View, row: int) -> list[Any]:
    found = data.ask(view, "waterfall")
    bars = found.bars(row)
    whole = _scale(bars)
    origin, _ = _axis(data, view)
    position, word = device.positions(found, view.recording.steps, origin)
    after = format_duration(int(found.time_ns[row]) - origin) if row else "the first sample"
    where = f"at {word} {int(position[row]):,}" if word and len(found) > 1 else f"at {after}"
    body, below = [], 0
    for part in bars:
        if part.n_bytes is not None:
            body.append(_bar(part, below, whole))
            below += part.n_bytes
    title = [html.H3("All bytes of the device"), html.Span(where, className="dim")]
    columns = ("Part", "Bytes", "", "Source")
    missing = [
        html.P(
            f"{', '.join(BAR_WORDS[name].on_page for name in names)}: {reason[:300]}", className="dim nothing"
        )
        for reason, names in missing_parts(bars).items()
    ]
    return [html.Div(title, className="panel-bar"), table(columns, "lrll", body, "falls"), *missing]


def _scale(bars: Any) -> int:
    """Return the bytes of a full bar: all of the device, or its used bytes where it is mostly free."""
    free = sum(bar.n_bytes or 0 for bar in bars if bar.name in ("free", "driver"))
    whole = sum(bar.n_bytes or 0 for bar in bars)
    return max(whole if 2 * free < 3 * (whole - free) else whole - free, 1)


def _bar(part: Any, below: int, whole: int) -> list[Any]:
    color = device.COLOR.get(part.name, "#c3cad2")
    swatch = html.I(className="swatch", style={"background": color})
    words = BAR_WORDS[part.name]
    name = html.Span([swatch, words.on_page], className="phase-name term", tabIndex="0")
    meaning = words.meaning or DEFINITION.get(part.name)
    label = explained(name, meaning) if meaning else name
    left, width = 100 * below / whole, 100 * part.n_bytes / whole
    style = {"left": f"{left:.2f}%", "width": f"max({width:.2f}%, 1px)", "background": color}
    drawn = bar(0, **style) if left + width < 100.5 and part.n_bytes else ""
    return [label, part.n_bytes, drawn, html.Td(part.source[:120], className="dim")]


def _register(app: Any, data: Data) -> None:
    @app.callback(
        Output("wf-row", "data"),
        Input("wf-graph", "clickData"), Input("key", "data"), State("wf-row", "data"),
        State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def choose(click: Click | None, key: Pressed | None, row: int | None, stored: Stored | None) -> Any:
        found = data.ask(view_or_nothing(data, restore(stored)), "waterfall")
        to = _clicked(click) if ctx.triggered_id == "wf-graph" else _keyed(key, row, found)
        return to if isinstance(to, int) and 0 <= to < len(found) else no_update

    @app.callback(
        Output("wf-opening", "children"), Output("wf-bars", "children"), Output("wf-graph", "figure"),
        Input("wf-row", "data"), Input("version", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def show(row: int | None, _: Any, stored: Stored | None) -> Any:
        view = view_or_nothing(data, restore(stored))
        found = data.ask(view, "waterfall")
        if row is None or not 0 <= row < len(found):
            raise PreventUpdate
        return _opening(found, row), _bars(data, view, row), _picture(data, view, row)


def _clicked(click: Any) -> int | None:
    points = (click or {}).get("points") or []
    rows = [point["customdata"] for point in points if isinstance(point.get("customdata"), (int, float))]
    return int(rows[0]) if rows else None


def _keyed(key: Any, row: Any, found: Any) -> int | None:
    """Return the sample that a key leads to: the fullest, or a neighbor."""
    word = str((key or {}).get("key"))
    if word == "p":
        return int(found.fullest)
    step = {"j": 1, "k": -1}.get(word)
    return row + step if step and isinstance(row, int) else None


def _behind(data: Data, view: View) -> Behind:  # noqa: ARG001 -- of every page
    is_there = len(view.recording.counters) or view.recording.pinned or view.is_live
    return Behind(nothing="" if is_there else "The device was not sampled")


PAGE = Page(
    name="waterfall", title="Waterfall", order=70, path="/waterfall", layout=_layout, register=_register,
    behind=_behind,
)  # fmt: skip
