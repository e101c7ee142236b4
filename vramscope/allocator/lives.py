"""Pairs the events of each block, from its allocation until it returns to the free lists.

Replays, the states at instants and the lifetimes all have the lives of blocks from here.
"""

from dataclasses import dataclass

import numpy as np

from vramscope.model.table import Array, Int64, Table, UInt64, stretches
from vramscope.model.trace import Action, Trace

_DIGIT = 16
"""Bits sorted at a time."""
_DIGITS = 3
"""Largest number of digits; with more, this sort takes as long as comparing."""
_STRETCH = 1 << 14
"""Events sorted at a time: intermediate arrays stay in the processor's cache."""
_NONE = -1
_FREED = Action.FREE_COMPLETED + 1
"""Kind of a FREE_REQUESTED that its FREE_COMPLETED directly follows."""


@dataclass(frozen=True, slots=True)
class BlockLives(Table):
    """One row per allocated block: those from before the first event by address, others by ALLOC.

    One block lives at an address at a time. A free at an address that no ALLOC precedes is of a block from
    before the first event. A contradictory record yields fewer lives than it has events. Of no life are:

    - an ALLOC where a block lives whose free nothing requests: that free is missing, at an unknown moment;
    - a second FREE_REQUESTED or FREE_COMPLETED of a life, and a FREE_REQUESTED after its FREE_COMPLETED;
    - a free at an address where the last block has ended.

    An ALLOC where a block waits for its FREE_COMPLETED ends that life. Segments that go end none: the
    allocator gives back memory without blocks only, so such an event is the one that cannot be true.
    """

    address: UInt64
    requested_size: Int64
    alloc: Int64
    """The ALLOC event; −1 for a block that existed before the first event."""
    request: Int64
    """The FREE_REQUESTED event; −1 where there is none."""
    end: Int64
    """The FREE_COMPLETED event, or the next ALLOC at the address, which shows that it is missing. −1 where
    neither exists.
    """


def lives(
    trace: Trace, *, is_filled_in: bool = True, stretch: int = _STRETCH
) -> tuple[BlockLives, BlockLives]:
    """The lives of the blocks from before *trace*, and those of its own; 50 ns of CPU per event.

    Works on *stretch* events at a time, or more, and carries the lives that go on to the next. Events whose
    ``block_size`` is 0 are not counted, where that column *is_filled_in*.
    """
    is_move = trace.action <= Action.FREE_COMPLETED
    if is_filled_in:
        is_move &= trace.block_size > 0
    alloc = np.flatnonzero(is_move & (trace.action == Action.ALLOC))
    request, end = np.full(len(alloc), _NONE), np.full(len(alloc), _NONE)
    # Nearly every free is two events that follow one another: they are sorted as one, with the kind _FREED.
    is_second = ends_of_frees(trace) & is_move
    is_second[1:] &= is_move[:-1]
    is_row, is_freed = is_move & ~is_second, np.append(is_second[1:], False)
    alive, strays = np.zeros(0, "i8"), [np.zeros(0, "i8")]
    first = n_born = 0
    while first < len(trace):
        # At least twice as long as what it carries along: each life is then carried once, on average.
        part = slice(first, first + max(stretch, 2 * len(alive)))
        events = np.flatnonzero(is_row[part]) + first
        kind = np.where(is_freed[events], _FREED, trace.action[events])
        is_birth = kind == Action.ALLOC
        number = np.where(is_birth, np.cumsum(is_birth) + (n_born - 1), events)
        n_born += int(np.count_nonzero(is_birth))
        last = np.where(request[alive] < 0, Action.ALLOC, Action.FREE_REQUESTED)
        address = trace.address[np.concatenate([alloc[alive], events])]
        rows = address, np.concatenate([last, kind]).astype("u1"), np.concatenate([alive, number])
        alive, stray = _paired(*rows, len(alive), (alloc, request, end))
        strays.append(stray)
        first = part.stop
    born = BlockLives(trace.address[alloc], trace.size[alloc], alloc, request, end)
    if (alloc < 0).any():
        born = born.rows(alloc >= 0)
    return _older(trace, np.sort(np.concatenate(strays)), born), born


def _paired(
    address: Array, kind: Array, number: Array, n_before: int, found: tuple[Array, ...]
) -> tuple[Array, Array]:
    """Write the ends of lives to *found*; return the lives that go on, and the frees that are of none here.

    *number* counts the lives for each ALLOC, and is the event of each free. The first *n_before* rows are the
    last events of lives that go on from before.
    """
    alloc, request, end = found
    order = stable_order(address)
    address, kind, number = address[order], kind[order], number[order]
    is_alloc = kind == Action.ALLOC
    begins = is_alloc.copy()
    begins[1:] &= (address[1:] != address[:-1]) | ~is_alloc[:-1]
    begins |= order < n_before
    # Each event belongs to the last beginning above it, if that is at its address.
    owner = np.maximum.accumulate(np.where(begins, np.arange(len(order)), _NONE))
    is_its = (owner >= 0) & (address[owner] == address)
    life = number[owner]
    # The first of several events wins: written last.
    row = np.flatnonzero(is_its & (kind >= Action.FREE_COMPLETED))[::-1]
    end[life[row]] = number[row] + (kind[row] == _FREED)
    row = np.flatnonzero(is_its & ((kind == Action.FREE_REQUESTED) | (kind == _FREED)))[::-1]
    of, event = life[row], number[row]
    is_first = (request[of] < 0) & ((end[of] < 0) | (event < end[of]))
    request[of[is_first]] = event[is_first]
    top = np.flatnonzero(begins)
    here = number[top]
    again = np.flatnonzero((address[top[1:]] == address[top[:-1]]) & (end[here[:-1]] < 0))
    end[here[again]] = alloc[here[again + 1]]
    alloc[number[is_alloc & ~begins]] = _NONE
    stray = np.flatnonzero(~is_its)
    completed = stray[kind[stray] == _FREED]
    return here[end[here] < 0], np.concatenate([number[stray], number[completed] + 1])


def _older(trace: Trace, strays: Array, born: BlockLives) -> BlockLives:
    """The lives of blocks from before the trace, of the frees *strays*: those before any ALLOC there."""
    none = len(trace)
    address, at = np.unique(trace.address[strays], return_inverse=True)
    again, request, end = (np.full(len(address), none) for _ in range(3))
    row = rows_among(born.address, address)
    np.minimum.at(again, row[row >= 0], born.alloc[row >= 0])
    for column, kind in ((end, Action.FREE_COMPLETED), (request, Action.FREE_REQUESTED)):
        is_its = (trace.action[strays] == kind) & (strays < np.minimum(again, end)[at])
        np.minimum.at(column, at[is_its], strays[is_its])
    first = np.minimum(request, end)
    kept = np.flatnonzero(first < none)
    request, end = (np.where(at < none, at, _NONE)[kept] for at in (request, np.minimum(end, again)))
    alloc, size = np.full(len(kept), _NONE), trace.size[first[kept]]
    return BlockLives(address[kept], size, alloc, request, end)


def ends_at(address: Array, older: BlockLives) -> tuple[Array, Array]:
    """The request and the end of the block from before the trace at each address, −1 for none."""
    row = rows_among(address, older.address)
    return np.append(older.request, _NONE)[row], np.append(older.end, _NONE)[row]


def ends_of_frees(trace: Trace) -> Array:
    """Where a FREE_COMPLETED directly follows its FREE_REQUESTED, as nearly always."""
    found = np.zeros(len(trace), dtype="?")
    action, address = trace.action, trace.address
    found[1:] = (action[1:] == Action.FREE_COMPLETED) & (action[:-1] == Action.FREE_REQUESTED)
    found[1:] &= address[1:] == address[:-1]
    return found


def ended_by_next(trace: Trace, end: Array) -> Array:
    """The rows of the lives that end with the next ALLOC at their address: nothing completes their free."""
    found = [np.zeros(0, "i8")]
    for at in stretches(len(end)):
        row = np.flatnonzero(end[at] >= 0)
        found.append(row[trace.action[end[at][row]] == Action.ALLOC] + at.start)
    return np.concatenate(found)


def is_among(address: Array, known: Array) -> Array:
    """Mask of the addresses that are in *known*, which is sorted. ``np.isin`` would sort all addresses."""
    return rows_among(address, known) >= 0


def rows_among(address: Array, known: Array) -> Array:
    """The first row of *known*, which is sorted, that has each address; −1 where none has it."""
    if not len(known):
        return np.full(len(address), -1)
    row = np.minimum(np.searchsorted(known, address), len(known) - 1)
    return np.where(known[row] == address, row, -1)


def stable_order(address: Array) -> Array:
    """The order of ``argsort(kind="stable")``, up to four times as fast: digit by digit, where NumPy counts
    instead of comparing.

    Addresses of one device differ in few bits.
    """
    distance = address - (address.min() if len(address) else np.uint64(0))
    bits = int(np.bitwise_or.reduce(distance)) if len(distance) else 0
    least = (bits & -bits).bit_length() - 1 if bits else 0
    if bits.bit_length() - least > _DIGITS * _DIGIT:
        return np.argsort(address, kind="stable")
    order: Array | None = None
    for low in range(least, bits.bit_length(), _DIGIT):
        digit = (distance >> np.uint64(low)).astype("u2")
        order = (
            np.argsort(digit, kind="stable")
            if order is None
            else order[np.argsort(digit[order], kind="stable")]
        )
    return np.arange(len(address)) if order is None else order
