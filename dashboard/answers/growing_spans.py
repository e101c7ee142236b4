"""The spans of phases and steps of a recording that grows: those that are final are placed and kept once.

The 370,000 phases of half an hour at 40 steps a second are 12 MB of spans: made again each second they
were memory of the server, and twice while one version followed another.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.columns import GrowingColumn
from vramscope.columns.scratch import Scratch

from ..figures.drawing.series import Ruler, Spans, spans

_MARGIN = 64
"""The last rows that are placed again: a phase inserted before them would move them."""
_DTYPES = {"start": "f8", "end": "f8", "label": "i8", "depth": "i8"}


class GrowingSpans:
    """The spans of one table on one axis, as ``series.spans`` places them."""

    __slots__ = ("_before", "_columns", "_n_instants", "_n_needed", "_origin", "_scratch")

    def __init__(self, scratch: Scratch | None = None) -> None:
        self._scratch = scratch
        self._begin()

    def _begin(self) -> None:
        self._columns = {name: GrowingColumn(dtype, self._scratch) for name, dtype in _DTYPES.items()}
        self._before: tuple[NDArray[Any], ...] = ()
        """The columns of the last version."""
        self._n_instants = 0
        """The number of instants of the last version."""
        self._n_needed = 0
        """The number of instants without which the kept spans would have other places."""
        self._origin = 0

    def follow(self, table: Any, label: NDArray[Any], depth: NDArray[Any], placed: Ruler) -> Spans:
        """Return the spans of *table*, of which earlier versions were given to earlier calls.

        *label* and *depth* are as in ``series.Spans``, by row of the steps or phases; *placed* is always the
        same axis.
        """
        now = (table.start_event, table.end_event, table.start_ns, table.end_ns, label, depth)
        n_same, n_instants = _n_same(self._before, now), len(placed.time_ns)
        if n_instants < self._n_needed:
            return spans(table, label, depth, placed)  # a reader of an older version
        if n_same < len(self._columns["start"]) or self._origin != placed.origin:
            self._begin()
            n_same = 0
        found = self._with_later(now, self._final(now, n_same), table, placed)
        if found is None:
            self._begin()
            found = spans(table, label, depth, placed)
        self._before, self._n_instants, self._origin = now, n_instants, placed.origin
        return found

    def _final(self, now: tuple[NDArray[Any], ...], n_same: int) -> int:
        """Return the number of rows whose places no later version changes."""
        n_kept = len(self._columns["start"])
        last = max(n_same - _MARGIN, n_kept)
        start, end = (column[n_kept:last] for column in now[:2])
        is_open = (np.minimum(start, end) < 0) | (np.maximum(start, end) >= self._n_instants)
        return n_kept + int(is_open.argmax()) if is_open.any() else last

    def _with_later(
        self, now: tuple[NDArray[Any], ...], n_final: int, table: Any, placed: Ruler
    ) -> Spans | None:
        """Keep the rows before *n_final*; return all spans, None where they are not in order."""
        n_kept = len(self._columns["start"])
        *_, label, depth = now
        new, later = (
            spans(table.rows(rows), label[rows], depth[rows], placed)
            for rows in (slice(n_kept, n_final), slice(n_final, None))
        )
        if not _is_in_order(self._columns["start"].view(), new.start, later.start):
            return None
        for name, column in self._columns.items():
            column.extend(getattr(new, name))
        events = now[0][n_kept:n_final], now[1][n_kept:n_final]
        self._n_needed = max(self._n_needed, *(int(each.max(initial=-1)) + 1 for each in events))
        return Spans(
            **{name: column.followed_by(getattr(later, name)) for name, column in self._columns.items()}
        )


def _is_in_order(*parts: NDArray[Any]) -> bool:
    """Return whether no part, each of which is sorted, begins before the end of one before it."""
    there = [part for part in parts if len(part)]
    return all(one[-1] <= other[0] for one, other in pairwise(there))


def _n_same(before: tuple[NDArray[Any], ...], now: tuple[NDArray[Any], ...]) -> int:
    """Return the number of first rows that are the same in both versions."""
    found = min((len(column) for column in (*before[:1], *now[:1])), default=0) if before else 0
    for one, other in zip(before, now, strict=False):
        differs = one[:found] != other[:found]
        found = int(differs.argmax()) if differs.any() else found
    return found
