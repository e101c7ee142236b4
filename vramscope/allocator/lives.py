"""Which events belong to one block, from its allocation until it is back in the free lists?"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vramscope.model.table import Table
from vramscope.model.trace import Action, Trace

_DIGIT = 16
"""Bits."""
_DIGITS = 3
"""More take as long as comparing does."""


@dataclass(frozen=True, slots=True)
class Lives(Table):
    """One row per block that was handed out, by address, then time.

    A record that contradicts itself yields fewer lives than it has events: an ALLOC where a block lives
    (its free is missing) and a free where none lives (its ALLOC is missing) belong to no life.
    """

    DTYPES: ClassVar = {"address": "u8", "requested_size": "i8", "alloc": "i8", "request": "i8", "end": "i8"}

    address: NDArray[Any]
    requested_size: NDArray[Any]
    alloc: NDArray[Any]
    """The event ALLOC; −1 for a block that was there before the first event."""
    request: NDArray[Any]
    """The event FREE_REQUESTED; −1 where there is none."""
    end: NDArray[Any]
    """The event FREE_COMPLETED, or what tells that it is missing: the next ALLOC there. −1 where neither."""


def lives(trace: Trace) -> Lives:
    """The lives of all blocks in *trace*; one stable sort, 0.1 s per million events."""
    rows = np.flatnonzero(trace.action <= Action.FREE_COMPLETED)
    rows = rows[stable_order(trace.address[rows])]
    address, action = trace.address[rows], trace.action[rows]
    is_first = np.ones(len(rows), dtype="?")
    is_first[1:] = address[1:] != address[:-1]
    before = np.roll(action, 1)
    before[is_first] = Action.SNAPSHOT  # none
    is_alloc = action == Action.ALLOC
    begins = is_first | (is_alloc & (before != Action.ALLOC)) | (before == Action.FREE_COMPLETED)
    life = np.cumsum(begins) - 1
    start = np.flatnonzero(begins)
    request = _event_of(life, rows, (action == Action.FREE_REQUESTED) & (begins | (before != action)), start)
    end = _event_of(life, rows, action == Action.FREE_COMPLETED, start)
    alloc = np.where(is_alloc[start], rows[start], -1)
    _end_at_next(end, address[start], alloc)
    known = is_alloc[start] | is_first[start]
    return Lives(
        address=address[start],
        requested_size=trace.size[rows[start]],
        alloc=alloc,
        request=request,
        end=end,
    ).rows(known)


def stable_order(address: NDArray[Any]) -> NDArray[Any]:
    """As ``argsort(kind="stable")``, up to four times as fast: digit by digit, where NumPy counts instead of
    comparing. Addresses of one device differ in few bits."""
    distance = address - (address.min() if len(address) else np.uint64(0))
    bits = int(np.bitwise_or.reduce(distance)) if len(distance) else 0
    least = (bits & -bits).bit_length() - 1 if bits else 0
    if bits.bit_length() - least > _DIGITS * _DIGIT:
        return np.argsort(address, kind="stable")
    order = np.arange(len(address))
    for low in range(least, bits.bit_length(), _DIGIT):
        digit = (distance >> np.uint64(low)).astype("u2")
        order = order[np.argsort(digit[order], kind="stable")]
    return order


def _event_of(
    life: NDArray[Any], rows: NDArray[Any], chosen: NDArray[Any], start: NDArray[Any]
) -> NDArray[Any]:
    """The chosen row of each life (at most one), −1 where there is none."""
    found = np.full(len(start), -1, dtype="i8")
    found[life[chosen]] = rows[chosen]
    return found


def _end_at_next(end: NDArray[Any], address: NDArray[Any], alloc: NDArray[Any]) -> None:
    """A life that never ended is over where its address is handed out again."""
    again = np.flatnonzero((end[:-1] < 0) & (address[1:] == address[:-1]) & (alloc[1:] >= 0))
    end[again] = alloc[again + 1]
