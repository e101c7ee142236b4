"""Pairs births and ends of blocks at each address in the order of time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.lives import stable_order
from vramscope.model.trace import Action, Trace

_STRETCH = 1 << 14
"""Events sorted at a time: intermediate arrays stay in the processor's cache."""
_NONE = -1


def ends(trace: Trace, older: NDArray[Any], *, stretch: int = _STRETCH) -> tuple[NDArray[Any], NDArray[Any]]:
    """The FREE_REQUESTED and FREE_COMPLETED event of each life, −1 for none.

    Each is the first such event at the life's address before the next life there. An end without a birth at
    its address belongs to no life. Events whose ``block_size`` is 0 are not counted.

    *older* are addresses of blocks that predate the trace: their lives come first. At least *stretch* events
    are sorted at a time.
    """
    n_lives = len(older) + _n_births(trace)
    found = np.full(n_lives, _NONE, dtype="i8"), np.full(n_lives, _NONE, dtype="i8")
    open_address, open_life = older, np.arange(len(older))
    first, n_born = 0, len(older)
    while first < len(trace):
        # At least twice as long as what it carries along: each event is then carried once, on average.
        part = slice(first, first + max(stretch, 2 * len(open_life)))
        action, address, value = _moves(trace, part, n_born)
        n_born += int(np.count_nonzero(action == Action.ALLOC))
        open_address, open_life = _paired(
            np.concatenate([open_address, address]),
            np.concatenate([np.full(len(open_life), Action.ALLOC, dtype="u1"), action]),
            np.concatenate([open_life, value]),
            found,
        )
        first = part.stop
    return found


def _n_births(trace: Trace) -> int:
    return int(np.count_nonzero((trace.action == Action.ALLOC) & (trace.block_size > 0)))


def _moves(trace: Trace, part: slice, n_born: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Births and ends of a batch: action, address, and the number of the life born or the ending event."""
    rows = np.flatnonzero((trace.action[part] <= Action.FREE_COMPLETED) & (trace.block_size[part] > 0))
    action, address = trace.action[part][rows], trace.address[part][rows]
    is_birth = action == Action.ALLOC
    return action, address, np.where(is_birth, np.cumsum(is_birth) + (n_born - 1), rows + part.start)


def _paired(
    address: NDArray[Any], action: NDArray[Any], value: NDArray[Any], found: tuple[NDArray[Any], ...]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Write the ends found here to *found*; return address and number of the lives that may still end."""
    order = stable_order(address)
    address, action, value = address[order], action[order], value[order]
    birth = np.flatnonzero(action == Action.ALLOC)
    at = np.cumsum(action == Action.ALLOC) - 1
    if len(birth):  # each end belongs to the birth above it, if that is at its address
        owner = birth[at]
        is_its = (at >= 0) & (address[owner] == address)
        for known, kind in zip(found, (Action.FREE_REQUESTED, Action.FREE_COMPLETED), strict=True):
            row = np.flatnonzero(is_its & (action == kind))
            # The first of several wins: written last.
            row = row[known[value[owner[row]]] == _NONE][::-1]
            known[value[owner[row]]] = value[row]
    last = birth[np.append(address[birth[1:]] != address[birth[:-1]], True)[: len(birth)]]
    life = value[last]
    is_open = (found[0][life] == _NONE) | (found[1][life] == _NONE)
    return address[last][is_open], life[is_open]
