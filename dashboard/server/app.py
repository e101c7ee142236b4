"""The app: the shell, the routing of addresses, and every page; nothing global, so apps can coexist."""

import json
import logging
from html import escape
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from vramscope import package_data
from vramscope.analysis.pace import StepPace, pace
from vramscope.analysis.verdicts.missing import why_stopped
from vramscope.errors import UnknownNameError, VramscopeError
from vramscope.model.recording import Outcome
from vramscope.web_hosts import LOOPBACK

from .. import inspector
from ..address import Address, parse, restore
from ..answers import findings
from ..components import header, instant_parts, states, timeline
from ..components.scripts import in_browser
from ..data import Data, View
from ..figures.drawing.theme import palette_css
from ..pages import Behind, Context, Page, pages
from ..queries import comments
from ..queries.headline import ahead, forecast_words
from ..queries.rank_answers import opened_address, queries_of
from ..report import document
from . import api, compression
from .callbacks import OutcomeWord, Ready, Standing, Stored, guard
from .compression import compress
from .pending_pages import PendingPages
from .plain import ThinDash, thinned
from .security import Access, protect

_LOG = logging.getLogger(__name__)

_POLL_WAITS_S = 0.15
"""Seconds that an answer about a page in the making waits for it: less than the pause between two."""
_STORES = ("address", "version", "key", "ready", "title", "sink", "stand", "entered")


def build_app(data: Data, allowed: Access) -> Dash:
    """Return the dashboard as a Dash app."""
    app = ThinDash(
        __package__.rpartition(".")[0],  # the folder with assets/
        title="vramscope",
        update_title=None,
        assets_ignore=r".*",  # they are bundled
        suppress_callback_exceptions=True,  # only the page in view is in the document
        serve_locally=True,
        meta_tags=[
            {"name": "viewport", "content": "width=device-width, initial-scale=1"},
            {"name": "color-scheme", "content": "light dark"},
        ],
        on_error=_ignore_deleted_run,
        hooks={"request_pre": "window.vramscope.startPlotly"},
    )
    bundles = compression.register(app.server, Path(app.config.assets_folder))
    index = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    parts = {"palette": palette_css(), "first": bundles.first} | bundles.addresses
    for name, text in parts.items():
        index = index.replace(f"{{{name}}}", text)
    all_pages = pages()
    _route(app, data, {page.path: page for page in all_pages})
    _watch(app, data, {page.path for page in all_pages if not page.reads_events})
    data.is_read_only = not allowed.hosts <= LOOPBACK
    timeline.register(app, data)
    instant_parts.register(app, data, {page.name: page for page in all_pages})
    comments.register(app, data)
    inspector.register(app, data)
    document.register(app, data)
    api.register(app)
    for page in all_pages:
        page.register(app, data)
    app.layout = thinned(_shell(data.pace.idle_ms), app.known_ids)
    app.index_string = index.replace("{asks}", escape(json.dumps(_page_request(app))))
    # Last, because the hashes must cover every inline script that callbacks add.
    protect(app.server, allowed, [*app.csp_hashes(), bundles.digest])
    compress(app.server)
    guard(app)  # after the access checks: a refused client learns nothing about callbacks
    return app


def _page_request(app: Dash) -> dict[str, Any]:
    """Return what Dash sends to lay out a page, so that the head of the page can send it before Dash does."""
    output, callback = next(
        (output, callback)
        for output, callback in app.callback_map.items()
        if any(each["id"] == "location" for each in callback["inputs"])
    )
    ends = [name.rpartition(".") for name in output.strip(".").split("...")]
    changed = [f"location.{each['property']}" for each in callback["inputs"] if each["id"] == "location"]
    return {
        "output": output,
        "outputs": [{"id": name, "property": end} for name, _, end in ends],
        "inputs": [dict(each) for each in callback["inputs"]],
        "state": [dict(each) for each in callback["state"]],
        "changedPropIds": changed,
    }


def _shell(idle_ms: int) -> Any:
    rail = html.Aside(
        [
            html.A("vramscope", href="/", className="brand"),
            html.Nav(id="menu", className="menu", **{"aria-label": "Pages"}),
            html.Div(
                [
                    html.Button("Theme", id="theme-button", className="quiet", title="Light or dark (t)"),
                    html.Button("Keys", id="help-button", className="quiet", title="Keyboard (?)"),
                ],
                className="rail-end",
            ),
        ],
        className="rail",
    )
    main = html.Main(
        [html.Div(id="alarm"), html.Div(id="top"), html.Div(id="page", className="page")],
        id="main",
        tabIndex="-1",
    )
    stores = [
        dcc.Location(id="location", refresh="callback-nav"),
        *(dcc.Store(id=name) for name in _STORES),
        dcc.Interval(id="tick", interval=idle_ms),
    ]
    skip = html.A("Skip to content", href="#main", className="skip")
    return html.Div([*stores, skip, html.Div([rail, main, *inspector.layout()], className="shell"), _help()])


def _help() -> Any:
    rows = [
        html.Div([html.Dt(html.Kbd(keys)), html.Dd(what)])
        for keys, what in package_data.rows(__file__, "app.tsv")
    ]
    close = html.Button("Close", id="help-close", className="quiet")
    content = [html.H2("Keyboard"), html.Dl(rows), close]
    return html.Dialog(content, id="help", className="help", **{"aria-label": "Keyboard"})


def _route(app: Dash, data: Data, entries: dict[str, Page]) -> None:
    patience = PendingPages()

    @app.callback(
        Output("menu", "children"), Output("top", "children"), Output("page", "children"),
        Output("address", "data"), Output("tick", "interval"), Output("title", "data"),
        Output("alarm", "children"),
        Input("location", "pathname"), Input("location", "search"), Input("ready", "data"),
        State("address", "data"),
    )  # fmt: skip
    def go(
        pathname: str | None, search: str | None, ready: Ready | None, stored: Stored | None
    ) -> tuple[Any, ...]:
        # Two polls of a slow page may both be answered "ready". The second one must not lay out again the
        # page that the first one brought: it would lose focus, scroll position and zoom.
        is_expected = (stored or {}).get("is_pending") or (ready or {}).get("has_grown")
        if ctx.triggered_id == "ready" and not is_expected:
            raise PreventUpdate
        wanted = parse(pathname, search)
        entry = entries.get(wanted.path)
        # Of a file that is not open yet, the progress and a first look are soon worth more than a blank page.
        is_unread = bool(wanted.run) and not data.is_open(wanted.run)
        blank_s = min(data.pace.blank_s, data.pace.blank_unread_s if is_unread else data.pace.blank_s)
        context = Context(data, wanted)
        made = patience.get(wanted.url, lambda: _enter(entry, context), blank_s)
        address, view, top, page = made or _untitled(entry, context, _working(entry, data, wanted))
        live = (view is not None and view.is_live) or address.path == "/"
        run = view.run.name if view else _file_name(data, address.run)
        name = " · ".join([*([run] if run else []), entry.title if entry else "Not found", "vramscope"])
        menu = _menu(list(entries.values()), data, address, view)
        state = address.stored | ({"shown": _shown(address, view)} if view else {})
        if made and entry and entry.about_run and not entry.reads_events:
            files = queries_of(data).files(address.run)
            state |= {} if files is None else {"files": files}
        state |= {} if made else {"is_pending": True}
        return menu, top, page, state, data.pace.live_ms if live else data.pace.idle_ms, name[:200], None

    # After the page: of a link to any page, the menu shows what the findings of the run are.
    @app.callback(
        Output("menu", "children", allow_duplicate=True), Input("address", "data"), prevent_initial_call=True
    )  # fmt: skip
    def count(stored: Stored | None) -> Any:
        address = restore(stored)
        view = None if (stored or {}).get("is_pending") else _counted(data, address, is_opened=True)
        if view is None or view.is_live or len(view.recording.trace) > data.pace.events_at_once:
            raise PreventUpdate
        findings(data, view)
        return _menu(list(entries.values()), data, address, view)

    # One request for both: while a file is read, each poll costs the browser 20 ms of CPU, and half the cores
    # of a small machine are the browser's.
    @app.callback(
        Output("ready", "data"), Output("how-far", "children"),
        Input("poll", "n_intervals"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def poll(n: int | None, stored: Stored | None) -> tuple[Any, Any]:
        address = restore(stored)
        if (stored or {}).get("is_pending") and patience.is_done(address.url, _POLL_WAITS_S):
            return {"after": n, "url": address.url}, no_update
        return no_update, states.how_far(data.is_opening(address.run), data.reading(address.run))

    in_browser(app, "waited", Output("ready", "data", allow_duplicate=True), Input("version", "data"))

    in_browser(app, "title", Output("sink", "data"), Input("title", "data"))


def _file_name(data: Data, run: str) -> str:
    """Return the name of a run that is not open; '' where there is none."""
    try:
        return data.runs.path(run).name if run else ""
    except VramscopeError:
        return ""


def _enter(entry: Page | None, context: Context) -> tuple[Address, View | None, Any, Any]:
    """Return the address that is shown, its view, header and page; after an error a page with advice."""
    with context.data.precedence.page():
        return _laid_out(entry, context)


def _laid_out(entry: Page | None, context: Context) -> tuple[Address, View | None, Any, Any]:
    asked = context
    if entry is None:
        return _untitled(entry, asked, states.failure("There is no page at this address."))
    try:
        view = None
        if entry.about_run and entry.reads_events:
            context = Context(context.data, opened_address(context.data, asked.address))
            view = _current(context.data, context.address)
        top = _top(entry, context, view) if view else None
        content = entry.layout(context)
        content = content if isinstance(content, list) else [content]
        return context.address, view, top, [*content, header.notes(view)] if view else content
    except VramscopeError as error:
        title = "This run is not here" if isinstance(error, UnknownNameError) else ""
        return _untitled(entry, asked, states.failure(str(error), title))
    except Exception as error:  # noqa: BLE001 — a page that fails is shown as such; the others go on
        _LOG.exception("page %s failed", entry.name)
        text = f"An error in vramscope: {type(error).__name__}. The server's log has more."
        return _untitled(entry, asked, states.failure(text))


def _untitled(entry: Page | None, context: Context, content: Any) -> tuple[Address, None, Any, Any]:
    """Return a page that is not laid out, below the name of its run: no page is without a title."""
    name = _file_name(context.data, context.address.run) or (entry.title if entry else "Not found")
    return context.address, None, header.bare(name), content


def _current(data: Data, address: Address) -> View:
    """Return the recording as its files are now; they may have been read for a page long ago."""
    data.refresh(address.run, is_visited=True)
    return data.view(address)


def _top(entry: Page, context: Context, view: View) -> list[Any]:
    """Return what stands above a page: the header of the run, and the timeline."""
    head = header.run_header(view, context.address, context.data)
    above = [head, *header.incomplete(view)]
    if entry.has_timeline:
        return above
    return [*above, timeline.strip(context.data, view, context.address, {"at": entry.instant_store})]


def _ignore_deleted_run(error: Exception) -> None:
    """Ignore that a run was deleted while a page asks about it: the next tick shows the banner."""
    if not isinstance(error, UnknownNameError):
        raise error


def _working(entry: Page | None, data: Data, address: Address) -> Any:
    read = data.reading(address.run)
    return states.working(entry.title if entry else "", data.is_opening(address.run), read)


def _menu(entries: list[Page], data: Data, address: Address, view: View | None) -> list[Any]:
    view = view or _counted(data, address)
    shown = [entry for entry in entries if address.run or not entry.about_run]
    known = [(entry, entry.behind(data, view) if view and entry.behind else Behind()) for entry in shown]
    return [
        _menu_link(entry, data, address, behind)
        for entry, behind in known
        if behind.is_offered or entry.path == address.path
    ]


def _counted(data: Data, address: Address, *, is_opened: bool = False) -> View | None:
    """Return the recording whose findings the menu counts; None where it is not open, or too large to open.

    Of very many ranks it is that of the rank which the other pages show.
    """
    try:
        is_known = data.is_open(address.run)
        if not is_known and queries_of(data).most_events(address.run) <= data.pace.events_at_once:
            address = opened_address(data, address)
            is_known = is_opened or data.is_open(address.run)
        return data.view(address) if is_known else None
    except VramscopeError:
        return None  # the page says why


def _menu_link(entry: Page, data: Data, address: Address, behind: Behind) -> Any:
    # Zoom, instant and selection go along; what only one page understands does not.
    own = {"q": "", "by": "", "group": "", "b0": None, "b1": None, "root": None}
    target = address.go(path=entry.path, **own) if entry.about_run else Address(entry.path)
    whole = None if entry.reads_events else data.runs.whole_run(target.run)
    if whole is not None:
        # A page about all ranks, from one of them.
        target = target.go(run=whole[0], rank=whole[1], device=None)
    if not entry.reads_events:
        target = target.go(at=None, t0=None, t1=None, sel="")
    here = entry.path == address.path
    count = html.Span(
        f" {behind.n_shown:,}", className="count"
    )  # read aloud, the space parts it from the name
    name = [entry.title, count] if behind.n_shown else entry.title
    classes = " ".join([*(["here"] if here else []), *(["nothing"] if behind.nothing else [])])
    link = html.A(name, href=target.url, className=classes, title=behind.nothing)
    more = {"aria-current": "page"} if here else {}
    return html.Span(link, **more, **({} if entry.reads_events else {"data-own-view": "yes"}))


def _watch(app: Dash, data: Data, without_events: set[str]) -> None:
    """Register the clock of all pages: it reads new events, and reports when a run ends or is deleted."""

    @app.callback(
        Output("version", "data"), Output("tick", "interval", allow_duplicate=True),
        Output("stand", "data"), Output("alarm", "children", allow_duplicate=True),
        Input("tick", "n_intervals"), State("address", "data"), State("version", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def tick(_: int | None, stored: Stored | None, known: Standing | None) -> tuple[Any, ...]:
        # The header comes with the version. As a callback of its own it followed the version as one of eight;
        # on a busy machine each tick overtook it, and the step stood still for 12 s beside a chart that grew.
        address = restore(stored)
        was_gone = known is not None and known["outcome"] == "gone"
        known = _latest(known, (stored or {}).get("shown"))
        now = known
        if address.run and address.path in without_events:
            now = _unopened(data, address, (stored or {}).get("files"))
        elif address.run:
            now = _standing(data, address)
        # A page without a run's state says itself that there is none: a banner about its last state is wrong.
        if now is not None and now["outcome"] == "gone" and not {"shown", "files"} & set(stored or {}):
            raise PreventUpdate
        # A deleted run is reported at each tick: a page that was laid out in between has removed the banner.
        if now is None or (now == known and not was_gone and now["outcome"] != "gone"):
            raise PreventUpdate
        is_live = now["outcome"] == Outcome.RUNNING.value
        pause_ms = data.pace.live_ms if is_live else data.pace.idle_ms
        return now, pause_ms, *_header_and_banner(now)

    # In the browser: the header may be removed by then, and Dash reports an answer for it as an error.
    in_browser(app, "stand", Input("stand", "data"), State("address", "data"))


def _header_and_banner(now: Standing) -> tuple[Any, Any]:
    """Return the state of the run for its header with the run's id, and the banner over the page."""
    if now["outcome"] == "gone":
        return no_update, states.gone(now.get("why", ""))
    far = StepPace(now["step"], now.get("pace")) if "step" in now else None
    alarm = states.alarm(
        str(now.get("stopped", "")), is_other=bool(now.get("other")), is_altered=bool(now.get("altered"))
    )
    outcome, stalled_s = Outcome(now["outcome"]), int(now.get("stalled") or 0)
    shown = header.standing(outcome, far, stalled_s, now.get("total", 0), now.get("ahead", ()))
    return {"run": now["run"], "words": shown}, alarm


def _standing(data: Data, address: Address) -> Standing | None:
    """Return the state of the run; None while it is read for the first time."""
    try:
        data.runs.path(address.run)
        if data.is_opening(address.run):
            return None
        version = data.refresh(address.run)
        view = data.view(address)
    except UnknownNameError:
        return {"run": address.run, "version": -1, "outcome": "gone"}
    except VramscopeError as error:
        return {"run": address.run, "version": -1, "outcome": "gone", "why": str(error)[:600]}
    state = _shown(address, view) | {"version": version}
    if view.is_live and (outlook := forecast_words(ahead(data, view))):
        state["ahead"] = outlook
    stalled_s = data.stalled_s(address.run)
    if stalled_s:
        state["stalled"] = stalled_s
    stopped = why_stopped(view.recording.notes)
    if stopped:
        state["stopped"] = stopped
    if data.is_other(address.run):
        state["other"] = True
    if data.is_altered(address.run):
        state["altered"] = True
    return state


def _unopened(data: Data, address: Address, files: int | None) -> Standing:
    """Return the state of a run that the page does not open; *files* are those that it was laid out from."""
    state: Standing = {"run": address.run, "version": 0, "outcome": "file"}
    try:
        data.runs.path(address.run)
    except UnknownNameError:
        return state | {"version": -1, "outcome": "gone"}
    if files is not None and queries_of(data).files(address.run) != files:
        state["altered"] = True
    return state


def _shown(address: Address, view: View) -> Standing:
    """Return the state that a page laid out from *view* shows; later changes are reported by the clock."""
    n_events = len(view.recording.trace)
    outcome: OutcomeWord = header.shown_outcome(view.run.outcome, view.recording.source).value
    state: Standing = {"run": address.run, "version": view.version, "outcome": outcome, "seen": n_events}
    far = pace(view.recording.steps) if view.is_live else None
    if far is not None:
        state["step"] = far.step
    if far is not None and far.steps_per_s is not None:
        state["pace"] = far.steps_per_s
    if far is not None and view.recording.process.total_steps:
        state["total"] = view.recording.process.total_steps
    return state


def _latest(known: Standing | None, laid_out: Standing | None) -> Standing | None:
    """Return the latest state that a browser has: that of the clock, or of a page laid out since."""
    if not laid_out or (
        known and known["run"] == laid_out["run"] and known["version"] >= laid_out["version"]
    ):
        return known
    return laid_out
