"""What do the events of one window say?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.formats._frame_lists import FrameLists
from vramscope.formats._shapes import Rows, Shape, Shapes

NUMBERS = ("addr", "size", "stream", "time_us")


@dataclass(slots=True)
class Decoded:
    """One row per place where an event may begin; all columns are 0 where none does."""

    start: NDArray[Any]
    shape: NDArray[Any]
    end: NDArray[Any]
    """Behind the last byte."""
    n_memo: NDArray[Any]
    """Objects that the event numbers."""
    highest: NDArray[Any]
    """The highest memo index that it refers to."""
    action: NDArray[Any]
    frames: NDArray[Any]
    """A list of ``FrameLists``; −1 where there is none, −2 − memo index where it refers to one."""
    pool: NDArray[Any]
    """Both halves of the id in one number; −1 − memo index where it refers to one."""
    numbers: dict[str, NDArray[Any]]

    @classmethod
    def empty(cls, rows: Rows) -> "Decoded":
        """All 0."""
        n = len(rows.start)
        return cls(
            start=rows.start,
            shape=rows.shape,
            end=np.zeros(n, "i8"),
            n_memo=np.zeros(n, "i8"),
            highest=np.zeros(n, "i8"),
            action=np.zeros(n, "i4"),
            frames=np.full(n, -1, "i4"),
            pool=np.zeros(n, "i8"),
            numbers={name: np.zeros(n, "u8") for name in NUMBERS},
        )


def decode(data: bytes | bytearray, n_bytes: int, rows: Rows, shapes: Shapes, lists: FrameLists) -> Decoded:
    """The first *n_bytes* of *data* at the places *rows*."""
    found = Decoded.empty(rows)
    # Where no shape fits, its number −1 takes the last of each.
    found.n_memo = np.array([*(shape.n_memo for shape in shapes.known), 0], "i8")[rows.shape]
    sizes = np.array([*(shape.size for shape in shapes.known), 0], "i8")[rows.shape]
    found.end = np.where(rows.shape < 0, 0, rows.start + sizes)
    for at, shape in enumerate(shapes.known):
        mine = np.flatnonzero(rows.shape == at)
        if len(mine):
            _fill(found, rows, mine, shape)
    is_open = np.array([*(shape.is_open for shape in shapes.known), False], "?")[rows.shape]
    _open(found, np.flatnonzero(is_open), np.frombuffer(data, "u1"), (data, lists))
    found.end[found.end > n_bytes] = 0
    return found


def _fill(found: Decoded, rows: Rows, at: NDArray[Any], shape: Shape) -> None:
    told = {value: rows.numbers(value, at) for value in {*shape.gets, *shape.values.values()}}
    if shape.gets:
        found.highest[at] = np.maximum.reduce([told[value] for value in shape.gets])
    for name, value in shape.values.items():
        numbers = told[value]
        if name in found.numbers:
            found.numbers[name][at] = numbers
        elif name == "action":
            found.action[at] = numbers
        elif name == "frames":
            found.frames[at] = -2 - numbers.astype("i8")
        elif value.is_get:
            found.pool[at] = -1 - numbers.astype("i8")
        elif numbers.any():
            found.pool[at] += numbers.astype("i8") << (0 if name == "pool_id" else 32)


def _open(
    found: Decoded, at: NDArray[Any], data: NDArray[Any], given: tuple[bytes | bytearray, FrameLists]
) -> None:
    """Events that hold their list of frames end where the next one begins, perhaps behind ``e(``."""
    begin = found.end[at]
    following = np.append(found.start[1:], 0)[at]
    is_next = data[following - 1] == ord("u")
    ends = (data[following - 3] == ord("u")) & (data[following - 2] == ord("e"))
    is_batch = ends & (data[following - 1] == ord("("))
    close = following - np.where(is_next, 1, 3)
    is_whole = (is_next | is_batch) & (close >= begin)
    found.end[at] = 0
    at, begin, close = at[is_whole], begin[is_whole], close[is_whole]
    raw, lists = given
    number = lists.find(raw, begin, close)
    known = number >= 0
    found.frames[at[known]] = number[known]
    found.end[at[known]] = close[known] + 1
    found.highest[at] = np.maximum(found.highest[at], lists.highest()[number])


def chains(found: Decoded, data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """First and last row of events that follow one another without a byte between, or with ``e(``.

    (Pickle closes a batch and opens the next one every thousand items.)
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
