"""The chart of the parts of reserved bytes over time: areas that sum up to reserved."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.churn import GAINS
from vramscope.analysis.driver_calls import DriverCalls

from .drawing.envelope import Envelope, envelope
from .drawing.m4 import m4, time_edges
from .drawing.series import Series
from .drawing.theme import PART_COLOR, byte_unit, pack, scaled
from .drawing.window import Window, instants_in, window
from .timeline import WIDTH_PX, chart, lanes_and_marks
from .track import padded

PARTS = ("requested", "rounding", "pending", "inactive_split", "releasable", "private_pools")
PX_OF_COLUMN = 3
"""Width of a column, of which the areas have the extremes of reserved and inactive_split."""
PX_OF_STEPS = 12
"""Width of what stands for narrow steps: with one instant for each, steps that take turns made a comb."""


def columns(series: Series, parts: Any, view: Window, width_px: int) -> dict[str, NDArray[Any]]:
    """Return what the browser draws as areas in the timeline: ``part.x`` and the bytes of each part.

    A little on both sides of *view* is returned too.
    """
    around = padded(series, view)
    # The intervals of narrow steps, PX_OF_STEPS wide; None where steps are wide enough.
    steps = envelope(series, view, around, width_px)
    merged = None if steps is None else steps.merged(PX_OF_STEPS * (view.end - view.start) / width_px)
    if merged is None:
        n_columns = max(width_px // PX_OF_COLUMN, 1)
        instants, position = _sampled(series, parts, around, n_columns)
    else:
        instants, position = _worst(series, parts, merged)
    found = {f"part.{part}": getattr(parts, f"{part}_bytes")[instants] for part in PARTS}
    return {"part.x": position.astype("f8"), **found}


def figure(series: Series, parts: Any, at: int | None) -> dict[str, Any]:
    """Return the areas of the whole run, over the same axes as the overview."""
    made = columns(series, parts, window(series, None, None), WIDTH_PX)
    unit, name = byte_unit(int(parts.reserved_bytes.max(initial=0)))
    areas = [_area(part, made["part.x"], made[f"part.{part}"], unit, name) for part in PARTS]
    return chart(series, [*areas, *lanes_and_marks(series, at)], name)


MOST_CALLS = 300


def calls_of_driver(
    series: Series, calls: DriverCalls, view: Window, width_px: int
) -> dict[str, NDArray[Any]]:
    """Return bytes reserved and given back in each column of pixels with a call, and which was a retry."""
    around = padded(series, view)
    at = series.position[calls.event]
    inside = np.flatnonzero((at >= around.start) & (at <= around.end))
    wide = (view.end - view.start) / min(width_px, MOST_CALLS)
    column = np.floor((at[inside] - view.start) / wide).astype("i8")
    first = np.flatnonzero(np.diff(column, prepend=column[:1] - 1))
    is_gain = np.isin(calls.kind[inside], GAINS)
    sizes = calls.n_bytes[inside]
    kinds = {"came": sizes * is_gain, "went": sizes * ~is_gain, "retry": calls.is_retry[inside].astype("i8")}
    sums = {
        f"driver.{name}": np.add.reduceat(kind, first) if len(first) else sizes
        for name, kind in kinds.items()
    }
    return {"driver.x": at[inside[first]].astype("f8"), **sums}


def _sampled(series: Series, parts: Any, view: Window, n_columns: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the instants with the extremes of reserved and inactive_split, and the levels at both edges."""
    first, stop = instants_in(series, view)
    edges = time_edges(series.position, first, stop, n_columns)
    inside = m4([parts.reserved_bytes, parts.inactive_split_bytes], edges)
    instants = np.append(inside, stop - 1)
    position = np.append(series.position[inside], view.end)
    position[0] = max(position[0], view.start)
    return instants, position


def _worst(series: Series, parts: Any, steps: Envelope) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the most fragmented instant of each interval, without fragmentation that of most allocated."""
    unusable = parts.inactive_split_bytes
    instants = steps.greatest(unusable)
    fullest = steps.greatest(series.allocated)
    chosen = np.where(unusable[instants] > 0, instants, fullest)
    return np.append(chosen, chosen[-1]), steps.borders


def _area(part: str, x: NDArray[Any], n_bytes: NDArray[Any], unit: int, unit_name: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "uid": part, "name": part, "meta": unit_name, "x": pack(x),
        "y": pack(scaled(n_bytes, unit)), "stackgroup": "parts", "fillcolor": PART_COLOR[part],
        "line": {"shape": "hv", "width": 0, "color": PART_COLOR[part]},
    }  # fmt: skip
