"""The interval of the axis that a picture shows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.model.table import first_greatest

from .series import EVENTS, Series

_LONG_START = 0.2
"""Share of the axis before the first step from which on a run opens at its first step."""


class Window(NamedTuple):
    """The interval of the axis in view."""

    start: float
    end: float


def window(series: Series, start: float | None, end: float | None) -> Window:
    """Return *start* to *end*, clipped to the series; all of it where missing, reversed or outside."""
    first, last = series.extent
    low = first if start is None else min(max(start, first), last)
    high = last if end is None else min(max(end, first), last)
    return Window(low, high) if high > low else Window(first, last)


def zoomed(series: Series, t0: int | None, t1: int | None) -> Window:
    """Return the window of a zoom as an address has it: in ns, on the axis of events in events."""
    scale = 1.0 if series.axis == EVENTS else 1e-9
    start, end = (None if t is None else t * scale for t in (t0, t1))
    return window(series, start, end)


def training(series: Series) -> Window | None:
    """Return the interval from the first step on, where a finished run opens; None for all of it."""
    if not len(series.steps.start):
        return None
    start = float(series.steps.start.min())
    n_before = int(np.searchsorted(series.position, start))
    levels = series.allocated, series.reserved
    return Window(start, series.extent[1]) if is_long_start(series.position, n_before, levels) else None


def is_long_start(position: NDArray[Any], n_before: int, levels: Sequence[NDArray[Any]]) -> bool:
    """Return whether a picture opens after the first *n_before* instants, which are those before its steps.

    Loading a model and compiling it can take 96 % of a short run's time, and the steps the rest. A run whose
    memory is highest before its first step opens on all of it.
    """
    if not 0 < n_before < len(position):
        return False
    share = float(position[n_before] - position[0]) / (float(position[-1] - position[0]) or 1.0)
    highest = (
        max(int(each[:n_before].max()) for each in levels),
        max(int(each[n_before:].max()) for each in levels),
    )
    return _LONG_START <= share < 1 and highest[0] <= highest[1]


def instants_in(series: Series, view: Window) -> tuple[int, int]:
    """Return the first instant whose level holds in *view*, that on entry included, and last + 1."""
    first = entry(series.position, view.start)
    return first, max(int(np.searchsorted(series.position, view.end, "right")), first + 1)


def highest(series: Series, view: Window) -> int:
    """Return the instant in *view* of the most allocated bytes."""
    first, stop = instants_in(series, view)
    return first + first_greatest(series.allocated[first:stop])


def entry(position: NDArray[Any], start: float) -> int:
    """Return the instant whose level holds at *start*: the first one exactly there, else the last before."""
    left = int(np.searchsorted(position, start, "left"))
    exact = left < len(position) and position[left] == start
    return left if exact else max(left - 1, 0)
