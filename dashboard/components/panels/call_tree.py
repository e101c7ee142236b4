"""An icicle of calls with the way back: crumbs, and the store of the call that it begins with."""

import json
from typing import Any

from dash import ALL, Input, Output, State, ctx, dcc, html, no_update

from vramscope.analysis.tree import Tree

from ...figures import icicle
from ...figures.drawing.names import place
from ...figures.icicle import Icicle
from ...server.callbacks import Picked
from .. import panel as panels
from ..scripts import in_browser

DRAWN = "data-icicle"
"""Attribute with the boxes."""
KEYS = "Arrow keys walk from box to box, Enter shows what a box calls, Escape leads back to its caller."


def known_root(tree: Tree, root: int | None) -> int:
    """Return the call that the picture begins with; 0, everything, where the tree has no such call."""
    return root if root is not None and 0 <= root < len(tree.parent) and tree.total_bytes[root] else 0


def panel(prefix: str, title: str, tree: Tree, drawn: Icicle, sentence: str, *key: Any) -> html.Section:
    """Return the panel with the icicle of a tree of calls.

    *prefix* begins the ids, two letters by page; *drawn* are the boxes of *tree*; *key* is what the colors
    mean.
    """
    trail = html.Nav(crumbs(prefix, tree, drawn.root), id=f"{prefix}-crumbs", className="crumbs",
                     **{"aria-label": "Root of the picture"})  # fmt: skip
    boxes = html.Div(id=f"{prefix}-icicle", className="icicle-boxes", **{DRAWN: as_data(drawn)})
    picture = html.Figure(boxes, className="figure icicle", role="group", tabIndex="0",
                          **{"aria-label": f"{sentence} {KEYS}"})  # fmt: skip
    return panels.panel(
        title,
        *key,
        picture,
        html.P("Click a box to see what it calls.", className="icicle-words dim", role="status"),
        dcc.Store(id=f"{prefix}-root", data=drawn.root),
        dcc.Store(id=f"{prefix}-icicle-pick"),
        beside=trail,
        kind="chart",
    )


def as_data(drawn: Icicle) -> str:
    """Return the boxes as the attribute DRAWN that a script draws (``assets/charts/icicle.js``).

    Plotly took 150 of the 300 ms that the page Peak needed for another instant.
    """
    return json.dumps(drawn._asdict() | {"row_px": icicle.ROW_PX}, separators=(",", ":"))


def crumbs(prefix: str, tree: Tree, root: int) -> list[Any]:
    """Return the calls above the picture, each a button that leads back to it."""
    path = [*icicle.callers_of(tree, root), root]
    words = {n: place(tree.frame(n))[:60] for n in path} | {0: "all live memory"}
    return [
        html.Button(
            html.Bdi(words[n]), id={"page": prefix, "crumb": n}, className="crumb", disabled=n == root
        )
        for n in path
    ]


def register(app: Any, prefix: str) -> None:
    """Register what a click on a box or a crumb does; the page draws when ``<prefix>-root`` changes."""
    in_browser(app, "rootChosen", Input(f"{prefix}-root", "data"))

    @app.callback(
        Output(f"{prefix}-root", "data"),
        Input(f"{prefix}-icicle-pick", "data"), Input({"page": prefix, "crumb": ALL}, "n_clicks"),
        State(f"{prefix}-root", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def choose(pick: Picked | None, crumbs: list[int | None], root: int | None) -> Any:
        if ctx.triggered_id == f"{prefix}-icicle-pick":
            chosen = (pick or {}).get("node")
        else:
            chosen = ctx.triggered_id["crumb"] if any(crumbs) else None
        return no_update if chosen is None or chosen == root else chosen
