"""The common look of figures: palette, layout, safe configuration, escaping.

Figures are plain dicts of Plotly JSON with transparent paper; text, grid and neutral lines take their color
from ``assets/style.css``, so that light and dark need no redraw. A hue has the same meaning in every view.
"""

import base64
import html
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import Category, Phase

# The palette of Okabe and Ito is distinguishable with every common kind of color vision.
BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE, YELLOW, GRAY = "#D55E00", "#CC79A7", "#F0E442", "#999999"

CATEGORY_COLOR = {
    Category.UNKNOWN: GRAY,
    Category.PARAMETER: BLUE,
    Category.BUFFER: "#5B7FA6",
    Category.GRADIENT: VERMILION,
    Category.OPTIMIZER_STATE: GREEN,
    Category.INPUT: YELLOW,
    Category.ACTIVATION: ORANGE,
    Category.TEMPORARY: PURPLE,
    Category.COMMUNICATION: "#6A51A3",
    Category.WORKSPACE: "#8C6D46",
}
# A phase has the hue of what it works on: backward makes gradients, the optimizer its state.
PHASE_COLOR = {
    Phase.OTHER: "#C3C9D1",
    Phase.FORWARD: BLUE,
    Phase.BACKWARD: VERMILION,
    Phase.OPTIMIZER: GREEN,
    Phase.RECOMPUTE: ORANGE,
    Phase.EVAL: SKY,
    Phase.ZERO_GRAD: "#7A8896",
    Phase.DATA: YELLOW,
    Phase.LOSS: PURPLE,
    Phase.USER: "#6A51A3",
}
QUANTITY_COLOR = {
    "allocated": "#1F2933",  # the stylesheet turns it to the theme's ink
    "active": "#1F2933",
    "reserved": SKY,
    "device_used": PURPLE,
    "capacity": VERMILION,
}

# Plotly 7 offers "Share chart", which posts the figure to cloud.plotly.com: off in every graph.
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "displayModeBar": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "responsive": True,
    "doubleClick": "reset+autosize",
    "showTips": False,
}

FONT = "Inter, ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"


def base_layout(**more: Any) -> dict[str, Any]:
    """Return a transparent layout without legend and title; *more* overrides it."""
    layout: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "font": {"family": FONT, "size": 12},
        "showlegend": False,
        "hovermode": False,
        "uirevision": "keep",
        "template": "none",
    }
    return layout | more


def byte_axis(unit_name: str, **more: Any) -> dict[str, Any]:
    """Return a vertical axis of bytes from 0 up, in the unit of that name."""
    axis = {
        "rangemode": "tozero", "fixedrange": True, "zeroline": False, "nticks": 6, "exponentformat": "none",
        "ticksuffix": f" {unit_name}", "ticklabelstandoff": 7,
    }  # fmt: skip
    return axis | more


def esc(text: str, limit: int = 300) -> str:
    """Return *text* so that Plotly shows it literally; a raw ``<span style=…>`` would fetch a URL."""
    shown = text if len(text) <= limit else f"{text[: limit - 1]}…"
    # U+2066…U+2069 isolate the direction: a name in Hebrew must not reverse the numbers beside it.
    return f"\u2068{html.escape(shown, quote=False)}\u2069"


def pack(values: NDArray[Any]) -> dict[str, str]:
    """Return a column as Plotly's typed array, in the smallest type that loses nothing."""
    whole = values.dtype.kind in "iu" or bool(np.isfinite(values).all())
    for dtype in ("i1", "i2", "i4", "f4") if whole else ("f4",):
        with np.errstate(invalid="ignore", over="ignore"):
            small = values.astype(dtype)
        if np.array_equal(small, values, equal_nan=dtype == "f4"):
            return _typed(small)
    return _typed(values.astype("f8"))


def _typed(values: NDArray[Any]) -> dict[str, str]:
    little = values.astype(values.dtype.newbyteorder("<"))
    return {"dtype": values.dtype.str[1:], "bdata": base64.b64encode(little.tobytes()).decode()}


def byte_unit(n_bytes: int) -> tuple[int, str]:
    """Return scale and name of the unit for an axis up to *n_bytes*; scales are powers of two, so exact."""
    for power, name in ((40, "TiB"), (30, "GiB"), (20, "MiB")):
        if n_bytes >= 2 * (1 << power):
            return 1 << power, name
    return 1 << 10, "KiB"


def scaled(values: NDArray[Any], unit: int) -> NDArray[Any]:
    """Return bytes in *unit*, exactly."""
    return np.asarray(values, "f8") / unit
