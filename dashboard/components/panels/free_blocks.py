"""The panel of the largest free block over time: torch calls cudaMalloc for a larger request."""

from typing import Any

from dash import html

from vramscope.analysis.largest_free import LargestFree
from vramscope.units import format_count

from ...answers import ask_allowing_stale
from ...data import Data, View
from ...figures import free_blocks as figures
from ...figures.drawing.series import Series
from .. import panel as panels
from ..graph import graph

MEANING = (
    "torch calls cudaMalloc for a request that no free block can hold, however many bytes are free in "
    "smaller blocks. Every point is exact; between two points the value is unknown."
)


def panel(data: Data, view: View, series: Series) -> Any:
    """Return the chart of the largest free block of each pool and stream."""
    found: LargestFree = ask_allowing_stale(data, view, "largest_free")
    kinds = figures.kinds_of(found, view.recording.pools)
    instants = len(set(found.instant.tolist()))
    title = "Largest free block"
    drawn = figures.figure(series, found, kinds)
    sentence = f"The largest free block of {format_count(len(kinds), 'kind')} of memory over time."
    return panels.panel(
        panels.titled(title, f"at {format_count(instants, 'instant')}", MEANING),
        panels.color_key(((kind.color, kind.name) for kind in kinds), "band"),
        graph("fr-free", drawn, sentence, "steps follows"),
        beside=html.P("Click to go there", className="dim only-live"),
        kind="chart",
        label=title,
    )
