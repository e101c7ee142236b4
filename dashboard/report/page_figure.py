"""The figure of a page by itself, for notebooks: ``recording.figure("peak")``."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

from vramscope.errors import UnknownNameError, UsageError
from vramscope.model.recording import Recording, Run

from .. import check_requirements

_INK, _INK_ON_DARK = "#1F2933", "#E4E9EF"
"""The line of allocated bytes, whose color the stylesheet sets on a page."""
_NOT_IN_LEGEND = ("step", "mark", "instant")
_LONGEST_FIT_S = 3600
_MARGIN_TOP_PX, _TITLE_LINE_PX = 58, 22
_LETTERS_OF_TITLE, _LETTERS_OF_SUPPORT = 84, 120
"""The most letters in one line of title, and of the words below it, at the usual width of a notebook."""


def page_figure(
    shown: Recording | Run, page: str, other: Recording | None, at: int | None, dark: bool | None
) -> Any:
    """Return the figure of *page* for Plotly; parameters as ``Recording.figure``."""
    check_requirements()
    from ..pages import pages

    offered = {each.name: each for each in pages() if each.about_run}
    if page not in offered:
        raise UnknownNameError(
            f"no page called {page!r} is about a run; there is: {', '.join(sorted(offered))}"
        )
    is_of_ranks = not offered[page].reads_events
    if is_of_ranks and not isinstance(shown, Run):
        raise UsageError(f"the page {page!r} compares all ranks of a run: run.figure({page!r})")
    if page == "compare" and other is None:
        raise UsageError('the page "compare" needs a recording to compare with: figure("compare", other=…)')
    with _served(shown, other, is_of_ranks) as (data, address):
        return _alone(*_drawn(data, offered[page], address.go(path=offered[page].path, at=at)), dark)


@contextmanager
def _served(shown: Recording | Run, other: Recording | None, is_of_ranks: bool) -> Iterator[tuple[Any, Any]]:
    """Yield the door to the recordings, as pages have it, and the address of the one that is shown."""
    from ..address import Address
    from ..data import Data
    from .static import in_memory

    if is_of_ranks and isinstance(shown, Run):
        data = Data(Path(shown.path))
        yield data, Address(run=next(iter(data.runs.paths()), ""))
        return
    run = shown if isinstance(shown, Run) else Run("this recording", "", (shown,))
    others = [Run("the other recording", "", (other,))] if other is not None else []
    with in_memory(run, *others) as (data, names):
        yield data, Address(run=names[0], other=names[1] if others else "")


def _drawn(data: Any, page: Any, address: Any) -> tuple[dict[str, Any], str, str]:
    """Return the figure of a page as Plotly JSON, its title and the words below it."""
    from ..pages import Context
    from ..queries.settings_search import searches

    if page.name == "fit":
        searches(data).of(data.view(address)).wait(_LONGEST_FIT_S)
    parts = list(_parts(page.layout(Context(data, address))))
    title, support = (_first(parts, kind) for kind in ("H2", "P"))
    title = title or next((vars(part)["aria-label"] for part in parts if part._type == "Figure"), page.title)
    picture = _painted(data, address, page.name)
    if picture is None:
        pictures = filter(None, map(_picture, parts))
        picture = next(pictures, {"data": [], "layout": {}})
    return picture, title, support


def _picture(part: Any) -> dict[str, Any] | None:
    """Return the chart of a part, or what a script draws on a page; None where it has neither."""
    from ..components.graph import DRAWN
    from ..components.panels import call_tree
    from ..figures import icicle
    from ..figures.drawing.theme import in_unit

    if part._type == "Graph":
        return part.figure
    text = getattr(part, DRAWN, None)
    if text:
        return in_unit(json.loads(text))
    boxes = getattr(part, call_tree.DRAWN, None)
    return icicle.figure(call_tree.from_data(boxes)) if boxes else None


def _parts(part: Any) -> Iterator[Any]:
    """Yield every component of a layout, in the order in which a page shows them."""
    from dash.development.base_component import Component

    if isinstance(part, (list, tuple)):
        for each in part:
            yield from _parts(each)
    elif isinstance(part, Component):
        yield part
        yield from _parts(getattr(part, "children", None))


def _first(parts: Sequence[Any], kind: str) -> str:
    """Return the words of the first heading or paragraph; '' where the page has none."""
    return next((_words(part) for part in parts if part._type == kind), "")


def _words(part: Any) -> str:
    if isinstance(part, (list, tuple)):
        return "".join(map(_words, part))
    if isinstance(part, str):
        return part
    is_button = getattr(part, "className", "") == "only-live"
    return "" if is_button else _words(getattr(part, "children", None) or "")


def _painted(data: Any, address: Any, page: str) -> dict[str, Any] | None:
    """Return the timeline of a page that lays it out itself; None elsewhere, and where nothing was live."""
    view = data.view(address)
    if not len(view.recording.trace) and not len(view.recording.initial.blocks):
        return None
    if page == "overview":
        return _levels(data, view, address.at)
    if page == "allocations":
        return _bands(data, view)
    return _parts_of_reserved(data, view, address.at) if page == "fragmentation" else None


def _levels(data: Any, view: Any, at: int | None) -> dict[str, Any]:
    """Return the quantities over time, with the instant or the peak."""
    from ..answers import clamp, series_of
    from ..components.legend import usual
    from ..figures import timeline
    from ..figures.drawing.series import TIME

    series = series_of(data, view, TIME)
    return timeline.figure(series, usual(series), clamp(data, view, at))


def _parts_of_reserved(data: Any, view: Any, at: int | None) -> dict[str, Any] | None:
    """Return the parts of reserved bytes over time; None where no segment is known."""
    from ..answers import series_of
    from ..figures import composition
    from ..figures.drawing.series import TIME

    found = data.ask(view, "fragmentation")
    if not int(found.parts.reserved_bytes.max(initial=0)):
        return None
    series = series_of(data, view, TIME)
    return composition.figure(series, found.parts, found.worst if at is None else at)


def _bands(data: Any, view: Any) -> dict[str, Any]:
    """Return the bands of all allocations, by category where any is known, else by line."""
    from ..answers import folded, series_of, totals
    from ..figures import timeline
    from ..figures.bands import bands
    from ..figures.drawing.paint import by_category, by_line
    from ..figures.drawing.series import TIME

    lives, categories = data.ask(view, "lifetimes"), data.ask(view, "categories")
    paint = (
        by_category(categories.assigned.category)
        if categories.is_known
        else by_line(folded(data, view), lives)
    )
    index = bands(lives, totals(data, view).allocated_bytes)
    return timeline.painted(series_of(data, view, TIME), index, paint, timeline.shades(lives.stack_id))


def _alone(drawn: dict[str, Any], title: str, support: str, dark: bool | None) -> Any:
    """Return a figure that needs no stylesheet: with a title, a legend, colors and hovers of its own."""
    import plotly.graph_objects as go
    import plotly.io

    is_dark = "dark" in str(plotly.io.templates.default) if dark is None else dark
    layout = {name: value for name, value in drawn["layout"].items() if not name.endswith("bgcolor")}
    kinds = {trace["type"] for trace in drawn["data"]}
    first, below = _lines(title, _LETTERS_OF_TITLE), _lines(support, _LETTERS_OF_SUPPORT)
    more_px = _TITLE_LINE_PX * first.count("<br>")
    height = _MARGIN_TOP_PX + more_px + _TITLE_LINE_PX * below.count("<br>")
    layout |= {
        "template": "plotly_dark" if is_dark else "plotly_white",
        "title": {"text": first, "subtitle": {"text": below}, "yref": "container", "y": 1, "yanchor": "top",
                  "pad": {"t": 12 + more_px}},
        "margin": layout.get("margin", {}) | {"t": height},
        "showlegend": not kinds & {"icicle", "heatmap"},
        # Below the labels of the axis; Plotly makes room for it.
        "legend": {"orientation": "h", "y": -0.13, "yanchor": "top"},
    }  # fmt: skip
    if not kinds:
        layout |= {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "height": 2 * height}
    if "icicle" not in kinds:
        layout["hovermode"] = "closest" if "heatmap" in kinds else "x"
    return go.Figure([_shown(trace, is_dark) for trace in drawn["data"]], layout)


def _lines(text: str, letters: int) -> str:
    """Return a text as lines of at most that many letters; Plotly takes nothing in it for markup."""
    from ..figures.drawing.theme import esc

    return "<br>".join(map(esc, wrap(text, letters)))


def _shown(trace: dict[str, Any], is_dark: bool) -> dict[str, Any]:
    """Return a trace with the color of the theme, in the legend where a reader asks for its name."""
    if trace["type"] in ("icicle", "heatmap"):
        return trace | ({"outsidetextfont": trace["insidetextfont"]} if "insidetextfont" in trace else {})
    is_named = trace.get("name", _NOT_IN_LEGEND[0]) not in _NOT_IN_LEGEND
    line = trace.get("line", {})
    inked = {"line": line | {"color": _INK_ON_DARK}} if is_dark and line.get("color") == _INK else {}
    return {"showlegend": is_named and _has_points(trace)} | trace | inked


def _has_points(trace: dict[str, Any]) -> bool:
    x = trace.get("x")
    return bool(x["bdata"] if isinstance(x, dict) else x)
