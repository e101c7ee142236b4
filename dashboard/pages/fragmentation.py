"""The page "Fragmentation": blocks in their segments, unusable free bytes, and what pins segments."""

from typing import Any, NamedTuple

import numpy as np
from dash import Input, Output, State, dcc, html
from flask import Response, request

from vramscope.model.marks import Category
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.table import first_greatest
from vramscope.units import format_bytes, format_count, format_name

from ..address import Address, restore
from ..answers import moment, series_of, state_of, totals
from ..components import legend, states, timeline
from ..components.definitions import DEFINITION, explained
from ..components.panel import panel
from ..components.panels import found_table, reserved, stack_table
from ..components.prose import claim_heading
from ..components.scripts import in_browser
from ..components.timeline import raster
from ..data import Data, View
from ..figures import composition, segment_map
from ..figures.drawing.series import EVENTS, TIME, Series
from ..figures.drawing.theme import CATEGORY_COLOR, PART_COLOR
from ..figures.drawing.window import instants_in, zoomed
from ..queries.headline import bound
from ..server import api
from ..server.callbacks import Stored, view_or_nothing
from . import Context, Page, counting

_MAP = "Segments end to end, their blocks colored by category."
_HOLE, _WHOLE, _PENDING = len(Category), len(Category) + 1, len(Category) + 2
_NAMES = {_HOLE: "free, in a segment in use", _WHOLE: "segment wholly free", _PENDING: "waiting for a stream"}
_GROUP_NAMES = [*(format_name(each) for each in Category), *_NAMES.values()]
_COLORS = tuple(CATEGORY_COLOR[each] for each in Category)


def _layout(context: Context) -> Any:
    data, address = context.data, context.address
    view = data.view(address)
    if not len(view.recording.trace):
        return states.nothing_recorded(view.is_live, view)
    found = data.ask(view, "fragmentation")
    if not int(found.parts.reserved_bytes.max(initial=0)) or not view.recording.has_layout:
        return states.state(
            "No segments were recorded",
            "This recording has totals or allocations, but not where in segments they lay.",
            "CUDA recordings and snapshots with segment events show their fragmentation here.",
        )
    series = series_of(data, view, address.axis or TIME)
    at = _first_shown(data, view, address, series)
    look = timeline.TrackStyle("fr-track", "parts-track", {"at": "fr-at"}, ("reserved",), has_parts=True)
    asks = {"url": "/api/segments", "info": "/api/block", "axis": series.axis, "at": at}
    return [
        html.Section(_opening(data, view), id="fr-opening", className="opening"),
        html.Section(
            [
                html.Div([_parts_key(), legend.position(), legend.axis_choice(view, address)],
                         className="chart-bar"),
                timeline.frame(series, view, "What the reserved memory consists of over time.", look),
                _scrubber(),
            ],
            className="panel chart", **{"aria-label": "Reserved memory over time"},
        ),
        panel(
            html.H3(["Segments at ", html.Span(**{"data-from": "fr", "data-field": "moment"})]),
            html.Div(id="fr-key", className="lane-key band-key"),
            raster.alone("fr-map", _MAP, asks),
            html.P("Reserved memory by address, left to right, row by row; area is bytes.",
                   className="dim map-foot"),
            beside=_SUMS, kind="chart", label="Segments and blocks",
        ),
        reserved.panel(data, view, at, state_of(data, view, at)),
        *reserved.layout(data, view, address.at),
        dcc.Store(id="fr-at", data=at), dcc.Store(id="fr-done"),
    ]  # fmt: skip


def _first_shown(data: Data, view: View, address: Address, series: Series) -> int:
    """Return the chosen instant; else the worst one, of a zoom the most fragmented one in it.

    The page chooses an instant for everyone, and one out of view would move the reader's zoom.
    """
    if address.at is not None or address.t0 is None or address.t1 is None:
        return _instant(data, view, address.at)
    in_zoom = zoomed(series, address.t0, address.t1)
    first, stop = instants_in(series, in_zoom)
    unusable = data.ask(view, "fragmentation").parts.inactive_split_bytes
    return first + first_greatest(unusable[first:stop])


def _instant(data: Data, view: View, at: int | None) -> int:
    known = totals(data, view)
    if at is not None and 0 <= at < len(known.allocated_bytes):
        return at
    return _worst(data.ask(view, "fragmentation"))[0]


def _worst(found: Any) -> tuple[int, int, bool]:
    """Return the worst call of cudaMalloc, or of all instants if no call met any; its bytes; which it is."""
    if found.unusable_bytes or not found.was_asked:
        return found.worst, found.unusable_bytes, found.was_asked
    at = int(found.parts.inactive_split_bytes.argmax())
    return at, int(found.parts.inactive_split_bytes[at]), False


def _opening(data: Data, view: View) -> list[Any]:
    found = data.ask(view, "fragmentation")
    at, worst, was_asked = _worst(found)
    when = moment(data, view, at).words
    reserved = format_bytes(int(found.parts.reserved_bytes[at]))
    were, was = ("would be", "is") if found.is_predicted else ("were", "was")
    fragmented = f"{format_bytes(worst)} of {reserved} reserved {were} fragmented"
    if was_asked:
        claim = f"{fragmented} when cudaMalloc {was} called, at {when}"
    else:
        claim = f"{'At least' if bound(view) else 'At most'} {fragmented}, at {when}"
    made = format_count(found.churn.n_made, "segment")
    facts = [
        _most(data, view, found.parts, at) if was_asked else "",
        f"{made} from cudaMalloc, {found.churn.n_released:,} released by cudaFree",
        f"cache released {found.churn.n_retries:,} × for a retry" if found.churn.n_retries else "",
        "expandable segments" if found.is_expandable else "",
    ]
    return [claim_heading(claim),
            html.P("; ".join(each for each in facts if each) + ".", className="support")]  # fmt: skip


def _most(data: Data, view: View, parts: Any, said: int) -> str:
    """Return the most of all instants, if not *said* already; it is harmless while nothing is requested."""
    at = int(parts.inactive_split_bytes.argmax())
    if parts.inactive_split_bytes[at] == parts.inactive_split_bytes[said]:
        return ""
    n_bytes, when = format_bytes(int(parts.inactive_split_bytes[at])), moment(data, view, at).words
    return f"{bound(view)}{n_bytes}, at {when}" if bound(view) else f"{n_bytes} at most, at {when}"


def _parts_key() -> Any:
    entries = [
        explained(html.Span([html.I(className=f"swatch part-{part}"), part.replace("_", " ")], tabIndex="0"),
                  DEFINITION[part])
        for part in composition.PARTS
    ]  # fmt: skip
    return html.Div(entries, className="lane-key parts-key")


_SUMS = html.Span(**{"data-from": "fr", "data-field": "sums"}, className="dim")


def _scrubber() -> Any:
    slider = dcc.Input(id="fr-scrub", type="range", min=0, max=1000, step=1, value=0, className="scrub")
    names = {"data-picture": "fr-map", "data-instant": "fr-at"}
    return html.Label([html.Span("Instant", className="unseen"), slider], className="scrubber", **names)


def _ids(data: Data, view: View, state: Snapshot, at: int) -> Any:
    """Return the row of the lifetimes of each block in use, by its address."""
    found = data.ask(view, "lifetimes")

    def make(_: Any) -> Any:
        rows = found.rows_at(at)
        return segment_map.block_ids(state, rows, found.address[rows])

    return data.derive(view, ("block ids", at), make)


def _segments(data: Data) -> Response:
    view = api.view_of(data)
    series = series_of(data, view, api.word("axis", (TIME, EVENTS)))
    at = _asked(series)
    width = api.whole("w", 8, api.MOST_COLUMNS)
    state = state_of(data, view, at)
    ids = _ids(data, view, state, at)
    pixels = segment_map.strip(state, ids, width)
    return _sent(data, view, (at, series, state), pixels)


def _asked(series: Series) -> int:
    """Return the requested instant, which is given as such or as a position on the axis."""
    last = len(series.position) - 1
    if "x" not in request.args:
        return api.whole("at", 0, last)
    x = api.number("x", -1e12, 1e12)
    return int(np.clip(np.searchsorted(series.position, x, "right") - 1, 0, last))


def _sent(data: Data, view: View, there: tuple[int, Series, Snapshot], pixels: Any) -> Response:
    at, series, state = there
    shown, local, length = api.runs(pixels.ravel())
    group = _groups(data, view, state, shown)
    colors, names = (*_COLORS, "hole", "whole", PART_COLOR["pending"]), _GROUP_NAMES
    found, real = data.ask(view, "lifetimes"), np.maximum(shown, 0)
    shade = np.where(shown >= 0, (found.stack_id[real] * np.int64(7) + 3) % 5, 0)
    flags = (shown >= 0) & (found.alloc_event[real] < 0)
    heading, pins = reserved.pin_rows(data, view, at, state)
    below = {"fields": reserved.jump_fields(data, view, at) | {"pins": heading}, "rows": {"fr-pins": pins}}
    header = {
        "w": pixels.shape[1], "h": pixels.shape[0], "rows": True, "cut": 0, "colors": colors,
        "x": float(series.position[at]),
        "names": {str(i): names[i] for i in np.unique(group[shown != -1]).tolist()},
        "fields": {"moment": moment(data, view, at).words, "sums": _sums(state)}, "below": below,
        "exact": timeline.exact_at(data, view, series, at),
    }  # fmt: skip
    return api.columns(header, ids=shown, group=group, shade=shade, flags=flags.astype("u1"), local=local,
                       length=length, instants=np.array([at]))  # fmt: skip


class Map(NamedTuple):
    """The map of segments at one instant."""

    groups: Any
    """The group of each pixel, shape (rows, width); −1 between segments."""
    names: list[str]
    colors: tuple[str, ...]


def map_at(data: Data, view: View, at: int, width: int) -> Map:
    """Return the map of an instant in groups: categories, free, wholly free, pending."""
    state = state_of(data, view, at)
    pixels = segment_map.strip(state, _ids(data, view, state, at), width)
    groups = _groups(data, view, state, pixels.ravel()).reshape(pixels.shape)
    colors = (*_COLORS, "#DBE1E7", "#EEF1F4", PART_COLOR["pending"])
    return Map(np.where(pixels == segment_map.EMPTY, -1, groups), _GROUP_NAMES, colors)


def _groups(data: Data, view: View, state: Snapshot, shown: Any) -> Any:
    category = data.ask(view, "categories").assigned.category
    free = np.clip(segment_map.FIRST_FREE - shown, 0, max(len(state.blocks) - 1, 0))
    whole = segment_map.is_whole(state)
    kinds = np.where(whole[free], _WHOLE, _HOLE) if len(whole) else np.zeros(len(shown), int)
    if len(whole):
        kinds = np.where(state.blocks.state[free] == BlockState.INACTIVE, kinds, _PENDING)
    used = category[np.maximum(shown, 0)] if len(category) else 0
    return np.where(shown >= 0, used, kinds)


def _sums(state: Snapshot) -> str:
    blocks = state.blocks
    free = blocks.size[blocks.state == BlockState.INACTIVE]
    largest = f", the largest {format_bytes(int(free.max()))}" if len(free) else ""
    held = f"{format_count(len(state.segments), 'segment')}, {format_bytes(state.reserved_bytes)}"
    return f"{held}; {format_count(len(free), 'free block')}, {format_bytes(int(free.sum()))}{largest}"


def _block(data: Data) -> Response:
    """Return a few words about the block under the pointer."""
    view = api.view_of(data)
    at, row = api.whole("at", 0, len(view.recording.trace)), api.whole("id", -(1 << 40), 1 << 40)
    state = state_of(data, view, at)
    if row >= 0:
        if row >= len(data.ask(view, "lifetimes")):
            api.absent()
        return api.answer(found_table.words(data, view, row))
    k = segment_map.FIRST_FREE - row
    if not 0 <= k < len(state.blocks):
        api.absent()
    return api.answer(_hole(state, k))


def _hole(state: Snapshot, k: int) -> dict[str, Any]:
    blocks, segments = state.blocks, state.segments
    owner = int(blocks.segment[k])
    used = (blocks.segment == owner) & (blocks.state != BlockState.INACTIVE)
    pool = "large" if segments.is_large[owner] else "small"
    kept = f"{int(used.sum())} blocks of {format_bytes(int(blocks.size[used].sum()))} in use keep it"
    word = "Free" if blocks.state[k] == BlockState.INACTIVE else "Freed, waiting for another stream"
    size = format_bytes(int(segments.size[owner]))
    return {
        "where": f"{word}: {format_bytes(int(blocks.size[k]))}",
        "place": "",
        "more": [f"in a segment of {size}, stream {int(segments.stream[owner])}, {pool} blocks",
                 kept if used.any() else "wholly free: empty_cache() returns it"],
    }  # fmt: skip


def _register(app: Any, data: Data) -> None:
    app.server.add_url_rule("/api/segments", "segments", lambda: _segments(data))
    app.server.add_url_rule("/api/block", "block", lambda: _block(data))
    timeline.follow_instant(app, "fr-at")
    timeline.follow_keys(app, data, "fr-at", _instant)
    # An output of its own: Dash takes two callbacks of one input without one for the same.
    in_browser(app, "moved", Output("fr-done", "data"), Input("fr-at", "data"), at_once=True)

    @app.callback(
        Output("fr-opening", "children"), Input("version", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def renew(_: Any, stored: Stored | None) -> Any:
        return _opening(data, view_or_nothing(data, restore(stored)))

    _tell(app, data)


def _tell(app: Any, data: Data) -> None:
    """Register the callbacks that show details of the instant."""
    for name in ("fr-pins", "fr-lines", "fr-calls"):
        stack_table.register_rows(app, name)

    @app.callback(
        Output("fr-lines", "rowData"), Output("fr-calls", "rowData"), Input("version", "data"),
        State("address", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def go_on(_: Any, stored: Stored | None) -> Any:
        return reserved.rows(data, view_or_nothing(data, restore(stored)))


PAGE = Page(name="fragmentation", title="Fragmentation", order=40, path="/fragmentation", layout=_layout,
            register=_register, has_timeline=True, behind=counting("fragmentation"))  # fmt: skip
