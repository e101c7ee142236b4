"""Runs of events: the columns of all of them, each in one array that becomes the column of the trace."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import NamedTuple

import numpy as np

from vramscope.allocator.torch_history.events import nanoseconds
from vramscope.formats._fast_snapshot.opcode_blocks import Irregular
from vramscope.formats._fast_snapshot.opcode_shapes import Shape
from vramscope.model.table import Array

_DTYPES = {
    "action": "u1", "stack": "i4", "pool": "i8", "text": "i4",
    "addr": "u8", "size": "i8", "stream": "u8", "time_ns": "i8",
}  # fmt: skip
_RESERVE = 1.1
"""The events that a file is expected to have, as a multiple of what its events so far suggest."""
_STRETCH = 1 << 16
"""Rows that are moved at a time: what is copied in between stays in the processor's cache."""
MOST_ACTIONS = 255
"""The most actions that one byte numbers; that number itself stands for one that has no number yet."""


class EventRun(NamedTuple):
    """Events that follow one another in the file."""

    first_memo: int
    """The number of memo objects before the run."""
    n_memo: int
    shape: Shape
    """The shape of the first event."""
    first_row: int
    """The row of its first event in ``RunColumns``."""
    n_rows: int


class ActionNumbers:
    """Numbers the actions of events in order of occurrence, so that one byte is enough."""

    def __init__(self) -> None:
        self.memos: list[int] = []
        """The memo index of each action."""
        self._number = np.full(256, MOST_ACTIONS, "u1")

    def of(self, memo: Array) -> Array:
        """Return the number of each action, given by memo index. Raises Irregular if there are too many."""
        if (highest := int(memo.max())) >= len(self._number):
            more = np.full(highest + 1 - len(self._number), MOST_ACTIONS, "u1")
            self._number = np.concatenate([self._number, more])
        found: Array = self._number[memo]
        is_new = found == MOST_ACTIONS
        for each in np.unique(memo[is_new]).tolist():
            if len(self.memos) == MOST_ACTIONS:
                raise Irregular
            self._number[each] = len(self.memos)
            self.memos.append(each)
        found[is_new] = self._number[memo[is_new]]
        return found


class RunColumns:
    """The columns of the events in all runs.

    Fresh memory costs more than what is computed in it, up to a second per 100 MB on a virtual machine. So
    each column is one array from the first event on, with room for all that the file is expected to hold: the
    part that is not needed is never touched. A column in which all is 0 is not touched at all. The columns of
    a window are copied while the next one is read.
    """

    def __init__(self, beside: Executor) -> None:
        self._beside = beside
        self._columns = {name: np.zeros(0, dtype) for name, dtype in _DTYPES.items()}
        self._room = 0
        self._pending: list[tuple[int, Mapping[str, Array]]] = []
        """The columns that have no place yet, each with its first row."""
        self._copied: Future[None] | None = None
        self.n_rows = 0

    def append(self, columns: Mapping[str, Array]) -> None:
        """Append rows; *columns* must not be written to any more."""
        self._pending.append((self.n_rows, columns))
        self.n_rows += len(columns["action"])

    def copy(self, n_expected: int) -> None:
        """Begin to copy the rows so far, beside other work; the file may have *n_expected* of them in all."""
        if self._copied is not None:
            self._copied.result()
        if self.n_rows > self._room:
            self._room = max(int(_RESERVE * n_expected), self.n_rows)
        self._copied = self._beside.submit(self._copy, self._pending)
        self._pending = []

    def settle(self) -> None:
        """Wait until the rows are copied for which ``copy`` was called; there are no more."""
        if self._copied is not None:
            self._copied.result()

    def _copy(self, pending: list[tuple[int, Mapping[str, Array]]]) -> None:
        for first, columns in pending:
            for name, column in columns.items():
                if name == "time_us":
                    self._put("time_ns", first, nanoseconds(column))
                elif column.any():
                    self._put(name, first, column)

    def _put(self, name: str, first: int, rows: Array) -> None:
        if len(self._columns[name]) < first + len(rows):
            self._columns[name] = _grown(self._columns[name], self._room)
        self._columns[name][first : first + len(rows)] = rows

    def column(self, name: str, rows: slice) -> Array:
        """Return a column's *rows*: a view, or zeros that take no memory yet if it is 0 in all rows."""
        if self.is_zero(name):
            return np.zeros(rows.stop - rows.start, _DTYPES[name])
        self._columns[name] = _grown(self._columns[name], rows.stop)
        return self._columns[name][rows]

    def is_zero(self, name: str) -> bool:
        """Return whether a column is 0 in all rows."""
        return not len(self._columns[name])

    def spread(self, runs: Sequence[EventRun], first: Sequence[int], n_rows: int) -> None:
        """Move the rows of the *runs* in place, so that they begin at *first*, among *n_rows* in all.

        What is then in the rows between them is undefined.
        """
        for name in self._columns:
            if self.is_zero(name):
                continue
            self._columns[name] = _grown(self._columns[name], n_rows)
            for run, to in zip(reversed(runs), reversed(first), strict=True):
                _move(self._columns[name], run, to)


def _grown(column: Array, room: int) -> Array:
    if len(column) >= room:
        return column
    found = np.zeros(room, column.dtype)
    found[: len(column)] = column
    return found


def _move(column: Array, run: EventRun, to: int) -> None:
    """Move the rows of *run* towards the end, beginning with the last ones."""
    shift = to - run.first_row
    if not shift:
        return
    for end in range(run.first_row + run.n_rows, run.first_row, -_STRETCH):
        begin = max(end - _STRETCH, run.first_row)
        column[begin + shift : end + shift] = column[begin:end]
