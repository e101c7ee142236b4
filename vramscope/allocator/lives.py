"""The events of each block, from its allocation until it returns to the free lists."""

from concurrent.futures import ThreadPoolExecutor
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
_MANY = 1 << 20
"""Events from which on the addresses are sorted part by part, two parts at once."""
_N_PARTS = 8
"""Parts of so many events; longer records have more. The arrays of a part stay in the processor's cache, and
those of the next one take their memory: of 5 million events, halves took 0.9 s of CPU and 470 MB, parts 0.5 s
and 300 MB.
"""
_BUCKET_BITS = 12
_NO_BUCKET = 1 << _BUCKET_BITS
"""Stands for events that are not about blocks."""


@dataclass(frozen=True, slots=True)
class BlockLives(Table):
    """One row per allocated block, ordered by address, then time.

    A contradictory record yields fewer lives than it has events: an ALLOC where a block lives (its free is
    missing) and a free where none lives (its ALLOC is missing) belong to no life.
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


def lives(trace: Trace, *, many: int = _MANY) -> BlockLives:
    """The lives of all blocks in *trace*; one stable sort, 0.1 s of CPU per million events.

    From *many* events on, two threads sort parts of the addresses: NumPy sorts without Python's lock.
    """
    if len(trace) < many:
        return _lives_of(trace, np.flatnonzero(trace.action <= Action.FREE_COMPLETED))
    part, n_parts = _parts(trace, max(many // _N_PARTS, 1))
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(lambda each: _lives_of(trace, np.flatnonzero(part == each)), range(n_parts))]
    columns = {
        name: [getattr(each, name) for each in found] or [np.zeros(0, dtype)]
        for name, dtype in BlockLives.DTYPES.items()
    }
    found.clear()  # each column takes the memory of the one before it
    return BlockLives(**{name: np.concatenate(columns.pop(name)) for name in BlockLives.DTYPES})


def _parts(trace: Trace, size: int) -> tuple[Array, int]:
    """The part of each event of a block, and the number of parts: they have ascending addresses, and about
    *size* events each.
    """
    low, high = _bounds(trace)
    shift = np.uint64(max((high - low).bit_length() - _BUCKET_BITS, 0))
    part, counts = np.empty(len(trace), "u2"), np.zeros(_NO_BUCKET + 1, "i8")
    for at in stretches(len(trace), _STRETCH):
        is_move = trace.action[at] <= Action.FREE_COMPLETED
        part[at] = np.where(is_move, (trace.address[at] - np.uint64(low)) >> shift, _NO_BUCKET)
        counts += np.bincount(part[at], minlength=len(counts))
    occurs = np.flatnonzero(counts[:_NO_BUCKET])
    first = np.cumsum(counts[occurs]) - counts[occurs]
    numbers, number = np.unique(first // size, return_inverse=True)
    part_of = np.full(len(counts), len(numbers), "u2")
    part_of[occurs] = number
    for at in stretches(len(trace), _STRETCH):
        part[at] = part_of[part[at]]
    return part, len(numbers)


def _bounds(trace: Trace) -> tuple[int, int]:
    """The lowest and the highest address of a block; 0 if there is none."""
    found = []
    for at in stretches(len(trace), _STRETCH):
        address = trace.address[at][trace.action[at] <= Action.FREE_COMPLETED]
        if len(address):
            found.append((int(address.min()), int(address.max())))
    return min((low for low, _ in found), default=0), max((high for _, high in found), default=0)


def lives_by_birth(trace: Trace, *, stretch: int = _STRETCH) -> BlockLives:
    """The same lives in another order: first blocks that existed before the trace, by address, then by ALLOC.

    Works on *stretch* events at a time, or more, and carries the events of live blocks on to the next: 50 ns
    per event, however many there are.
    """
    found, alive, carried = [], BlockLives.of(), np.zeros(0, dtype="i8")
    first = 0
    while first < len(trace):
        # At least twice as long as what it carries along: each event is then carried once, on average.
        part = slice(first, first + max(stretch, 2 * len(carried)))
        moves = np.flatnonzero(trace.action[part] <= Action.FREE_COMPLETED) + part.start
        here = _lives_of(trace, np.concatenate([carried, moves]))
        found.append(here.rows(np.flatnonzero(here.end >= 0)))
        alive = here.rows(np.flatnonzero(here.end < 0))
        carried = np.concatenate([alive.alloc[alive.alloc >= 0], alive.request[alive.request >= 0]])
        carried.sort()
        first = part.stop
    columns = {name: [getattr(part, name) for part in (*found, alive)] for name in BlockLives.DTYPES}
    return _by_birth(BlockLives(**{name: np.concatenate(parts) for name, parts in columns.items()}))


def _by_birth(found: BlockLives) -> BlockLives:
    """Order the lives by birth and drop frees that a batch wrongly attributed to blocks from before the
    trace: another life at their address came first.
    """
    older = np.flatnonzero(found.alloc < 0)
    suspect = np.flatnonzero(is_among(found.address, np.unique(found.address[older])))
    start = np.where(found.alloc < 0, np.where(found.request < 0, found.end, found.request), found.alloc)
    suspect = suspect[np.lexsort((start[suspect], found.address[suspect]))]
    is_first = np.diff(found.address[suspect], prepend=np.uint64(0)) != 0
    is_first[:1] = True
    older = suspect[is_first & (found.alloc[suspect] < 0)]
    born = np.flatnonzero(found.alloc >= 0)
    return found.rows(np.concatenate([older, born[np.argsort(found.alloc[born], kind="stable")]]))


def ended_by_next(trace: Trace, found: BlockLives) -> Array:
    """The rows of the lives that end with the next ALLOC at their address: nothing completes their free."""
    rows = [np.zeros(0, "i8")]
    for at in stretches(len(found)):
        end = found.end[at]
        rows.append(np.flatnonzero((end >= 0) & (trace.action[end] == Action.ALLOC)) + at.start)
    return np.concatenate(rows)


def is_among(address: Array, known: Array) -> Array:
    """Mask of the addresses that are in *known*, which is sorted. ``np.isin`` would sort all addresses."""
    return rows_among(address, known) >= 0


def rows_among(address: Array, known: Array) -> Array:
    """The first row of *known*, which is sorted, that has each address; −1 where none has it."""
    if not len(known):
        return np.full(len(address), -1)
    row = np.minimum(np.searchsorted(known, address), len(known) - 1)
    return np.where(known[row] == address, row, -1)


def _lives_of(trace: Trace, rows: Array) -> BlockLives:
    """The lives that these events belong to."""
    address, action = trace.address[rows], trace.action[rows]
    order = _by_address(address, action)
    rows, address, action = rows[order], address[order], action[order]
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
    # A life that has no end ends where its address is allocated again.
    at = address[start]
    again = np.flatnonzero((end[:-1] < 0) & (at[1:] == at[:-1]) & (alloc[1:] >= 0))
    end[again] = alloc[again + 1]
    known = is_alloc[start] | is_first[start]
    found = BlockLives(
        address=address[start], requested_size=trace.size[rows[start]], alloc=alloc, request=request, end=end
    )
    return found if known.all() else found.rows(known)


def _by_address(address: Array, action: Array) -> Array:
    """The order of ``stable_order(address)`` of events that are in order.

    Nearly every FREE_COMPLETED directly follows its FREE_REQUESTED; it is sorted along with it.
    """
    follows = np.zeros(len(address) + 1, dtype="?")
    follows[1:-1] = (action[1:] == Action.FREE_COMPLETED) & (action[:-1] == Action.FREE_REQUESTED)
    follows[1:-1] &= address[1:] == address[:-1]
    heads = np.flatnonzero(~follows[:-1])
    heads = heads[stable_order(address[heads])]
    is_pair = follows[heads + 1]
    place = np.arange(len(heads)) + np.cumsum(is_pair) - is_pair
    order = np.empty(len(address), dtype="i8")
    order[place] = heads
    order[place[is_pair] + 1] = heads[is_pair] + 1
    return order


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


def _event_of(life: Array, rows: Array, chosen: Array, start: Array) -> Array:
    """The chosen row of each life (at most one), −1 where there is none."""
    found = np.full(len(start), -1, dtype="i8")
    found[life[chosen]] = rows[chosen]
    return found
