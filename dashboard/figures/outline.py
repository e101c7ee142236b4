"""The exact total over the bands of the allocations, with phases and steps below."""

from typing import Any

from .drawing.series import Series
from .timeline import Window, shown_unit
from .timeline import figure as whole
from .timeline import traces as all_traces

_SHOWN = ("allocated",)


def figure(series: Series, view: Window, heights: tuple[int, int] | None = None) -> dict[str, Any]:
    """Axes for a canvas: zoom in both directions; *heights* in bytes, everything where None."""
    made = whole(series, view, _SHOWN, None)
    made["data"] = traces(series, view)
    made["layout"]["yaxis"] |= {"fixedrange": False, "rangemode": "tozero"}
    if heights is not None:
        unit, _ = shown_unit(series, _SHOWN)
        made["layout"]["yaxis"] |= {"autorange": False, "range": [edge / unit for edge in heights]}
    return made


def traces(series: Series, view: Window) -> list[dict[str, Any]]:
    """As on the overview, the area empty: the canvas fills it."""
    made = all_traces(series, view, _SHOWN, None)
    for trace in made:
        if trace["uid"] in ("allocated", "reserved"):
            trace |= {"fill": "tozeroy", "fillcolor": "rgba(0,0,0,0)"}
    return made
