"""The parts of a page that show the chosen instant, which one answer to the browser's script renews.

Dash requests them after the frame that marks the instant, and compares every component of the page for every
output: of the 114 ms until Peak showed another instant, 50 were spent on that.
"""

import json
from collections.abc import Mapping
from typing import Any

from dash import html
from flask import Response, request

from ..address import Address, restore
from ..answers import series_of
from ..data import Data
from ..figures.drawing.series import TIME
from ..server import api
from ..server.plain import as_data
from . import timeline


def frame(name: str, address: Address, at: int, content: list[Any], **look: Any) -> html.Div:
    """Return *content* in a frame whose parts follow the chosen instant.

    *name* is that of the page, *address* the one that it was laid out for, *at* the instant that it shows,
    and *look* has further attributes of the frame.
    """
    asks = {key: getattr(address, key) for key in ("run", "rank", "device", "restart", "axis", "at")}
    more = {"data-parts": json.dumps({"page": name, **asks, "shown": at})}
    return html.Div(content, className="page", **more, **look)


def register(app: Any, data: Data, entries: Mapping[str, Any]) -> None:
    """Register the URL that the script asks; *entries* are all pages by name."""

    def parts() -> Response:
        page = entries.get(request.args.get("page", ""))
        if page is None or page.at_instant is None:
            api.absent()
        with data.precedence.page():
            return _parts(data, page)

    app.server.add_url_rule("/api/parts", "parts", parts)


def _parts(data: Data, page: Any) -> Response:
    view, address = api.view_of(data), restore(request.args.to_dict() | {"path": page.path})
    made = page.at_instant(data, view, address)
    if request.args.get("shown") == str(made.at):
        return Response(status=204, headers={"Cache-Control": "no-store"})
    content = {name: {"data-plain": as_data(parts)} for name, parts in made.content.items()}
    exact = timeline.exact_at(data, view, series_of(data, view, address.axis or TIME), made.at)
    attributes = content | dict(made.attributes)
    return api.answer({"at": made.at, "attributes": attributes, "props": dict(made.props), "exact": exact})
