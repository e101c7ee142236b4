"""The columns of the timeline that the browser draws: reduced to the picture's columns, with exact maxima."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.model.marks import MarkKind

from .drawing.envelope import Envelope, envelope
from .drawing.m4 import even_edges, m4, time_edges
from .drawing.series import DRAWN, MAX_BANDS, RETRY, Series, Spans, phase_bands
from .drawing.window import Window, entry, window

PAD = 0.25
"""Share of the view that is sent on each side, so that the browser can pan before the next answer."""
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

    For each curve there are ``<name>.x`` and ``<name>.y`` in bytes, each value from its position to the next;
    ``allocated.i`` are the instants. Where steps are narrower than STEP_PX there is ``<name>.low`` as well: y
    and low are the extremes of each interval, which begins and ends with a step or the view, and is
    INTERVAL_PX wide in set-up, pauses and long steps.
    """
    around = padded(series, view)
    steps = envelope(series, view, around, width_px)
    columns = _curves(series, view, around, width_px) if steps is None else _extremes(series, steps)
    facts = {
        "axis": series.axis,
        "extent": series.extent,
        "window": [around.start, around.end],
        "envelope": steps is not None,
        "capacity": series.capacity_bytes,
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
    parts = [(Window(around.start, view.start), pads), (view, width_px), (Window(view.end, around.end), pads)]
    shown = [columns_of(series.position, part, columns) for part, columns in parts if part.end > part.start]
    found: dict[str, NDArray[Any]] = {}
    for name in DRAWN:
        values = getattr(series, name)
        drawn = [reduced(series.position, values, part) for part in shown]
        found[f"{name}.x"] = np.concatenate([each.position for each in drawn]).astype("f8")
        found[f"{name}.y"] = np.concatenate([each.value for each in drawn])
        if name == "allocated":
            found[f"{name}.i"] = np.concatenate([each.instant for each in drawn]).astype("i8")
    return found


class Points(NamedTuple):
    """Points of a step function: each value holds from its position to the next."""

    position: NDArray[Any]
    value: NDArray[Any]
    instant: NDArray[Any]


_NOTHING = Points(np.zeros(0), np.zeros(0, "i8"), np.zeros(0, "i8"))


class ViewColumns(NamedTuple):
    """The instants of a view, in the columns of its picture."""

    view: Window
    edges: NDArray[Any]
    """First instant of each column, and the last + 1; nothing in a view without instants."""


def columns_of(position: NDArray[Any], view: Window, n_columns: int) -> ViewColumns:
    """Return the instants whose levels hold in *view*, in columns of equal width."""
    first = entry(position, view.start)
    stop = int(np.searchsorted(position, view.end, "right"))
    return ViewColumns(
        view, time_edges(position, first, stop, n_columns) if stop > first else np.zeros(0, "i8")
    )


def reduced(position: NDArray[Any], values: NDArray[Any], shown: ViewColumns) -> Points:
    """Return the points of a step function that draw it exactly, levels at both edges included."""
    view, edges = shown
    if not len(edges):
        return _NOTHING
    # A repeated level draws nothing new between two steps; the last point ends the line.
    changes = np.flatnonzero(values[edges[0] + 1 : edges[-1]] != values[edges[0] : edges[-1] - 1])
    inside = np.append(edges[0], edges[0] + 1 + changes)
    if len(inside) > len(edges):
        inside = m4([values], edges)
        level = values[inside]
        inside = inside[np.append(True, level[1:] != level[:-1])]
    instant = np.append(inside, edges[-1] - 1)
    at = np.append(position[inside], view.end)
    at[0] = max(at[0], view.start)
    return Points(at, values[instant], instant)


def _extremes(series: Series, steps: Envelope) -> dict[str, NDArray[Any]]:
    """Return the least and the greatest level in each interval, which holds to its end."""
    found: dict[str, NDArray[Any]] = {}
    for name in DRAWN:
        low, high = steps.extremes(getattr(series, name))
        found[f"{name}.x"] = steps.borders
        found[f"{name}.y"] = np.append(high, high[-1])
        found[f"{name}.low"] = np.append(low, low[-1])
    peak = steps.greatest(series.allocated)
    return found | {"allocated.i": np.append(peak, peak[-1])}


def _samples(series: Series, around: Window) -> dict[str, NDArray[Any]]:
    """Return the driver's samples as they are: between two of them nothing is known."""
    curve = series.device_used
    first, stop = np.searchsorted(curve.position, (around.start, around.end + 1e-12))
    rows = np.arange(first, stop)
    if len(rows) > MOST_SAMPLES:
        rows = m4([curve.value], even_edges(int(first), int(stop), MOST_SAMPLES // 4))
    return {
        "device_used.x": curve.position[rows].astype("f8"),
        "device_used.y": curve.value[rows],
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
