"""The page "Allocations": every allocation as a band from its allocation to its free, with a search."""

from typing import Any

import numpy as np
from dash import Input, Output, State, dcc, html, no_update
from flask import Response, request
from numpy.typing import NDArray

from vramscope.analysis.allocations import Columns, SearchError, matching, parse
from vramscope.analysis.lifetimes import Allocations
from vramscope.units import format_bytes

from ..address import MAX_SEARCH, Address, restore
from ..answers import folded, owners, series_of, totals
from ..components import legend, scripts, states
from ..components.panel import panel, segments
from ..components.panels import found_table, stack_table
from ..components.scripts import in_browser
from ..components.timeline import raster
from ..data import Data, View
from ..figures.bands import Bands, Box, Raster, bands, fullest
from ..figures.bands import raster as rasterize
from ..figures.drawing.paint import WAYS, Paint, by_age, by_category, by_line, by_module, by_phase
from ..figures.drawing.series import EVENTS, TIME
from ..server import api
from ..server.callbacks import Stored, view_or_nothing
from . import Context, Page, counting

_COARSER = ((200_000, 400, 480), (20_000, 600, 560))
"""Events, columns, rows: views of more events have at most this resolution; more is heavier, not clearer."""
_WORDS = {"category": "Category", "phase": "Phase", "module": "Module", "line": "Line", "age": "Age"}


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    if not view.recording.has_allocations:
        return states.nothing_recorded(view.is_live, view)
    series = series_of(data, view, address.axis or TIME)
    usual = "category" if data.ask(view, "categories").is_known else "line"
    way = address.by if address.by in WAYS else usual
    peak = format_bytes(int(series.allocated.max()))
    sentence = f"Every live allocation as a band over time; together at most {peak}."
    asks = {"url": "/api/active", "by": way, "q": address.q, "axis": series.axis}
    links = [(word, address.go(by=name).url, name == way) for name, word in _WORDS.items()]
    bar = html.Div(
        [legend.axis_choice(view, address), segments("Color by", links)], className="chart-controls"
    )
    look = {"type": "search", "className": "search wide", "maxLength": MAX_SEARCH}
    words = "Find: model.py:13  category:input"
    box = scripts.box("al-search", address.q, placeholder=words, **look)
    name = html.Span("Find allocations", className="unseen")
    return [
        panel(
            html.Label([name, *box], title=_HELP),
            html.Div(id="al-key", className="lane-key band-key"),
            raster.under_axes("al-graph", series, view, sentence, asks),
            html.Div(
                [legend.phases(series, live=view.is_live), html.Span(id="al-cut", className="dim cut")],
                className="chart-foot",
            ),
            beside=bar, kind="chart", label="Allocations over time",
        ),
        panel(
            html.H2("Largest allocations", id="al-heading"), html.Div(_table(), className="table-frame"),
            beside=_beside(address), label="Allocations found",
        ),
        dcc.Store(id="al-done"), dcc.Store(id="al-group", data=_group(address)),
    ]  # fmt: skip


def _group(address: Address) -> str:
    return address.group if address.group in found_table.GROUPS else ""


def _beside(address: Address) -> Any:
    every = html.A(
        "CSV of all",
        id="al-file",
        className="link only-live",
        download="",
        title="Every allocation found, not only those listed, with exact sizes",
    )
    return html.Div([found_table.live_button(address.q), found_table.buttons(_group(address)), every],
                    className="table-ways")  # fmt: skip


_HELP = (
    'Parts of functions, files and modules; "whole name"; train.py:13; category:activation; phase:backward; '
    "step:3..7; module:*.mlp; file: function: stream: annotation:; size>64MiB; life<2s; "
    "alive (never freed); before (from before the recording). A - in front excludes. All must hold."
)


def _table() -> Any:
    texts = stack_table.no_rows("No allocation matches.", "Reading the allocations …")
    # No rows at all, not an empty list: until the first answer the grid says that it is loading.
    return stack_table.grid("al-table", None, found_table.columns("", is_live=False), texts)


def lives(data: Data, view: View) -> Allocations:
    """Return every allocation of the recording."""
    return data.ask(view, "lifetimes")


def _index(data: Data, view: View) -> Bands:
    found, known = lives(data, view), totals(data, view)
    return data.derive(view, "bands", lambda _: bands(found, known.allocated_bytes))


def _hits(data: Data, view: View, text: str) -> NDArray[Any] | None:
    """Return which allocations a search finds; None for an empty one. Raises SearchError."""
    terms = parse(text)
    if not terms:
        return None
    known = data.ask(view, "categories").assigned.category
    columns = Columns(view.recording, lives(data, view), known, lambda: owners(data, view))
    return data.derive(view, ("found", terms), lambda _: matching(terms, columns, text))


def _hits_or_all(data: Data, view: View, text: str) -> NDArray[Any] | None:
    """Return the same, and all for a search that is not understood: the table names the error."""
    try:
        return _hits(data, view, text)
    except SearchError:
        return None


def _active(data: Data) -> Response:
    """Return the raster of one view of the timeline."""
    view = api.view_of(data)
    series = series_of(data, view, api.word("axis", (TIME, EVENTS)))
    start, end = api.number("a", -1e12, 1e12), api.number("b", -1e12, 1e12)
    low, high = api.number("lo", -1e15, 1e15), api.number("hi", -1e15, 1e15)
    n_columns, height = api.whole("w", 1, api.MOST_COLUMNS), api.whole("h", 1, api.MOST_ROWS)
    if end <= start or high <= low:
        api.refuse("an empty view")
    first, stop = np.searchsorted(series.position, (start, end))
    n_columns, height = _fineness(int(stop - first), n_columns, height)
    borders = np.linspace(start, end, n_columns + 1)
    instants = fullest(series, borders)
    outside = (borders[1:] <= series.position[0]) | (borders[:-1] > series.position[-1])
    box = Box(instants, low, high, height)
    picture = rasterize(_index(data, view), box).with_nothing_at(outside, height)
    way = api.word("by", WAYS)
    found = lives(data, view)
    makers = {
        "category": lambda _: by_category(data.ask(view, "categories").assigned.category),
        "phase": lambda r: by_phase(r, found),
        "module": lambda _: by_module(owners(data, view), found),
        "line": lambda _: by_line(folded(data, view), found),
        "age": lambda r: by_age(r, found),
    }
    paint = data.derive(view, ("paint", way), makers[way])
    return _sent(data, view, (box, picture), paint, request.args.get("q", ""))


def _fineness(n_events: int, n_columns: int, height: int) -> tuple[int, int]:
    for least, most_columns, most_rows in _COARSER:
        if n_events > least:
            return min(n_columns, most_columns), min(height, most_rows)
    return n_columns, height


def _sent(data: Data, view: View, made: tuple[Box, Raster], paint: Paint, text: str) -> Response:
    box, picture = made
    ids, local = api.numbered(picture.rows)
    found, real = lives(data, view), np.maximum(ids, 0)
    hits = _hits_or_all(data, view, text)
    shade = (found.stack_id[real] * np.int64(7) + 3) % 5
    flags = (found.alloc_event[real] < 0).astype("u1")
    if hits is not None:
        flags |= np.where(hits[real], 2, 4).astype("u1")
    group = paint.group[real]
    named = np.unique(group[ids >= 0]).tolist()
    header = {
        "w": len(box.instants), "h": box.height, "cut": picture.cut, "colors": paint.colors,
        "names": {str(i): paint.names[i] for i in named},
    }  # fmt: skip
    return api.columns(
        header, ids=ids, group=group, shade=shade, flags=flags, local=local, length=picture.n_pixels,
        column=picture.column, instants=box.instants,
    )  # fmt: skip


def _register(app: Any, data: Data) -> None:
    scripts.register(app, "al-search")
    app.server.add_url_rule("/api/active", "active", lambda: _active(data))
    app.server.add_url_rule("/api/alloc", "alloc", lambda: _alloc(data))
    app.server.add_url_rule("/api/allocations.csv", "found", lambda: _file(data))
    stack_table.register_rows(app, "al-table")
    in_browser(
        app, "repaint", Output("al-done", "data"), Input("al-search", "data"), Input("version", "data")
    )

    @app.callback(
        Output("al-table", "rowData"), Output("al-table", "columnDefs"), Output("al-heading", "children"),
        Output("al-file", "href"),
        Input("al-search", "data"), Input("al-group", "data"), Input("version", "data"),
        State("address", "data"),
    )  # fmt: skip
    def find(text: str | None, group: str | None, _: Any, stored: Stored | None) -> Any:
        address = restore(stored)
        view, chosen = view_or_nothing(data, address), group if group in found_table.GROUPS else ""
        own = Address(
            "/api/allocations.csv", address.run, address.rank, address.device, address.restart, q=text or ""
        )
        return *_found(data, view, text or "", chosen or ""), own.url


def _alloc(data: Data) -> Response:
    """Return a few words about the allocation under the pointer."""
    view = api.view_of(data)
    row = api.whole("id", -1, 1 << 40)
    if not 0 <= row < len(lives(data, view)):
        api.absent()
    return api.answer(found_table.words(data, view, row))


def _found(data: Data, view: View, text: str, group: str) -> tuple[list[dict[str, Any]], list[Any], Any]:
    """Return rows, columns and heading of the table."""
    try:
        found, is_search = _search_of(data, view, text)
    except SearchError as error:
        return [], no_update, _mistake(error)

    def listed(_: Any) -> list[dict[str, Any]]:
        return found_table.rows(data, view, found, group)

    # Those of no search come with every visit; of searches there are as many as letters.
    shown = listed(None) if is_search else data.derive(view, ("listed", group), listed)
    heading = found_table.heading(data, view, found, group, is_search=is_search)
    return shown, found_table.columns(group, is_live=found.at is not None), heading


def _search_of(data: Data, view: View, text: str) -> tuple[found_table.Found, bool]:
    """Return what a search found, and whether it has terms at all. Raises SearchError."""
    hits = _hits(data, view, text)
    return found_table.found_of(data, view, parse(text), hits), hits is not None


def _file(data: Data) -> Response:
    """Return every allocation that a search found as CSV."""
    view, text = api.view_of(data), request.args.get("q", "")[:MAX_SEARCH]
    try:
        found, _ = _search_of(data, view, text)
    except SearchError as error:
        api.refuse(error.reason)
    name = f'attachment; filename="{view.run_id}-allocations.csv"'
    return Response(found_table.as_csv(data, view, found), mimetype="text/csv",
                    headers={"Content-Disposition": name, "Cache-Control": "no-store"})  # fmt: skip


def _mistake(error: SearchError) -> Any:
    """Return the search with the letters that are not understood marked, and the reason."""
    wrong = html.Mark(error.text[error.start : error.end], className="wrong")
    shown = html.Code([error.text[: error.start], wrong, error.text[error.end :]])
    return html.Span([shown, " ", error.reason], className="mistake", role="alert")


PAGE = Page(name="allocations", title="Allocations", order=30, path="/allocations", layout=_layout,
            register=_register, has_timeline=True, behind=counting())  # fmt: skip
