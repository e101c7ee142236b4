"""Finds each group's own peak: the most that it held at once, at any time."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.composition import grouped, peak_within
from vramscope.analysis.lifetimes import ALIVE, Allocations, lifetimes
from vramscope.model.recording import Recording
from vramscope.model.table import Int64, Table

_STRETCH = 1 << 14
"""Events per pass: intermediate arrays stay in the processor's cache and never need fresh memory."""


@dataclass(frozen=True, slots=True)
class OwnPeaks(Table):
    """One row per group that held anything within the window, the largest own peak first.

    The two columns answer two questions. *At the peak*: what a group held when all of them together held
    most; these sum up to that peak, and one of them has to shrink to lower it. *Own peak*: the most
    that the group ever held; these are at instants of their own, so their sum means nothing.
    """

    group: Int64
    """Index into ``names``."""
    at_peak_bytes: Int64
    """Bytes at ``instant``; 0 where the group held nothing then."""
    own_peak_bytes: Int64
    """Bytes at ``own_instant``."""
    own_instant: Int64
    """The first instant at which the group held that much."""
    names: tuple[str, ...] = ()
    by: str = ""
    instant: int = 0
    """The first instant of the window at which all groups together held most."""
    window: tuple[int, int] = (0, 0)

    @property
    def by_name(self) -> dict[str, tuple[int, int]]:
        """Bytes at the peak and bytes of the own peak, by group name."""
        columns = self.group.tolist(), self.at_peak_bytes.tolist(), self.own_peak_bytes.tolist()
        return {self.names[group]: (at_peak, own) for group, at_peak, own in zip(*columns, strict=True)}


def own_peaks(recording: Recording, by: str = "phase", window: tuple[int, int] | None = None) -> OwnPeaks:
    """The own peak of each group of allocations within a window.

    Takes 0.1 s per million events more than ``composition``.

    Parameters
    ----------
    by
        The property that forms groups, as in ``composition``.
    window
        Instants ``(start_event, end_event)``, both included; None means all.

    Returns
    -------
    OwnPeaks
        One row per group, in bytes.

    Raises
    ------
    UsageError
        For an unknown property or an invalid window.
    """
    return own_peaks_in_passes(recording, by, window, _STRETCH)


def own_peaks_in_passes(
    recording: Recording, by: str, window: tuple[int, int] | None, stretch: int
) -> OwnPeaks:
    """The same as ``own_peaks``; looks at *stretch* events at a time."""
    span = (0, len(recording.trace)) if window is None else window
    instant = peak_within(recording, span)
    found = lifetimes(recording)
    rows = _seen(found, span)
    group, names = grouped(recording, by, found, rows)
    lives = _GroupedLives(group, found.alloc_event[rows], found.free_event[rows], found.block_size[rows])
    own_peak, own_instant = _highest(lives, len(names), span, stretch)
    order = np.argsort(-own_peak, kind="stable")
    order = order[own_peak[order] > 0]
    return OwnPeaks(
        group=order,
        at_peak_bytes=lives.held_at(instant, len(names))[order],
        own_peak_bytes=own_peak[order],
        own_instant=own_instant[order],
        names=names,
        by=by,
        instant=instant,
        window=span,
    )


class _GroupedLives(NamedTuple):
    """One value per allocation that is live within the window."""

    group: NDArray[Any]
    born: NDArray[Any]
    """The event of the allocation; one before the window for older ones."""
    dies: NDArray[Any]
    n_bytes: NDArray[Any]

    def held_at(self, instant: int, n_groups: int) -> NDArray[Any]:
        """Bytes of each group at *instant*."""
        live = (self.born < instant) & ((self.dies == ALIVE) | (self.dies >= instant))
        return _sums(self.group[live], self.n_bytes[live], n_groups)


def _seen(found: Allocations, span: tuple[int, int]) -> NDArray[Any]:
    """Rows that served tensors at any instant of the window."""
    start, end = span
    lasts = (found.free_event == ALIVE) | (found.free_event >= start)
    return np.flatnonzero(lasts & (found.alloc_event < end))


def _highest(
    lives: _GroupedLives, n_groups: int, span: tuple[int, int], stretch: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The most bytes of each group, and the first instant at which it held them."""
    level = lives.held_at(span[0], n_groups)
    most, instant = level.copy(), np.full(n_groups, span[0], "i8")
    moves = _moves(lives, span)
    for first in range(0, len(moves), stretch):
        part = moves[first : first + stretch]
        events = np.flatnonzero(part)
        row = np.abs(part[events]) - 1
        # NumPy sorts 16-bit integers by counting, which takes a fifth of the time.
        owner = lives.group[row].astype("u2" if n_groups <= 1 << 16 else "i8")
        order = np.argsort(owner, kind="stable")
        change = (np.sign(part[events]) * lives.n_bytes[row])[order]
        _raise(level, (most, instant), (owner[order], change, events[order] + span[0] + first + 1))
    return most, instant


def _moves(lives: _GroupedLives, span: tuple[int, int]) -> NDArray[Any]:
    """For each event of the window the row that is allocated, counted from 1, or the row that is freed,
    negative; 0 for none.

    No event belongs to two blocks, so no sorting by time is needed: each event has its place.
    """
    start, end = span
    found = np.zeros(end - start, "i4")
    for event, sign in ((lives.born, 1), (lives.dies, -1)):
        row = np.flatnonzero((event >= start) & (event < end))
        found[event[row] - start] = sign * (row + 1)
    return found


def _raise(
    level: NDArray[Any], highest: tuple[NDArray[Any], NDArray[Any]], changes: tuple[NDArray[Any], ...]
) -> None:
    """Update *level* and *highest* to the end of a batch.

    *changes* holds group, bytes and instant of each change, ordered by group, then time.
    """
    most, instant = highest
    owner, change, at = changes
    first = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])[: len(owner)])
    if not len(first):
        return
    total = np.cumsum(change)
    offset = level[owner[first]] - (total[first] - change[first])
    reached = total + np.repeat(offset, np.diff(np.append(first, len(owner))))
    before = most[owner]
    most[owner[first]] = np.maximum(most[owner[first]], np.maximum.reduceat(reached, first))
    top = np.flatnonzero((reached == most[owner]) & (reached > before))[::-1]
    instant[owner[top]] = at[top]  # backwards, so that the first is written last
    level[owner[first]] = reached[np.append(first[1:], len(owner)) - 1]


def _sums(group: NDArray[Any], n_bytes: NDArray[Any], n_groups: int) -> NDArray[Any]:
    """Sum bytes by group, exactly in integers: ``bincount`` with weights sums in floats."""
    sums = np.zeros(n_groups, dtype="i8")
    np.add.at(sums, group, n_bytes)
    return sums


ANALYSIS = Analysis(
    "own_peaks", "What is the most that each group of allocations held at once, at any time?", own_peaks
)
