"""Entries of torch's ring as columns, taken in one pass.

``allocator.torch_history.events`` does the same for files, which it must check: a pass over all entries for
each column and each check. torch's own objects need no check, and in a running program each pass costs:
0.2 µs an entry here, 0.6 µs there.
"""

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.torch_history.events import DEFAULT_POOL, Events, check_pools, distinct

_KEYS = ("action", "time_us", "addr", "size", "stream", "frames")


def ring_events(ring: Sequence[dict[str, Any]]) -> Events | None:
    """Convert entries of the ring to events.

    Returns
    -------
    Events or None
        None if an entry lacks a key that the others have, as that of an out-of-memory error does: then
        ``events_of`` converts them.
    """
    tells_pools = bool(ring) and "pool_id" in ring[0]
    keys = (*_KEYS, "pool_id") if tells_pools else _KEYS
    try:
        # A million entries in one flat list, not a tuple of columns each with an iterator per entry.
        values = list(chain.from_iterable(map(itemgetter(*keys), ring)))
    except KeyError:
        return None
    columns = [values[i :: len(keys)] for i in range(len(keys))]
    words, action = distinct(columns[0])
    pool_ids, pool = distinct(columns[6]) if tells_pools else ((DEFAULT_POOL,), np.zeros(len(ring), "i4"))
    check_pools(pool_ids, "pool_id")
    stacks, stack = distinct_lists(columns[5])
    return Events(
        words=words,
        action=action,
        time_us=np.array(columns[1], dtype="i8"),
        address=np.array(columns[2], dtype="u8"),
        size=np.array(columns[3], dtype="i8"),
        stream=np.array(columns[4], dtype="u8"),
        pool_ids=pool_ids,
        pool=pool,
        stacks=stacks,
        stack=stack,
        device_free=np.zeros(len(ring), dtype="i8"),
        tells_pools=tells_pools,
    )


def distinct_lists(lists: Sequence[list[Any]]) -> tuple[list[list[Any]], NDArray[Any]]:
    """Each list of frames once, in order of first occurrence, and the index of every list.

    torch makes a list for each allocation and for each free, whose frames are the same objects where the
    calls are the same: two lists are compared by the identity of their frames, 1 ns a frame. A training
    repeats itself, so a list is first compared with the one that followed the list before it last time.
    """
    found: list[list[Any]] = []
    places: dict[tuple[int, ...], int] = {}
    followers: dict[int, tuple[list[Any], int]] = {}
    index = []
    at, before = -1, None
    for frames in lists:
        if frames is not before:
            guess = followers.get(at)
            if guess is None or guess[0] != frames:
                key = tuple(map(id, frames))
                place = places.setdefault(key, len(found))
                if place == len(found):
                    found.append(frames)
                guess = followers[at] = (found[place], place)
            before, at = frames, guess[1]
        index.append(at)
    return found, np.array(index, dtype="i4")
