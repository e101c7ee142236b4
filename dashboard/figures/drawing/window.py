"""The interval of the axis that a picture shows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vramscope.model.table import Array, first_greatest

from .series import EVENTS, Series

_LONG_START = 0.2
"""Share of the axis before the first step from which on a run opens at its first step."""
_LONG_FIRST_STEP = 0.5
"""Share of all steps' length that the first one has if a run opens at its second step."""


class Window(NamedTuple):
    """The interval of the axis in view."""

    start: float
    end: float


def window(series: Series, start: float | None, end: float | None) -> Window:
    """Return *start* to *end*, clipped to the series; all of it where missing, reversed or outside.

    Inside of the series both are whole nanoseconds, as its positions are.
    """
    first, last = series.extent
    low = first if start is None else min(max(round(start, 9), first), last)
    high = last if end is None else min(max(round(end, 9), first), last)
    return Window(low, high) if high > low else Window(first, last)


def zoomed(series: Series, t0: int | None, t1: int | None) -> Window:
    """Return the window of a zoom as an address has it: in ns, on the axis of events in events."""
    scale = 1.0 if series.axis == EVENTS else 1e-9
    start, end = (None if t is None else t * scale for t in (t0, t1))
    return window(series, start, end)


def training(series: Series) -> Window | None:
    """Return the interval of the steps, where a finished run opens; None for all of it."""
    starts = np.sort(series.steps.start)[:3]
    instants = np.searchsorted(series.position, starts).tolist()
    folded = folded_start(series.position, instants, (series.allocated, series.reserved))
    return Window(float(starts[instants.index(folded)]), series.extent[1]) if folded else None


def folded_start(position: Array, starts: Sequence[int], levels: Sequence[Array]) -> int:
    """Return the number of instants before those at which a picture opens; 0 where it opens on all.

    *starts* are the first instants of the first steps. Loading a model can take 96 % of a short run's time,
    and compiling it, in the first step, most of the rest. What has the peak is never folded.
    """
    folded = 0
    steps, shares = starts[: 2 if len(starts) > 2 else 1], (_LONG_START, _LONG_FIRST_STEP)
    for at, begins, least in zip(steps, (0, *starts), shares, strict=False):
        if not 0 < at < len(position):
            continue
        share = float(position[at] - position[begins]) / (float(position[-1] - position[begins]) or 1.0)
        if least <= share < 1 and all(each[:at].max() <= each[at:].max() for each in levels):
            folded = at
    return folded


def instants_in(series: Series, view: Window) -> tuple[int, int]:
    """Return the first instant whose level holds in *view*, that on entry included, and last + 1."""
    first = entry(series.position, view.start)
    return first, max(int(np.searchsorted(series.position, view.end, "right")), first + 1)


def highest(series: Series, view: Window) -> int:
    """Return the instant in *view* of the most allocated bytes."""
    first, stop = instants_in(series, view)
    return first + first_greatest(series.allocated[first:stop])


def entry(position: Array, start: float) -> int:
    """Return the instant whose level holds at *start*: the first one exactly there, else the last before."""
    left = int(np.searchsorted(position, start, "left"))
    exact = left < len(position) and position[left] == start
    return left if exact else max(left - 1, 0)
