"""Steps too narrow for their curves: each is drawn by its least and its greatest level."""

from dataclasses import dataclass

import numpy as np

from vramscope.model.table import Array

from .series import Series
from .window import Window

STEP_PX = 10
"""A step narrower than this is drawn by its least and greatest value: its curve would be a comb."""
WIDE_PX = 2 * STEP_PX
"""From this width on a step or a pause is drawn in detail also where most steps are narrow."""
COMB_STEPS = 8
"""The fewest narrow steps that make a comb."""
INTERVAL_PX = 3
"""Least width of one interval of the envelope."""


@dataclass(frozen=True, slots=True, eq=False)
class Envelope:
    """Intervals of the axis, one after the other: steps, and parts of set-up, pauses and long steps."""

    borders: Array
    """Positions, shape (intervals + 1,)."""
    first: Array
    """First of the instants whose levels hold in each interval."""
    stop: Array
    """Last + 1 of them."""
    is_detail: Array
    """Whether a border is inside set-up, a pause or a long step."""

    def extremes(self, values: Array) -> tuple[Array, Array]:
        """Return least and greatest of *values* (by instant) in each interval."""
        parts = [values[first:stop] for first, stop in self._parts()]
        return np.array([part.min() for part in parts]), np.array([part.max() for part in parts])

    def greatest(self, values: Array) -> Array:
        """Return the first instant of the greatest value in each interval."""
        return np.array([first + values[first:stop].argmax() for first, stop in self._parts()], "i8")

    def _parts(self) -> list[tuple[int, int]]:
        return list(zip(self.first.tolist(), self.stop.tolist(), strict=True))

    def merged(self, width: float) -> "Envelope":
        """Return the same with at most one border for each *width* of the axis where steps are narrow.

        The places do not depend on where the envelope begins, so that they stay while one pans.
        """
        place = np.floor(self.borders / width)
        kept = self.is_detail | (np.diff(place, prepend=-np.inf) != 0)
        kept[-1] = True
        rows = np.flatnonzero(kept)
        # A bar of a pixel, as before a pause or the end, would hide what only it shows.
        is_thin = np.append(np.diff(self.borders[rows]) < width / 2, False)
        is_thin[0] = False
        rows = rows[~is_thin | self.is_detail[rows]]
        inner = self.first[rows[:-1]], self.stop[rows[1:] - 1]
        return Envelope(self.borders[rows], *inner, self.is_detail[rows])


def envelope(series: Series, view: Window, around: Window, width_px: int) -> Envelope | None:
    """Return the intervals of *around*; None where steps are wide enough for curves.

    No interval reaches over the edges of *view*, which is *width_px* wide; *around* is what is drawn.
    """
    if not len(narrow_steps(series, view, width_px)):
        return None
    borders, detail = _borders(series, view, around, width_px)
    # First and last + 1 of the instants whose levels hold between each two borders. The level on entry is
    # one of them where no event is at the border itself, so that every interval has one.
    position = series.position
    edge = np.searchsorted(position, borders)
    is_exact = position[np.minimum(edge, len(position) - 1)] == borders
    first = np.clip(np.where(is_exact, edge, edge - 1)[:-1], 0, len(position) - 1)
    stop = np.maximum(edge[1:], first + 1)
    stop[-1] = max(int(np.searchsorted(position, borders[-1], "right")), int(first[-1]) + 1)
    return Envelope(borders, first, stop, np.isin(borders, detail))


def narrow_steps(series: Series, view: Window, width_px: int) -> Array:
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
    return inside[steps.end[inside] - steps.start[inside] < WIDE_PX * pixel]


def _borders(series: Series, view: Window, around: Window, width_px: int) -> tuple[Array, Array]:
    """Return all borders, and those inside set-up, pauses and long steps."""
    steps = series.steps
    edges = np.concatenate([steps.start, steps.end])
    borders = np.unique(np.clip(edges, around.start, around.end))
    pixel = (view.end - view.start) / width_px
    even = np.linspace(around.start, around.end, int((around.end - around.start) / pixel / INTERVAL_PX) + 1)
    # The *even* borders where those of steps are at least *wide* apart: set-up, pauses.
    wide = WIDE_PX * pixel
    before = np.searchsorted(borders, even, "right")
    low = np.append(even[0], borders)[before]
    high = np.append(borders, even[-1])[before]
    detail = even[high - low >= wide]
    borders = even if len(borders) > len(even) else np.union1d(borders, detail)
    # Borders at the edges of the view too, so that no interval has extremes from beyond them.
    ends = [around.start, view.start, min(np.nextafter(view.end, np.inf), around.end), around.end]
    return np.union1d(borders, ends), detail
