"""The parts of a page that show the chosen instant, which one answer to the browser's script renews.

Dash requests them after the frame that marks the instant, and compares every component of the page for every
output: at a million events Peak took 102 ms to another instant by callbacks, and takes 67 to 73 this way.
"""

import json
from collections.abc import Mapping
from typing import Any

from dash import html
from flask import Response, request

from ..address import Address, restore
from ..answers import series_of
from ..data import Data, View
from ..figures.drawing.series import TIME
from ..server import api
from ..server.plain import as_data
from . import timeline


def frame(
    page: str, view: View, address: Address, at: int | None, content: list[Any], *, follows_zoom: bool = False
) -> html.Div:
    """Return *content* in a frame whose parts follow the chosen instant, or the zoom where none is chosen.

    *page* is the name of the page, *address* the one that it was laid out for. *at* is the instant that it
    shows; None where the parts are to come once the timeline is drawn.
    """
    names = ("run", "rank", "device", "restart", "axis", "at", *(("t0", "t1") if follows_zoom else ()))
    asks = {name: getattr(address, name) for name in names} | {"page": page, "shown": at}
    # Step and phase of the last events of a live run may change with its next version.
    final = -1 if view.is_live else len(view.recording.trace)
    return html.Div(content, className="page", **{"data-parts": json.dumps(asks | {"final": final})})


def register(app: Any, data: Data, entries: Mapping[str, Any]) -> None:
    """Register the URL that the script asks; *entries* are all pages by name."""

    def parts() -> Response:
        page = entries.get(request.args.get("page", ""))
        if page is None or page.instants is None:
            api.absent()
        with data.precedence.page():
            return _parts(data, page)

    app.server.add_url_rule("/api/parts", "parts", parts)


def _parts(data: Data, page: Any) -> Response:
    view, address = api.view_of(data), restore(request.args.to_dict() | {"path": page.path})
    at, n_events = page.instants.shown(data, view, address), len(view.recording.trace)
    if request.args.get("shown") == str(at) and at <= api.whole("final", -1, n_events):
        return api.answer({"n_events": n_events})
    made = page.instants.parts(data, view, at, address)
    content = {name: {"data-plain": as_data(parts)} for name, parts in made.content.items()}
    series = series_of(data, view, address.axis or TIME)
    return api.answer({
        "at": at, "n_events": n_events, "attributes": {**content, **made.attributes}, "props": {**made.props},
        "exact": timeline.exact_at(data, view, series, address.at),
    })  # fmt: skip
