"""The page "Peak": what was live at the peak or any instant, by category, module, call and line."""

from typing import Any

from dash import ALL, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from vramscope.analysis.tree import Tree
from vramscope.units import format_bytes

from ..address import Address, restore
from ..components import states
from ..components.graph import graph, register_ready
from ..components.panels import breakdown, live_set, stack_table
from ..data import Data, View
from ..figures import icicle
from ..figures.drawing.names import place
from ..queries.answers import (
    clamp,
    held,
    moment,
    neighbor,
    totals,
    tree_at,
)
from ..server.callbacks import (
    Picked,
    Pressed,
    Stored,
    view_or_nothing,
)
from . import Context, Page


def _layout(context: Context) -> Any:
    view = context.data.view(context.address)
    return html.Div(_content(context.data, view, context.address), id="pk-content", className="page")


def _content(data: Data, view: View, address: Address) -> Any:
    at = clamp(data, view, address.at)
    if not held(data, view, at).total_bytes:
        return _empty(data, view, at, address)
    tree = tree_at(data, view, at)
    figure = icicle.figure(tree)
    sentence = f"Calls that lead to the live memory: {stack_table.summary(held(data, view, at))}."
    way = {"aria-label": "Root of the picture"}
    crumbs = html.Nav(_crumbs(tree, 0), id="pk-crumbs", className="crumbs", **way)
    return [
        _opening(data, view, at, address),
        breakdown.layout(data, view, at),
        html.Section(
            [
                html.Div([html.H3("By call"), crumbs], className="panel-bar"),
                graph("pk-icicle", figure, sentence, "icicle", icicle.height_px(tree)),
                dcc.Store(id="pk-root", data=0),
                dcc.Store(id="pk-icicle-pick"),
                dcc.Store(id="pk-ready"),
            ],
            className="panel chart",
            **{"aria-label": "Live memory by call"},
        ),
        breakdown.modules(data, view, at),
        live_set.layout("pk", data, view, at, address),
        dcc.Store(id="pk-at", data=at),
        dcc.Location(id="pk-location", refresh="callback-nav"),
    ]  # fmt: skip


def _opening(data: Data, view: View, at: int, address: Address) -> html.Section:
    known = totals(data, view)
    peak = int(known.allocated_bytes.argmax())
    n_bytes = int(known.allocated_bytes[at])
    claim = f"{'Peak: ' if at == peak else ''}{format_bytes(n_bytes)} live at {moment(data, view, at).words}"
    below = (
        "" if at == peak else f"{format_bytes(int(known.allocated_bytes[peak]) - n_bytes)} below the peak."
    )
    return html.Section(
        [html.Div([html.H2(claim, className="claim"), html.P(below, className="support")]),
         _jumps(data, view, at, peak, address)],
        className="opening opening-split",
    )  # fmt: skip


def _jumps(data: Data, view: View, at: int, peak: int, address: Address) -> html.Nav:
    """Return links to the peak and the neighboring steps; every instant has an address."""
    before, after = (neighbor(data, view, at, direction) for direction in (-1, 1))
    choices = (("Peak", peak), ("← Step", before), ("Step →", after))
    links = [
        dcc.Link(word, href=address.go(at=to).url, className="here" if to == at and word == "Peak" else "")
        for word, to in choices
        if to is not None
    ]
    shown = links if at != peak or len(links) > 1 else []
    return html.Nav(shown, className="segments", **{"aria-label": "Instant"})


def _empty(data: Data, view: View, at: int, address: Address) -> Any:
    if not len(view.recording.trace):
        return [states.nothing_recorded(view.is_live), dcc.Store(id="pk-at", data=at)]
    return [
        dcc.Store(id="pk-at", data=at),
        _opening(data, view, at, address),
        states.state("Nothing is live here", "At this instant no tensor holds memory.",
                     dcc.Link("Go to the peak", href=address.go(at=None).url, className="link")),
    ]  # fmt: skip


def _crumbs(tree: Tree, root: int) -> list[Any]:
    """Return the calls above the picture, each a button that leads back to it."""
    path = [root] if root else []
    while path and tree.parent[path[0]]:
        path.insert(0, int(tree.parent[path[0]]))
    words = {0: "all live memory"} | {n: place(tree.frame(n))[:60] for n in path}
    return [
        html.Button(
            html.Bdi(words[n]), id={"page": "peak", "crumb": n}, className="crumb", disabled=n == root
        )
        for n in (0, *path)
    ]


def _register(app: Any, data: Data) -> None:
    stack_table.register(app, data, "pk")
    register_ready(app, "pk-icicle", "pk-ready")

    @app.callback(
        Output("pk-root", "data"),
        Input("pk-icicle-pick", "data"), Input({"page": "peak", "crumb": ALL}, "n_clicks"),
        State("pk-root", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def choose(pick: Picked | None, crumbs: list[int | None], root: int | None) -> Any:
        if ctx.triggered_id == "pk-icicle-pick":
            chosen = (pick or {}).get("node")
        else:
            chosen = ctx.triggered_id["crumb"] if any(crumbs) else None
        return no_update if chosen is None or chosen == root else chosen

    @app.callback(
        Output("pk-icicle", "figure"), Output("pk-crumbs", "children"),
        Input("pk-root", "data"), State("pk-at", "data"), State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def draw(root: int | None, at: int | None, stored: Stored | None) -> tuple[Any, Any]:
        view = view_or_nothing(data, restore(stored))
        tree = tree_at(data, view, clamp(data, view, at))
        if root is None or not 0 <= root < len(tree.parent) or not tree.total_bytes[root]:
            raise PreventUpdate
        return icicle.figure(tree, root), _crumbs(tree, root)

    @app.callback(
        Output("pk-content", "children"),
        Input("version", "data"), State("pk-at", "data"), State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def follow(_: Any, shown: int | None, stored: Stored | None) -> Any:
        """Lay the page out again when the peak of a growing run moves; a chosen instant stays."""
        address = restore(stored)
        view = view_or_nothing(data, address)
        if address.at is not None or clamp(data, view, None) == shown:
            raise PreventUpdate
        return _content(data, view, address)

    @app.callback(
        Output("pk-location", "search"),
        Input("key", "data"), State("pk-at", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def jump(key: Pressed | None, at: int | None, stored: Stored | None) -> Any:
        address = restore(stored)
        view = view_or_nothing(data, address)
        pressed = (key or {}).get("key")
        here = clamp(data, view, at)
        to = None if pressed == "p" else neighbor(data, view, here, {"j": 1, "k": -1}.get(str(pressed), 0))
        return no_update if to is None and pressed != "p" else f"?{address.go(at=to).url.partition('?')[2]}"


PAGE = Page(name="peak", title="Peak", order=20, path="/peak", layout=_layout, register=_register)
