"""The page "Peak": what was live at the peak or any instant, by category, module, call and line."""

from typing import Any

from dash import Input, Output, State, dcc, html, no_update, set_props
from dash.exceptions import PreventUpdate

from vramscope.units import format_bytes

from ..address import Address, restore
from ..answers import clamp, fullest, held, moment, neighbor, totals, tree_at
from ..components import states, timeline
from ..components.panels import breakdown, call_tree, live_set, stack_table
from ..components.prose import claim_heading
from ..data import Data, View
from ..figures import icicle
from ..queries.headline import bound, past_peak, past_words
from ..server.callbacks import Stored, view_or_nothing
from ..server.plain import thinned
from . import Context, Page, counting

_NO_BOX = {"display": "contents"}
"""Style of a frame that only names a part."""


def _layout(context: Context) -> Any:
    view, address = context.data.view(context.address), context.address
    return [
        html.Div(_content(context.data, view, address), id="pk-content", className="page"),
        dcc.Store(id="pk-at", data=address.at),
        dcc.Store(id="pk-shown", data=clamp(context.data, view, address.at)),
    ]


def _content(data: Data, view: View, address: Address) -> Any:
    at = clamp(data, view, address.at)
    if not view.recording.has_allocations:
        return states.nothing_recorded(view.is_live, view)
    if not held(data, view, at).total_bytes:
        peak = html.A("Go to the peak", href=address.go(at=None).url, className="link")
        nothing = states.state("Nothing is live here", "At this instant no tensor holds memory.", peak)
        return [html.Div(_opening(data, view, at, address), id="pk-nothing", style=_NO_BOX), nothing]
    tree = tree_at(data, view, at)
    root = call_tree.known_root(tree, address.root)
    sentence = f"Calls that lead to the live memory: {stack_table.summary(held(data, view, at))}."
    return [
        html.Div(_opening(data, view, at, address), id="pk-opening", style=_NO_BOX),
        html.Div(breakdown.layout(data, view, at), id="pk-bars", style=_NO_BOX),
        call_tree.panel("pk", "Live memory by call", tree, icicle.icicle(tree, root), sentence),
        html.Div(breakdown.modules(data, view, at), id="pk-modules", style=_NO_BOX),
        live_set.layout("pk", data, view, at, address),
    ]


def _opening(data: Data, view: View, at: int, address: Address) -> html.Section:
    known = totals(data, view)
    peak = fullest(data, view)
    n_bytes = int(known.allocated_bytes[at])
    top, higher = int(known.allocated_bytes[peak]), past_peak(view.recording, "allocated")
    word, below = f"Peak: {bound(view)}", ""
    if higher is not None and higher.n_bytes > top:
        word = "Highest with events: "
        below = f"The peak, {format_bytes(higher.n_bytes)} in {past_words(higher)}, has no events."
    if at != peak:
        word, below = "", f"{format_bytes(top - n_bytes)} below the {word.partition(':')[0].lower()}."
    claim = f"{word}{format_bytes(n_bytes)} live at {moment(data, view, at).words}"
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
        html.A(
            word, href=address.go(at=to).url, className="here" if to == at and word in ("Peak", "End") else ""
        )
        for word, to in choices
        if to is not None
    ]
    shown = links if at != peak or len(links) > 1 else []
    return html.Nav(shown, className="segments", **{"aria-label": "Instant"})


def _register(app: Any, data: Data) -> None:
    stack_table.register(app, "pk")
    timeline.follow_instant(app, "pk-at")
    timeline.follow_keys(app, data, "pk-at", "pk-shown", clamp)
    call_tree.register(app, "pk")
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
    """Register that the page follows its instant, and the peak of a growing run.

    One of the two callbacks is in the document: the outputs of the second are there while something is live,
    that of the first while nothing is. ``set_props`` changes what both have in common: a callback of its own
    for that, which mostly changed nothing, was a third of what the browser asked for.
    """

    def another(at: int | None, shown: int | None, stored: Stored | None) -> tuple[View, int, bool]:
        """Return view and instant, and whether its page has the same parts as the one in view."""
        address = restore(stored)
        view = view_or_nothing(data, address)
        now = clamp(data, view, at)
        if now == shown:
            raise PreventUpdate
        set_props("pk-shown", {"data": now})
        is_same = _is_live_at(data, view, now) == _is_live_at(data, view, shown)
        if not is_same:
            content = _content(data, view, address.go(at=at, root=None))
            set_props("pk-content", {"children": thinned(content, app.known_ids)})
        return view, now, is_same

    @app.callback(
        Output("pk-nothing", "children"),
        Input("version", "data"), Input("pk-at", "data"), State("pk-shown", "data"),
        State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def follow(_: Any, at: int | None, shown: int | None, stored: Stored | None) -> Any:
        view, now, is_same = another(at, shown, stored)
        return _opening(data, view, now, restore(stored).go(at=at)) if is_same else no_update

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
        view, now, is_same = another(at, shown, stored)
        if not is_same:
            return (no_update,) * 8
        address = restore(stored).go(at=at, root=None)
        tree = tree_at(data, view, now)
        # New crumbs are asked for their clicks, so the same ones stay.
        trail = (call_tree.crumbs("pk", tree, 0), 0) if root else (no_update, no_update)
        return (
            _opening(data, view, now, address), breakdown.layout(data, view, now),
            call_tree.as_data(icicle.icicle(tree)), *trail,
            breakdown.modules(data, view, now), *live_set.content(data, view, now, address),
        )  # fmt: skip


def _is_live_at(data: Data, view: View, at: int | None) -> bool:
    return bool(held(data, view, clamp(data, view, at)).total_bytes)


PAGE = Page(
    name="peak", title="Peak", order=20, path="/peak", layout=_layout, register=_register,
    instant_store="pk-at", behind=counting(),
)  # fmt: skip
