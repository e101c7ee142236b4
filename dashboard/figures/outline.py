"""The axes and exact outline over the bands of allocations, with phases and steps below."""

from typing import Any

from .drawing.series import Series
from .timeline import Window, shown_unit
from .timeline import figure as whole
from .timeline import traces as all_traces

_SHOWN = ("allocated",)


def figure(series: Series, view: Window, heights: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return axes for a canvas, zoomable in both directions; *heights* is the zoom in bytes."""
    made = whole(series, view, _SHOWN, None)
    made["data"] = traces(series, view)
    made["layout"]["yaxis"] |= {"fixedrange": False, "rangemode": "tozero"}
    if heights is not None:
        unit, _ = shown_unit(series, _SHOWN)
        made["layout"]["yaxis"] |= {"autorange": False, "range": [edge / unit for edge in heights]}
    return made


def traces(series: Series, view: Window) -> list[dict[str, Any]]:
    """Return the overview's traces with an empty area, which the canvas fills."""
    made = all_traces(series, view, _SHOWN, None)
    for trace in made:
        if trace["uid"] in ("allocated", "reserved"):
            trace |= {"fill": "tozeroy", "fillcolor": "rgba(0,0,0,0)"}
    return made
