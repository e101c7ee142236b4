"""The page "Peak": what was live at the peak or any instant, by category, module, call and line."""

from typing import Any

from dash import Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from vramscope.units import format_bytes

from ..address import Address, restore
from ..answers import clamp, fullest, held, moment, neighbor, totals, tree_at
from ..components import instant_parts, states, timeline
from ..components.panels import breakdown, call_tree, live_set, stack_table
from ..components.prose import claim_heading
from ..data import Data, View
from ..figures import icicle
from ..queries.headline import bound, past_peak, past_words
from ..server.callbacks import Stored, view_or_nothing
from . import Context, InstantParts, Instants, Page, counting


def _layout(context: Context) -> Any:
    data, view, address = context.data, context.data.view(context.address), context.address
    if not view.recording.has_allocations:
        return states.nothing_recorded(view.is_live, view)
    at = clamp(data, view, address.at)
    made = _parts(data, view, at, address)
    tree = tree_at(data, view, at)
    root = call_tree.known_root(tree, address.root)
    sentence = f"Calls that lead to the live memory: {stack_table.summary(held(data, view, at))}."
    live = html.Div(
        [
            _part(made, "pk-bars"),
            call_tree.panel("pk", "Live memory by call", tree, icicle.icicle(tree, root), sentence),
            _part(made, "pk-modules"),
            live_set.panel("pk", view, made.content["pk-live"], made.props["pk-table"]["rowData"]),
        ],
        id="pk-some", className=made.attributes["pk-some"]["class"],
    )  # fmt: skip
    content = [_part(made, "pk-opening"), _part(made, "pk-nothing"), live]
    shown = html.Div(instant_parts.frame("peak", view, address, at, content), id="pk-content")
    return [shown, dcc.Store(id="pk-at", data=address.at)]


def _part(made: InstantParts, name: str) -> html.Div:
    return html.Div(made.content[name], id=name, className="contents")


def _parts(data: Data, view: View, at: int, address: Address) -> InstantParts:
    has_root, address = bool(address.root), address.go(root=None)
    live, rows = live_set.content(data, view, at, address)
    is_something_live = bool(held(data, view, at).total_bytes)
    content = {
        "pk-opening": [_opening(data, view, at, address)],
        "pk-nothing": [] if is_something_live else [_nothing(address.go(at=fullest(data, view)))],
        "pk-bars": [breakdown.layout(data, view, at)],
        "pk-modules": [breakdown.modules(data, view, at)],
        "pk-live": live,
    }
    drawn = call_tree.as_data(icicle.icicle(tree_at(data, view, at)))
    attributes = {
        "pk-icicle": {call_tree.DRAWN: drawn},
        "pk-some": {"class": "page" if is_something_live else "page without"},
    }
    # The picture begins with everything again; its crumbs are buttons of Dash.
    props = {"pk-table": {"rowData": rows}} | ({"pk-root": {"data": 0}} if has_root else {})
    return InstantParts(content, props, attributes)


def _nothing(peak: Address) -> Any:
    link = html.A("Go to the peak", href=peak.url, className="link")
    return states.state("Nothing is live here", "At this instant no tensor holds memory.", link)


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
    timeline.follow_keys(app, data, "pk-at", clamp)
    call_tree.register(app, "pk")

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


_INSTANTS = Instants(lambda data, view, address: clamp(data, view, address.at), _parts)
PAGE = Page(
    name="peak", title="Peak", order=20, path="/peak", layout=_layout, register=_register,
    instant_store="pk-at", instants=_INSTANTS, behind=counting(),
)  # fmt: skip
