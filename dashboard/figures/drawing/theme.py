"""The common look of figures: palette, layout, safe configuration, escaping.

Figures are plain dicts of Plotly JSON with transparent paper; text, grid and neutral lines take their color
from ``assets/style.css``, so that light and dark need no redraw. A hue has the same meaning in every view.
"""

import base64
import html
from typing import Any

import numpy as np

from vramscope.model.marks import Category, Phase
from vramscope.model.table import Array
from vramscope.package_data import words
from vramscope.units import time_unit

# The palette of Okabe and Ito, for lines of a chart that stand for rows of a table.
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE, YELLOW, GRAY = "#D55E00", "#CC79A7", "#F0E442", "#999999"

# A color has one meaning on all pages: no two palettes share one, and those of one palette differ by at
# least 0.07 in OKLab under every common kind of color vision, those that touch in a chart by 0.08 in grey
# too (tests/unit/dashboard/test_palettes.py). Grays say that something is unknown, free or not of interest,
# wherever they are.
CATEGORY_COLOR = {
    Category[name.upper()]: color for name, color in words(__file__, "theme.tsv", "category").items()
}
PHASE_COLOR = {Phase[name.upper()]: color for name, color in words(__file__, "theme.tsv", "phase").items()}
PART_COLOR = words(__file__, "theme.tsv", "part")
QUANTITY_COLOR = words(__file__, "theme.tsv", "quantity")
"""The stylesheet turns the color of allocated and active bytes to the theme's ink."""
QUANTITY_FILL = {"allocated": "rgba(100,116,139,0.20)", "reserved": "rgba(86,180,233,0.13)"}

# Plotly 7 offers "Share chart", which posts the figure to cloud.plotly.com: off in every graph.
CONFIG: dict[str, Any] = {
    "displaylogo": False, "displayModeBar": False, "showSendToCloud": False, "plotlyServerURL": "",
    "responsive": True, "doubleClick": "reset+autosize", "showTips": False,
}  # fmt: skip

FONT = "Inter, ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"


def base_layout(**more: Any) -> dict[str, Any]:
    """Return a transparent layout without legend and title; *more* overrides it."""
    layout: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0}, "font": {"family": FONT, "size": 12},
        "showlegend": False, "hovermode": False, "uirevision": "keep", "template": "none",
    }  # fmt: skip
    return layout | more


def plain_chart(
    data: list[dict[str, Any]], xaxis: dict[str, Any], yaxis: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Return a figure of bytes over steps, events or seconds; *xaxis* and *more* add to the common layout."""
    common = {
        "showgrid": False, "zeroline": False, "exponentformat": "none", "ticks": "outside", "ticklen": 4,
    }  # fmt: skip
    looks = {"hovermode": "x unified", "margin": {"l": 72, "r": 16, "t": 10, "b": 34}} | more
    return {"data": data, "layout": base_layout(xaxis=common | xaxis, yaxis=yaxis, **looks)}


def byte_axis(unit_name: str = "B", **more: Any) -> dict[str, Any]:
    """Return a vertical axis of bytes from 0 up, in the unit of that name."""
    axis = {
        "rangemode": "tozero", "fixedrange": True, "zeroline": False, "nticks": 6, "exponentformat": "none",
        "separatethousands": True, "ticksuffix": f" {unit_name}", "ticklabelstandoff": 7,
    }  # fmt: skip
    return axis | more


EVENTS_AXIS = {"tickprefix": "event ", "showtickprefix": "first", "nticks": 5, "tickangle": 0,
               "separatethousands": True, "exponentformat": "none"}  # fmt: skip
"""A horizontal axis of the numbers of events."""
_EVEN_DIGITS = [
    {"dtickrange": [10.0**-n, 10.0 ** (1 - n) if n else None], "value": f",.{n}f"} for n in range(10)
]
"""Plotly's formats of ticks with as many digits behind the point as their distance has: 2.60 and 2.65."""


def time_axis(start_s: float, end_s: float, most: int = 9) -> tuple[float, dict[str, Any]]:
    """Return an axis of time in the unit that a timeline has there, and the seconds of that unit.

    Positions are given in the unit, so that ticks stay even numbers of it while one zooms.
    """
    unit_s, name = time_unit(start_s, end_s)
    ends = [start_s / unit_s, end_s / unit_s]
    return unit_s, {"range": ends, "ticksuffix": f" {name}", "nticks": most, "tickformatstops": _EVEN_DIGITS}


def palette_css() -> str:
    """Return the rules of the swatches and bars: the style sheet takes the colors from the palettes."""
    parts = PART_COLOR | {category.name.lower(): color for category, color in CATEGORY_COLOR.items()}
    rules = [f".part-{name}{{background:{color}}}" for name, color in parts.items()]
    rules += [f".phase-{phase.name.lower()}{{background:{color}}}" for phase, color in PHASE_COLOR.items()]
    return "".join(rules)


def esc(text: str, limit: int = 300) -> str:
    """Return *text* so that Plotly shows it literally; a raw ``<span style=…>`` would fetch a URL."""
    shown = text if len(text) <= limit else f"{text[: limit - 1]}…"
    # U+2066…U+2069 isolate the direction: a name in Hebrew must not reverse the numbers beside it.
    return f"\u2068{html.escape(shown, quote=False)}\u2069"


def pack(values: Array) -> dict[str, str]:
    """Return a column as Plotly's typed array, in the smallest type that loses nothing."""
    whole = values.dtype.kind in "iu" or bool(np.isfinite(values).all())
    for dtype in ("i1", "i2", "i4", "f4") if whole else ("f4",):
        with np.errstate(invalid="ignore", over="ignore"):
            small = values.astype(dtype)
        if np.array_equal(small, values, equal_nan=dtype == "f4"):
            return _typed(small)
    return _typed(values.astype("f8"))


def _typed(values: Array) -> dict[str, str]:
    little = values.astype(values.dtype.newbyteorder("<"))
    return {"dtype": values.dtype.str[1:], "bdata": base64.b64encode(little.tobytes()).decode()}


def unpack(column: Any) -> Array:
    """Return the values of a column, packed by :func:`pack` or a list."""
    if not isinstance(column, dict):
        return np.asarray(column, "f8")
    return np.frombuffer(base64.b64decode(column["bdata"]), f"<{column['dtype']}")


def in_unit(figure: dict[str, Any]) -> dict[str, Any]:
    """Return a figure in bytes as Plotly shows it: in the unit of its highest value.

    Our own charts count in bytes and choose the unit where they write a number; Plotly has no such unit.
    """
    levels = [unpack(trace["y"]) for trace in figure["data"]]
    is_stacked = any("stackgroup" in trace for trace in figure["data"])
    highest = sum(levels) if is_stacked else np.concatenate([*levels, np.zeros(1)])
    unit, name = byte_unit(int(np.max(highest, initial=0)))
    data = [trace | {"y": pack(scaled(y, unit))} for trace, y in zip(figure["data"], levels, strict=True)]
    axis = figure["layout"]["yaxis"] | byte_axis(name)
    notes = [each | {"y": each["y"] / unit} for each in figure["layout"].get("annotations", [])]
    return figure | {"data": data, "layout": figure["layout"] | {"yaxis": axis, "annotations": notes}}


def byte_unit(n_bytes: int) -> tuple[int, str]:
    """Return scale and name of the unit for an axis up to *n_bytes*; scales are powers of two, so exact."""
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB")):
        if n_bytes >= 2 * (1 << power):
            return 1 << power, name
    return 1 << 10, "KiB"


def scaled(values: Array, unit: int) -> Array:
    """Return bytes in *unit*, exactly."""
    return np.asarray(values, "f8") / unit
