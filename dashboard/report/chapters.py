"""The chapters of a report: what the pages show of one recording, from the most important on."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from dash import html

from vramscope.analysis.oom.remedies import remedies
from vramscope.units import format_bytes

from ..address import Address
from ..answers import clamp, folded, held, moment, series_of, tree_at
from ..components import legend
from ..components.definitions import LABEL
from ..components.graph import graph
from ..components.panel import panel
from ..components.panels import breakdown, live_set, stack_table
from ..data import Data, View
from ..figures import composition, doubts, icicle, segment_map, timeline
from ..figures.drawing.series import TIME, Series
from ..figures.drawing.window import window
from ..pages import Context, oom
from ..pages import fit as fit_page
from ..pages.fragmentation import map_at
from ..pages.leaks import PAGE as LEAKS
from ..pages.overview import opening
from ..pages.phases import PAGE as PHASES
from ..queries.settings_search import searches

MOST_STACKS = 10
MAP_COLUMNS = 480
SEARCH_S = 60.0
"""The longest time in seconds for the search of settings; a report without it says how to get it."""


def chapters(data: Data, view: View, address: Address) -> list[Any]:
    """Return the components of one recording that has events."""
    at = clamp(data, view, None)
    series = series_of(data, view, TIME)
    shown = legend.usual(series)
    bare = doubts.counted(view.recording, series, window(series, None, None))
    chart = timeline.figure(series, shown, at, bare)
    key = _key((html.I(className=f"swatch swatch-{name}"), LABEL[name]) for name in shown)
    picture = graph("rp-time", chart, "Memory over time.", "timeline")
    return [
        opening(data, view),
        _panel("Memory over time", key, picture, legend.counted(view), legend.phases(series)),
        *_failures(data, view, address),
        *_leaks(data, view, address),
        *_peak(data, view, at, address),
        *_steps(data, view, address),
        *_segments(data, view, series, at),
        *_fit(data, view, address),
    ]


def _failures(data: Data, view: View, address: Address) -> list[Any]:
    failures = data.ask(view, "oom")
    if not len(failures):
        return []
    found = None
    if len(view.recording.trace) <= data.pace.events_at_once:
        found = data.derive(view, "remedies", lambda recording: remedies(recording, failures.rooms[-1]))
    return [_chapter("Out of memory"), *oom.content(data, view, address, found)]


def _leaks(data: Data, view: View, address: Address) -> list[Any]:
    found = data.ask(view, "leaks")
    if not found.leaks and not found.batch:
        return []
    return [_chapter("Leaks"), LEAKS.layout(Context(data, address))]


def _peak(data: Data, view: View, at: int, address: Address) -> list[Any]:
    parts = [_chapter(f"Peak: {moment(data, view, at).words}"), breakdown.layout(data, view, at)]
    tree = tree_at(data, view, at)
    if len(view.recording.trace) and int(tree.total_bytes[0]):
        drawn = icicle.icicle(tree)
        picture = graph(
            "rp-tree", icicle.figure(drawn), "Live memory by call.", "icicle", icicle.height_px(drawn)
        )
        parts.append(_panel("Live at the peak, by call", picture))
    parts += [breakdown.modules(data, view, at), live_set.layout("rp", data, view, at, address)]
    return [*parts, *_stacks(data, view, at)]


def _stacks(data: Data, view: View, at: int) -> list[Any]:
    """Return the whole stacks of the largest lines, each folded up."""
    rows = [row for row in stack_table.rows(folded(data, view), held(data, view, at)) if row.get("stack")]
    if not rows:
        return []
    items = [_stack(view, row) for row in rows[:MOST_STACKS]]
    return [_panel("Stacks of the largest lines", html.Div(items, className="stacks"))]


def _stack(view: View, row: dict[str, Any]) -> html.Details:
    size, where = html.Strong(format_bytes(row["bytes"])), html.Bdi(f"{row['where']} {row.get('place', '')}")
    return html.Details([html.Summary([size, " ", where]), *stack_table.detail(view, row["stack"])])


def _steps(data: Data, view: View, address: Address) -> list[Any]:
    if not len(view.recording.steps):
        return []
    return [_chapter("Steps and phases"), *PHASES.layout(Context(data, address))]


def _segments(data: Data, view: View, series: Series, at: int) -> list[Any]:
    found = data.ask(view, "fragmentation")
    if not int(found.parts.reserved_bytes.max(initial=0)):
        return []
    drawn = composition.figure(series, found.parts, at)
    named = ((name, name.replace("_", " ")) for name in composition.PARTS)
    key = _key((html.I(className=f"swatch part-{name}"), words) for name, words in named)
    over_time = graph("rp-parts", drawn, "Reserved memory over time.", "timeline composition")
    parts = [_chapter("Fragmentation"), _panel("What the reserved memory consisted of", key, over_time)]
    shown = map_at(data, view, at, MAP_COLUMNS)
    present = np.unique(shown.groups[shown.groups >= 0]).tolist()
    if not present:
        return parts
    names = _key(
        (html.I(className="swatch", style={"background": shown.colors[i]}), shown.names[i]) for i in present
    )
    figure = segment_map.picture(shown.groups, shown.colors)
    picture = graph("rp-map", figure, "Segments end to end, by category.", "segment-map")
    return [*parts, _panel("Segments at the peak, end to end", names, picture)]


def _fit(data: Data, view: View, address: Address) -> list[Any]:
    if view.is_live or len(view.recording.trace) > data.pace.events_at_once:
        return []
    search = searches(data).of(view)
    if not search.wait(SEARCH_S):
        search.stop()
        return []
    return [_chapter("Fit"), *fit_page.printed(data, search, address)]


def _key(pairs: Iterable[tuple[html.I, str]]) -> html.Div:
    """Return the key of a picture: what each swatch stands for."""
    return html.Div([html.Span([*pair]) for pair in pairs], className="lane-key")


def _chapter(title: str) -> html.H2:
    return html.H2(title, className="chapter")


def _panel(title: str, *content: Any) -> html.Section:
    return panel(title, *content, kind="chart")
