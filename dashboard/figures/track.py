"""The columns of the timeline that the browser draws: reduced to the picture's columns, with exact maxima."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import MarkKind

from .drawing.lanes import MAX_BANDS, phase_bands
from .drawing.m4 import even_edges, extremes_between, first_extreme, m4
from .drawing.series import DRAWN, RETRY, Series, Spans
from .timeline import Window, reduced, window

PAD = 0.25
"""Share of the view that is sent on each side, so that the browser can pan before the next answer."""
STEP_PX = 10
"""A step narrower than this is drawn by its least and greatest value: its curve would be a comb."""
WIDE_PX = 2 * STEP_PX
"""From this width on a step or a pause is drawn in detail also where most steps are narrow."""
COMB_STEPS = 8
"""The fewest narrow steps that make a comb."""
INTERVAL_PX = 3
"""Least width of one interval of the envelope."""
MOST_STEPS, MOST_FLAGS, MOST_SAMPLES = 600, 60, 400
FLAG_NAMES = {
    MarkKind.OOM: "out of memory",
    MarkKind.EMPTY_CACHE: "empty_cache",
    RETRY: "retry",
    MarkKind.MARK: "mark",
    MarkKind.GC: "gc",
}
_GRAVEST = tuple(FLAG_NAMES)
NO_SPANS = Spans(np.zeros(0), np.zeros(0), np.zeros(0, "i8"), np.zeros(0, "i8"))


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One view of the timeline: facts in words, and columns by name."""

    facts: Mapping[str, Any]
    columns: Mapping[str, NDArray[Any]]


def track(series: Series, view: Window, width_px: int) -> Track:
    """Return what the browser draws of *view* and a little on both sides of it.

    Parameters
    ----------
    series
        The quantities on one axis.
    view
        The interval in view.
    width_px
        Width of the picture in pixels.

    Returns
    -------
    Track
        For each curve ``<name>.x`` and ``<name>.y`` in bytes, each value from its position to the next;
        ``allocated.i`` are the instants. Where steps are narrower than STEP_PX there is ``<name>.low`` as
        well: y and low are the extremes of each interval, which begins and ends with a step or the view, and
        is INTERVAL_PX wide in set-up, pauses and long steps.
    """
    around = padded(series, view)
    borders = _envelope_borders(series, view, around, width_px)
    columns = (
        _curves(series, view, around, width_px) if borders is None else _envelopes(series, borders, around)
    )
    facts = {
        "axis": series.axis,
        "extent": series.extent,
        "window": [around.start, around.end],
        "envelope": borders is not None,
        "capacity": series.capacity_bytes,
        "top": {name: series.top(name) for name in DRAWN},
    }
    marks, named = _flags(series, around)
    return Track(facts | marks, columns | named | _samples(series, around) | _lanes(series, view, around))


def padded(series: Series, view: Window) -> Window:
    """Return the view and a little on both sides of it."""
    more = PAD * (view.end - view.start)
    return window(series, view.start - more, view.end + more)


def _curves(series: Series, view: Window, around: Window, width_px: int) -> dict[str, NDArray[Any]]:
    """Return the curves; the view is reduced by itself, so that its maximum is exact."""
    pads = max(int(PAD * width_px), 1)
    parts = [
        (Window(around.start, view.start), pads),
        (view, width_px),
        (Window(view.end, around.end), pads),
    ]
    found: dict[str, NDArray[Any]] = {}
    for name in DRAWN:
        values, blocks = getattr(series, name), series.blocks.get(name)
        drawn = [
            reduced(series.position, values, part, columns, blocks)
            for part, columns in parts
            if part.end > part.start
        ]
        found[f"{name}.x"] = np.concatenate([each.position for each in drawn]).astype("f8")
        found[f"{name}.y"] = np.concatenate([each.value for each in drawn]).astype("f8")
        if name == "allocated":
            found[f"{name}.i"] = np.concatenate([each.instant for each in drawn]).astype("i8")
    return found


def narrow_steps(series: Series, view: Window, width_px: int) -> NDArray[Any]:
    """Return the rows of the steps below WIDE_PX if most in view follow each other within STEP_PX, else none.

    The typical distance decides, not the number in view: a program that sets up for long has its steps in a
    small part of the axis.
    """
    steps = series.steps
    inside = np.flatnonzero((steps.end > view.start) & (steps.start < view.end))
    if len(inside) < COMB_STEPS:
        return inside[:0]
    pixel = (view.end - view.start) / width_px
    if float(np.median(np.diff(steps.start[inside]))) >= STEP_PX * pixel:
        return inside[:0]
    found: NDArray[Any] = inside[steps.end[inside] - steps.start[inside] < WIDE_PX * pixel]
    return found


def _envelope_borders(series: Series, view: Window, around: Window, width_px: int) -> NDArray[Any] | None:
    """Return the borders of the intervals of the envelope; None where steps are wide enough for curves."""
    if not len(narrow_steps(series, view, width_px)):
        return None
    steps = series.steps
    edges = np.concatenate([steps.start, steps.end])
    borders = np.unique(np.clip(edges, around.start, around.end))
    pixel = (view.end - view.start) / width_px
    even = np.linspace(around.start, around.end, int((around.end - around.start) / pixel / INTERVAL_PX) + 1)
    if len(borders) > len(even):
        borders = even
    else:
        borders = np.union1d(borders, _in_wide_intervals(even, borders, WIDE_PX * pixel))
    # Borders at the edges of the view too, so that no interval has extremes from beyond them.
    ends = [around.start, view.start, min(np.nextafter(view.end, np.inf), around.end), around.end]
    return np.union1d(borders, ends)


def _in_wide_intervals(even: NDArray[Any], borders: NDArray[Any], wide: float) -> NDArray[Any]:
    """Return the *even* borders where those of steps are at least *wide* apart: set-up, pauses."""
    before = np.searchsorted(borders, even, "right")
    low = np.append(even[0], borders)[before]
    high = np.append(borders, even[-1])[before]
    found: NDArray[Any] = even[high - low >= wide]
    return found


def _envelopes(series: Series, borders: NDArray[Any], around: Window) -> dict[str, NDArray[Any]]:
    first, stop = intervals(series.position, borders)
    parts = list(zip(first.tolist(), stop.tolist(), strict=True))
    found: dict[str, NDArray[Any]] = {}
    for name in DRAWN:
        values, blocks = getattr(series, name), series.blocks.get(name)
        lows, highs = (None, None) if blocks is None else blocks
        high = extremes_between(values, highs, first, stop, np.maximum).astype("f8")
        low = extremes_between(values, lows, first, stop, np.minimum).astype("f8")
        found[f"{name}.x"] = np.append(borders[:-1], around.end)
        found[f"{name}.y"] = np.append(high, high[-1])
        found[f"{name}.low"] = np.append(low, low[-1])
        if name == "allocated":
            peak = [first_extreme(values, highs, part, np.argmax) for part in parts]
            found[f"{name}.i"] = np.array([*peak, peak[-1]], "i8")
    return found


def intervals(position: NDArray[Any], borders: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return first and last + 1 of the instants whose levels hold between each two borders.

    The level on entry is one of them where no event is at the border itself, so that every interval has one.
    """
    edge = np.searchsorted(position, borders)
    is_exact = position[np.minimum(edge, len(position) - 1)] == borders
    first = np.clip(np.where(is_exact, edge, edge - 1)[:-1], 0, len(position) - 1)
    stop = np.maximum(edge[1:], first + 1)
    stop[-1] = max(int(np.searchsorted(position, borders[-1], "right")), int(first[-1]) + 1)
    return first, stop


def _samples(series: Series, around: Window) -> dict[str, NDArray[Any]]:
    """Return the driver's samples as they are: between two of them nothing is known."""
    curve = series.device_used
    first, stop = np.searchsorted(curve.position, (around.start, around.end + 1e-12))
    rows = np.arange(first, stop)
    if len(rows) > MOST_SAMPLES:
        rows = m4([curve.value], even_edges(int(first), int(stop), MOST_SAMPLES // 4))
    return {
        "device_used.x": curve.position[rows].astype("f8"),
        "device_used.y": curve.value[rows].astype("f8"),
    }


def _lanes(series: Series, view: Window, around: Window) -> dict[str, NDArray[Any]]:
    phases, steps = series.phases, series.steps
    n_phases = np.count_nonzero((phases.end > view.start) & (phases.start < view.end))
    # Of more phases a choice would be drawn, which looks like another program.
    bands = phase_bands(phases if n_phases <= MAX_BANDS // 2 else NO_SPANS, around.start, around.end)
    near = np.flatnonzero((steps.end > around.start) & (steps.start < around.end))
    # Labels have even numbers, so of many steps those of even numbers are sent.
    stride = 1
    while len(near) > MOST_STEPS * stride:
        stride *= 2
    kept = near[steps.label[near] % stride == 0]
    return {
        "phase.x": bands.edges.astype("f8"), "phase.kind": bands.phase.astype("i8"),
        "step.start": steps.start[kept].astype("f8"), "step.end": steps.end[kept].astype("f8"),
        "step.number": steps.label[kept].astype("i8"),
    }  # fmt: skip


def _flags(series: Series, around: Window) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    flags = series.flags
    inside = np.flatnonzero((flags.position >= around.start) & (flags.position <= around.end))
    gravity = [_GRAVEST.index(kind) for kind in flags.kind[inside].tolist()]
    inside = np.sort(inside[np.argsort(gravity, kind="stable")][:MOST_FLAGS])
    names = [
        (flags.names[i] or FLAG_NAMES[kind])[:60]
        for i, kind in zip(inside.tolist(), flags.kind[inside].tolist(), strict=True)
    ]
    columns = {"flag.x": flags.position[inside].astype("f8"), "flag.kind": flags.kind[inside].astype("i8")}
    return {"flags": names}, columns


def position_of(series: Series, instant: int | None) -> float | None:
    """Return the position of an instant on the axis; None where the recording does not have it."""
    if instant is None or not 0 <= instant < len(series.position):
        return None
    return float(series.position[instant])
