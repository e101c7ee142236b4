"""The curve of a file that is still being read, as the mask of a surface that the style sheet colors."""

from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from vramscope.model.partial_curve import PartialCurve

WIDTH, HEIGHT = 1000, 200
_N_PARTS = 400
"""Half of the picture's width in pixels: 12 kB a picture, four times a second."""
_THINNEST = 1.5
"""The least height of the line: a level that does not change would have none."""


def mask(curve: PartialCurve, share: float) -> str:
    """Return a picture of the curve as the URL of an SVG: strong where it is, faint below it.

    The curve needs an event, and takes that part of the width that is the *share* of the file that is read.
    """
    drawn = curve.joined(_N_PARTS)
    low, high = int(min(drawn.low_bytes.min(), 0)), int(max(drawn.high_bytes.max(), 0))
    scale = (HEIGHT - 2 * _THINNEST) / max(high - low, 1)
    n = len(drawn.high_bytes)
    x = np.repeat(np.arange(n + 1) * (WIDTH * min(max(share, 0.0), 1.0) / n), 2)[1:-1].round(1)
    top = np.repeat(_THINNEST + (high - drawn.high_bytes) * scale, 2).round(1)
    bottom = np.repeat(_THINNEST + (high - drawn.low_bytes) * scale, 2).round(1)
    line = _path(x, top) + _path(x[::-1], np.maximum(bottom, top + _THINNEST)[::-1], "L") + "Z"
    area = _path(x, top) + f"L{x[-1]} {HEIGHT}L{x[0]} {HEIGHT}Z"
    body = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        f'<path d="{area}" fill-opacity=".2"/><path d="{line}" fill-opacity=".7"/></svg>'
    )
    return f"data:image/svg+xml,{quote(body)}"


def _path(x: NDArray[Any], y: NDArray[Any], first: str = "M") -> str:
    points = [f"{a:g} {b:g}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    return first + "L".join(points)
