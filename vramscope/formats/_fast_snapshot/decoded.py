"""Reads the values of all events of one window into columns."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vramscope.formats._fast_snapshot.frame_lists import FrameLists
from vramscope.formats._fast_snapshot.opcode_shapes import EventCandidates, Shapes, Value
from vramscope.model.table import Array

NUMBERS = ("addr", "size", "stream", "time_us")


@dataclass(slots=True, eq=False)
class Decoded:
    """One row per place where an event may begin.

    If no event begins there, ``end`` is 0 and the other columns are undefined.
    """

    start: Array
    shape: Array
    end: Array
    """The offset after the last byte; 0 if no event begins there."""
    n_memo: Array
    """The number of memo objects that the event defines."""
    highest: Array
    """The highest memo index that it refers to."""
    action: Array
    frames: Array
    """The number of a list in ``FrameLists``; −1 if there is none, −2 − memo index for a reference."""
    pool: Array
    """Both halves of the pool's id in one number; −1 − memo index for a reference."""
    text: Array
    """1 + the memo index of the program's text; 0 where it has none."""
    numbers: dict[str, Array]


def decode(
    data: bytes | bytearray,
    n_bytes: int,
    rows: EventCandidates,
    known: tuple[Shapes, FrameLists],
    beside: Executor,
) -> Decoded:
    """Decode the events at *rows* that end within the first *n_bytes* of *data*.

    The numbers are read *beside* the search for lists of frames: each takes a fifth of the time of a file.
    """
    shapes, lists = known
    n = len(rows.start)
    # If no shape fits, its number −1 selects the last element of each array.
    sizes = np.array([*(shape.size for shape in shapes.known), 0], "i8")[rows.shape]
    found = Decoded(
        start=rows.start,
        shape=rows.shape,
        end=np.where(rows.shape < 0, 0, rows.start + sizes),
        n_memo=np.array([*(shape.n_memo for shape in shapes.known), 0], "i8")[rows.shape],
        highest=np.zeros(n, "i8"),
        action=np.zeros(n, "i4"),
        frames=np.full(n, -1, "i4"),
        pool=np.zeros(n, "i8"),
        text=np.zeros(n, "i4"),
        numbers={},
    )
    filled = beside.submit(_fill, found, _ShapeNumbers(rows, shapes))
    is_open = np.array([*(shape.is_open for shape in shapes.known), False], "?")[rows.shape]
    ends = _open_ends(found, np.flatnonzero(is_open), (data, lists))
    filled.result()
    _close(found, ends, lists)
    found.end[found.end > n_bytes] = 0
    return found


class _ShapeNumbers:
    """Reads numbers of events, for all shapes at once that have them at the same offset."""

    def __init__(self, rows: EventCandidates, shapes: Shapes) -> None:
        met = np.flatnonzero(np.bincount(rows.shape + 1, minlength=1)[1:])
        self.shapes = [shapes.known[at] for at in met.tolist()]
        self._rows = rows
        table = np.full(len(shapes.known) + 1, len(met))
        table[met] = np.arange(len(met))
        self._shape = table[rows.shape]
        """The index in ``shapes`` of each row; the length of ``shapes`` if none fits."""
        self._columns: dict[tuple[Value | None, ...], Array] = {}

    def column(self, values: tuple[Value | None, ...]) -> Array:
        """Return the value of each event, located by its shape.

        It is 0 if the shape has no such value, and undefined if no shape fits.
        """
        if values not in self._columns:
            self._columns[values] = self._column(values)
        return self._columns[values]

    def _column(self, values: tuple[Value | None, ...]) -> Array:
        offsets = sorted({value.offset for value in values if value})
        widest = max((value.width for value in values if value), default=0)
        masks = np.array([(1 << 8 * value.width) - 1 if value else 0 for value in (*values, None)], "u8")
        if len(offsets) == 1 and (masks[:-1] == masks[0]).all():
            return self._rows.numbers(offsets[0], widest) & masks[0]
        found = np.zeros(len(self._shape), "u8")
        for offset in offsets:
            here = tuple(value if value and value.offset == offset else None for value in values)
            np.copyto(found, self._rows.numbers(offset, widest), where=self.has(here))
        found &= masks.take(self._shape)
        return found

    def has(self, values: tuple[Value | None, ...]) -> Array:
        return np.array([*map(bool, values), False]).take(self._shape)

    def of_shapes(self, values: Sequence[int]) -> Array:
        """Return for each event one of *values*, which are one per shape; 0 if no shape fits."""
        return np.array([*values, 0], "i4").take(self._shape)

    def values(self, name: str) -> tuple[Value | None, ...]:
        return tuple(shape.values.get(name) for shape in self.shapes)


def _fill(found: Decoded, numbers: _ShapeNumbers) -> None:
    shapes = numbers.shapes
    for i in range(max((len(shape.gets) for shape in shapes), default=0)):
        gets = tuple(shape.gets[i] if i < len(shape.gets) else None for shape in shapes)
        np.maximum(found.highest, numbers.column(gets).astype("i8"), out=found.highest)
    given = {name: numbers.values(name) for name in ("action", "frames", "pool_id", "pool_id[1]", *NUMBERS)}
    found.action = numbers.column(given["action"]).astype("i4")
    found.numbers = {name: numbers.column(given[name]) for name in NUMBERS}
    frames = numbers.column(given["frames"]).astype("i4")
    found.frames = np.where(numbers.has(given["frames"]), -2 - frames, np.int32(-1))
    if any(shape.text for shape in shapes):
        found.text = numbers.of_shapes([shape.text for shape in shapes])
    if any(given["pool_id"]):
        first, second = (numbers.column(given[name]).astype("i8") for name in ("pool_id", "pool_id[1]"))
        is_get = numbers.has(tuple(value if value and value.is_get else None for value in given["pool_id"]))
        found.pool = np.where(is_get, -1 - first, first + (second << 32))


class _OpenEnds(NamedTuple):
    at: Array
    """The rows."""
    whole: Array
    """Those of them whose list ends in this window."""
    close: Array
    """The offset of the end of each whole list."""
    number: Array
    """Its number in ``FrameLists``; −1 if it is not a list of frames."""


def _open_ends(found: Decoded, at: Array, given: tuple[bytes | bytearray, FrameLists]) -> _OpenEnds:
    """Find the lists of frames of the events *at*, which contain it; reads only starts and ends of events.

    Such an event ends where the next one begins, possibly with ``e(`` between them.
    """
    raw, lists = given
    data, begin = np.frombuffer(raw, "u1"), found.end[at]
    following = np.append(found.start[1:], 0)[at]
    is_next = data[following - 1] == ord("u")
    ends = (data[following - 3] == ord("u")) & (data[following - 2] == ord("e"))
    is_batch = ends & (data[following - 1] == ord("("))
    close = following - np.where(is_next, 1, 3)
    is_whole = (is_next | is_batch) & (close >= begin)
    close = close[is_whole]
    return _OpenEnds(at, at[is_whole], close, lists.find(raw, begin[is_whole], close))


def _close(found: Decoded, ends: _OpenEnds, lists: FrameLists) -> None:
    known = ends.number >= 0
    found.end[ends.at] = 0
    found.frames[ends.whole[known]] = ends.number[known]
    found.end[ends.whole[known]] = ends.close[known] + 1
    found.highest[ends.whole] = np.maximum(found.highest[ends.whole], lists.highest()[ends.number])


def chains(found: Decoded, data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield the first and last row of events that follow one another without a byte between, or with ``e(``.

    Pickle closes a batch and opens the next one every thousand items.
    """
    if not len(found.start):
        return
    raw = np.frombuffer(data, "u1")
    fits, end, following = found.end > 0, found.end[:-1], found.start[1:]
    is_batch = (following == end + 2) & (raw[end] == ord("e")) & (raw[end + 1] == ord("("))
    linked = np.zeros(len(fits) + 1, "?")
    linked[1:-1] = fits[:-1] & fits[1:] & ((following == end) | is_batch)
    first = np.flatnonzero(fits & ~linked[:-1])
    last = np.flatnonzero(fits & ~linked[1:])
    yield from zip(first.tolist(), last.tolist(), strict=True)
