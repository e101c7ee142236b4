"""The page "Peak": what was live at the peak or any instant, by category, module, call and line."""

from typing import Any

from dash import Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from vramscope.units import format_bytes

from ..address import Address, restore
from ..answers import clamp, fullest, held, moment, neighbor, totals, tree_at
from ..components import states, timeline
from ..components.panels import breakdown, call_tree, live_set, own_peaks, stack_table
from ..components.prose import claim_heading
from ..data import Data, View
from ..figures import icicle
from ..queries.headline import bound
from ..server.callbacks import Stored, view_or_nothing
from ..server.plain import plain
from . import Context, Page

_NO_BOX = {"display": "contents"}
"""Style of a frame that only names a part."""


def _layout(context: Context) -> Any:
    view, address = context.data.view(context.address), context.address
    content = _content(context.data, view, address)
    is_later = view.is_live or len(view.recording.trace) > context.data.pace.events_at_once
    own = [] if is_later else own_peaks.panel(context.data, view, address)
    return [
        html.Div(content, id="pk-content", className="page"),
        html.Div(own, id="pk-own", className="page"),
        dcc.Store(id="pk-at", data=address.at),
        dcc.Store(id="pk-shown", data=clamp(context.data, view, address.at)),
        dcc.Store(id="pk-later", data=1 if is_later else None),
    ]


def _content(data: Data, view: View, address: Address) -> Any:
    at = clamp(data, view, address.at)
    if not held(data, view, at).total_bytes:
        return _empty(data, view, at, address)
    tree = tree_at(data, view, at)
    root = call_tree.known_root(tree, address.root)
    sentence = f"Calls that lead to the live memory: {stack_table.summary(held(data, view, at))}."
    return [
        html.Div(_opening(data, view, at, address), id="pk-opening", style=_NO_BOX),
        html.Div(plain(breakdown.layout(data, view, at)), id="pk-bars", style=_NO_BOX),
        call_tree.panel("pk", "Live memory by call", tree, icicle.icicle(tree, root), sentence),
        html.Div(plain(breakdown.modules(data, view, at)), id="pk-modules", style=_NO_BOX),
        live_set.layout("pk", data, view, at, address),
    ]


def _opening(data: Data, view: View, at: int, address: Address) -> html.Section:
    known = totals(data, view)
    peak = fullest(data, view)
    n_bytes = int(known.allocated_bytes[at])
    word = f"Peak: {bound(view)}" if at == peak else ""
    claim = f"{word}{format_bytes(n_bytes)} live at {moment(data, view, at).words}"
    below = (
        "" if at == peak else f"{format_bytes(int(known.allocated_bytes[peak]) - n_bytes)} below the peak."
    )
    return html.Section(
        [html.Div([claim_heading(claim), html.P(below, className="support")]),
         _jumps(data, view, at, peak, address)],
        className="opening opening-split",
    )  # fmt: skip


def _jumps(data: Data, view: View, at: int, peak: int, address: Address) -> html.Nav:
    """Return links to the peak and the neighboring steps; every instant has an address."""
    before, after = (neighbor(data, view, at, direction) for direction in (-1, 1))
    end = len(data.view(address).recording.trace)
    choices = (("Peak", peak), ("← Step", before), ("Step →", after), ("End", end))
    links = [
        dcc.Link(
            word, href=address.go(at=to).url, className="here" if to == at and word in ("Peak", "End") else ""
        )
        for word, to in choices
        if to is not None
    ]
    shown = links if at != peak or len(links) > 1 else []
    return html.Nav(shown, className="segments", **{"aria-label": "Instant"})


def _empty(data: Data, view: View, at: int, address: Address) -> Any:
    if not len(view.recording.trace):
        return states.nothing_recorded(view.is_live)
    return [
        _opening(data, view, at, address),
        states.state("Nothing is live here", "At this instant no tensor holds memory.",
                     dcc.Link("Go to the peak", href=address.go(at=None).url, className="link")),
    ]  # fmt: skip


def _register(app: Any, data: Data) -> None:
    stack_table.register(app, "pk")
    timeline.follow_instant(app, "pk-at")
    timeline.follow_keys(app, data, "pk-at", "pk-shown", clamp)
    call_tree.register(app, "pk")
    _register_own(app, data)
    _follow(app, data)

    @app.callback(
        Output("pk-icicle", call_tree.DRAWN), Output("pk-crumbs", "children"),
        Input("pk-root", "data"), State("pk-at", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def draw(root: int | None, at: int | None, stored: Stored | None) -> tuple[Any, Any]:
        view = view_or_nothing(data, restore(stored))
        tree = tree_at(data, view, clamp(data, view, at))
        if root is None or (root and not call_tree.known_root(tree, root)):
            raise PreventUpdate
        return call_tree.as_data(icicle.icicle(tree, root)), call_tree.crumbs("pk", tree, root)


def _follow(app: Any, data: Data) -> None:
    """Register that the page follows its instant, and the peak of a growing run."""

    @app.callback(
        Output("pk-content", "children"), Output("pk-shown", "data"),
        Input("version", "data"), Input("pk-at", "data"), State("pk-shown", "data"),
        State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def follow(_: Any, at: int | None, shown: int | None, stored: Stored | None) -> tuple[Any, int]:
        """Lay the page out again where something is live now and was not before, or the reverse."""
        address = restore(stored)
        view = view_or_nothing(data, address)
        now = clamp(data, view, at)
        if now == shown:
            raise PreventUpdate
        is_same = _is_live_at(data, view, now) and _is_live_at(data, view, shown)
        return no_update if is_same else _content(data, view, address.go(at=at, root=None)), now

    # Parts of the page: laid out as a whole it makes a new chart and a new table for every instant.
    @app.callback(
        Output("pk-opening", "children"), Output("pk-bars", "children"),
        Output("pk-icicle", call_tree.DRAWN, allow_duplicate=True),
        Output("pk-crumbs", "children", allow_duplicate=True),
        Output("pk-root", "data", allow_duplicate=True),
        Output("pk-modules", "children"), Output("pk-live", "children"), Output("pk-table", "rowData"),
        Input("version", "data"), Input("pk-at", "data"), State("pk-shown", "data"), State("pk-root", "data"),
        State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def renew(
        _: Any, at: int | None, shown: int | None, root: int | None, stored: Stored | None
    ) -> tuple[Any, ...]:
        address = restore(stored)
        view = view_or_nothing(data, address)
        now = clamp(data, view, at)
        if now == shown or not (_is_live_at(data, view, now) and _is_live_at(data, view, shown)):
            raise PreventUpdate
        address = address.go(at=at, root=None)
        tree = tree_at(data, view, now)
        # New crumbs are asked for their clicks, so the same ones stay.
        trail = (call_tree.crumbs("pk", tree, 0), 0) if root else (no_update, no_update)
        return (
            _opening(data, view, now, address), plain(breakdown.layout(data, view, now)),
            call_tree.as_data(icicle.icicle(tree)), *trail,
            plain(breakdown.modules(data, view, now)), *live_set.content(data, view, now, address),
        )  # fmt: skip


def _is_live_at(data: Data, view: View, at: int | None) -> bool:
    return bool(held(data, view, clamp(data, view, at)).total_bytes)


def _register_own(app: Any, data: Data) -> None:
    @app.callback(
        Output("pk-own", "children"),
        Input("pk-later", "data"), Input("version", "data"), State("address", "data"),
    )  # fmt: skip
    def tell_own(later: int | None, _: Any, stored: Stored | None) -> Any:
        """Lay out the own peaks of a long recording after the page, and again when it grows."""
        if not later:
            raise PreventUpdate
        address = restore(stored)
        return own_peaks.panel(data, view_or_nothing(data, address), address)


PAGE = Page(
    name="peak", title="Peak", order=20, path="/peak", layout=_layout, register=_register,
    instant_store="pk-at",
)  # fmt: skip
