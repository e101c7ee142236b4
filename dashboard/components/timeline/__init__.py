"""The timeline of a run: the same zoom, instant and selection on every page, drawn by the browser."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dash import Input, Output, State, html, no_update
from flask import Response, request

from vramscope.model.marks import Phase
from vramscope.units import TIME_UNITS, format_count, format_duration, format_name

from ...address import Address, restore
from ...answers import ask_allowing_stale, moment, neighbor, series_of
from ...data import Data, View
from ...figures import composition, doubts, track
from ...figures.drawing.series import DRAWN, EVENTS, TIME, Series
from ...figures.drawing.theme import PART_COLOR, PHASE_COLOR, QUANTITY_COLOR
from ...figures.drawing.window import training, window
from ...queries.comments import comments
from ...server import api
from ...server.callbacks import Pressed, Stored, view_or_nothing
from .. import legend
from ..scripts import in_browser

WIDEST_PX = 3000
STRIP = "tl-track"
"""Id of the timeline above a page that has no larger one of its own."""


def strip(data: Data, view: View, address: Address, stores: Mapping[str, str]) -> Any:
    """Return the timeline as a strip above a page; nothing where the recording has no course of events.

    *stores* are as in :class:`TrackStyle`.
    """
    if not len(view.recording.trace) or not view.recording.has_allocations:
        return html.Span()
    series = series_of(data, view, address.axis or TIME)
    readings = html.Div([legend.readings(series), legend.position()], className="strip-values")
    return html.Section(
        [readings, frame(series, view, "Memory over time.", TrackStyle(STRIP, stores=stores))],
        className="panel chart timeline-strip", **{"aria-label": "Timeline"},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrackStyle:
    """How one timeline appears, and what it is connected with."""

    name: str
    """Id of the frame."""
    kind: str = "strip-track"
    """Class of the frame; the stylesheet gives it its height."""
    stores: Mapping[str, str] = field(default_factory=dict)
    """``at`` and ``view``: ids of the stores that get a chosen instant and the edges of a zoom."""
    shown: Sequence[str] = ()
    """The curves; the usual ones where empty."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further attributes of the frame."""
    has_parts: bool = False
    """Whether the parts of reserved bytes are drawn as areas below the curves."""


def frame(series: Series, view: View, sentence: str, look: TrackStyle, *below: Any) -> html.Figure:
    """Return the frame that the script fills with the timeline.

    *look* has id, class and stores; what is *below* lies under the curves.
    """
    recording = view.recording
    of = {
        "run": view.run_id, "rank": recording.process.rank, "device": recording.device.index,
        "restart": recording.process.restarts,
        "axis": series.axis, "shown": list(look.shown or legend.usual(series)), "parts": look.has_parts,
    }  # fmt: skip
    stores = {key: store for key, store in look.stores.items() if store}
    words = f"{sentence} Arrow keys move the instant, w and s zoom, a and d pan."
    attributes = {"data-of": json.dumps(of), "data-stores": json.dumps(stores), "aria-label": words}
    return html.Figure(
        [*below, html.Canvas(className="track-map"), html.Canvas(className="track-plot"),
         html.Canvas(className="track-over"), html.Div(className="track-tip", hidden=True),
         html.Button("Before the first step", className="track-break", type="button", hidden=True)],
        id=look.name, className=f"track {look.kind}", tabIndex="0", role="group", **attributes, **look.more,
    )  # fmt: skip


def register(app: Any, data: Data) -> None:
    """Register what the script asks for, and that it follows a run that grows."""
    app.server.add_url_rule("/api/timeline", "timeline", lambda: _answer(data))
    in_browser(app, "timelineGrows", Input("version", "data"))
    in_browser(app, "timelineEntered", Output("entered", "data"), Input("address", "data"))


def follow_instant(app: Any, store: str) -> None:
    """Register that the timeline and the URL follow the store of a page's instant."""
    in_browser(app, "instantChosen", Input(store, "data"))


def follow_keys(
    app: Any, data: Data, store: str, instant_of: Callable[[Data, View, int | None], int]
) -> None:
    """Register the keys: ``p`` leads to the page's usual instant, ``j`` and ``k`` to those of other steps.

    *store* has the instant; *instant_of* returns the usual one for None.
    """

    @app.callback(
        Output(store, "data"), Input("key", "data"), State(store, "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def jump(key: Pressed | None, at: int | None, stored: Stored | None) -> Any:
        view = view_or_nothing(data, restore(stored))
        word = (key or {}).get("key")
        if word == "p":
            return instant_of(data, view, None)
        to = neighbor(data, view, instant_of(data, view, at), {"j": 1, "k": -1}.get(str(word), 0))
        return no_update if to is None else to


def _answer(data: Data) -> Response:
    """Return the columns of one view; of the whole recording where no edges are given."""
    with data.precedence.page():
        return _columns(data)


def _columns(data: Data) -> Response:
    view = api.view_of(data)
    series = series_of(data, view, api.word("axis", (TIME, EVENTS)))
    if api.word("only", ("", "instant")):
        return api.columns({"instants": _instants(data, view, series)})
    width = api.whole("w", 1, WIDEST_PX)
    edges = [api.number(name, -1e15, 1e15) for name in ("a", "b")] if "a" in request.args else [None, None]
    interval = window(series, *edges)
    made = track.track(series, interval, width)
    bare = doubts.counted(view.recording, series, track.padded(series, interval))
    areas = {}
    if api.word("parts", ("", "1")):
        areas = composition.columns(series, data.ask(view, "fragmentation").parts, interval, width)
        calls = ask_allowing_stale(data, view, "driver_calls")
        areas |= composition.calls_of_driver(series, calls, interval, width)
    facts = dict(made.facts) | {"instants": _instants(data, view, series), "colors": _colors()}
    facts["phases"] = {int(phase): format_name(phase) for phase in Phase if phase != Phase.OTHER}
    facts["notes"] = doubts.noted(view.recording, series)
    if "a" not in request.args:
        counted = {"allocated": "counted.y", "reserved": "counted.reserved"}
        most = {name: int(bare.get(of, np.zeros(0)).max(initial=0)) for name, of in counted.items()}
        facts["top"] = {name: max(series.top(name), most.get(name, 0)) for name in DRAWN}
        kept = comments(data, view).items()
        facts["comments"] = [[at, track.position_of(series, at), text] for at, text in kept]
    opens = None if view.is_live else training(series)
    facts["training"], facts["times"] = opens, TIME_UNITS
    if opens:
        before = opens.start - series.extent[0]
        is_time = series.axis == TIME
        facts["folded"] = format_duration(before * 1e9) if is_time else format_count(round(before), "event")
    return api.columns(facts, **dict(made.columns), **areas, **bare)


def _colors() -> dict[str, Any]:
    phases = {str(int(phase)): color for phase, color in PHASE_COLOR.items() if phase != Phase.OTHER}
    parts = {part: PART_COLOR[part] for part in composition.PARTS}
    return {"phase": phases, "quantity": QUANTITY_COLOR, "part": parts}


def _instants(data: Data, view: View, series: Series) -> dict[str, Any]:
    text = request.args.get("at", "")
    at = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None
    return exact_at(data, view, series, at)


def exact_at(data: Data, view: View, series: Series, at: int | None) -> dict[str, Any]:
    """Return position, words and levels in bytes of an instant by its number; nothing where there is none."""
    x = track.position_of(series, at)
    if at is None or x is None:
        return {}
    levels = {name: int(getattr(series, name)[at]) for name in DRAWN}
    return {str(at): [x, moment(data, view, at).words, levels]}
