"""Entries of torch's ring as columns, taken in one pass.

``allocator.torch_history.events`` does the same for files, which it must check: a pass over all entries for
each column and each check. torch's own objects need fewer checks, and in a running program each pass costs.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.torch_history import events as torch_events
from vramscope.model.trace import Action

_KEYS = ("action", "time_us", "addr", "size", "stream", "frames")
_WORDS = frozenset(action.name.lower() for action in Action if action != Action.OOM) | {"annotate"}
_YOUNGER = ("pool_id", "user_metadata")
"""Keys that not every version of torch writes."""
_FREES = frozenset({"free_requested", "free_completed"})


def ring_events(ring: Sequence[dict[str, Any]]) -> torch_events.Events | None:
    """Convert entries of the ring to events.

    A free has no stack here: torch repeats that of its allocation, and two thirds of all entries are frees.

    Returns None if the entries differ in their keys, as that of an out-of-memory error does: then
    ``events_of`` converts them.
    """
    columns = _columns(ring)
    if columns is None:
        return None
    words, action = torch_events.distinct(columns["action"])
    # An entry with other keys than the first shifts what follows, so that actions are no words of torch.
    if not _WORDS.issuperset(words):
        return None
    tells_pools = "pool_id" in columns
    pool_ids, pool = (
        _pools(columns["pool_id"]) if tells_pools else ((torch_events.DEFAULT_POOL,), _zeros(ring, "i4"))
    )
    torch_events.check_pools(pool_ids, "pool_id")
    has_stack = ~np.array([word in _FREES for word in words])[action]
    stacks, index = distinct_lists(compress(columns["frames"], has_stack.tolist()))
    stack = np.full(len(ring), -1, dtype="i4")
    stack[has_stack] = index
    if not all(type(frame) is dict for frames in stacks for frame in frames[:1]):
        return None
    return torch_events.Events(
        words=words,
        action=action,
        time_ns=torch_events.nanoseconds(np.fromiter(columns["time_us"], "i8", len(ring))),
        address=np.fromiter(columns["addr"], "u8", len(ring)),
        size=np.fromiter(columns["size"], "i8", len(ring)),
        stream=_streams(columns["stream"]),
        pool_ids=pool_ids,
        pool=pool,
        stacks=stacks,
        stack=stack,
        device_free=_zeros(ring, "i8"),
        tells_pools=tells_pools,
        metadata=torch_events.texts_of(columns.get("user_metadata", ())),
    )


def n_of_actions(events: torch_events.Events) -> dict[str, int]:
    """The number of events of each action, by torch's words."""
    return dict(zip(events.words, np.bincount(events.action).tolist(), strict=True))


def _columns(ring: Sequence[dict[str, Any]]) -> dict[str, list[Any]] | None:
    """The values by key; None if entries differ in their keys, but for the stack, or those lack one.

    torch puts the same keys into the same order, so the values alone are taken, in a third of the time. A
    block from before the history has no stack, which is the last of them.
    """
    widths = [*map(len, ring)]
    n_keys = max(widths, default=0)
    keys = [*ring[widths.index(n_keys)]] if ring else []
    if not set(_KEYS).issubset(keys) or "forward_frames" in keys:
        return None
    whole: Iterable[Iterable[Any]] = map(dict.values, ring)
    if min(widths) < n_keys:
        narrow = {tuple(row) for row, n in zip(ring, widths, strict=True) if n < n_keys}
        if {(*row, "frames") for row in narrow} != {tuple(keys)}:
            return None
        whole = [values if n == n_keys else [*values, []] for values, n in zip(whole, widths, strict=True)]
    values = list(chain.from_iterable(whole))
    return {key: values[i :: len(keys)] for i, key in enumerate(keys) if key in _KEYS or key in _YOUNGER}


def _pools(ids: Sequence[tuple[int, int]]) -> tuple[tuple[tuple[int, int], ...], NDArray[Any]]:
    """The pools and the index of each; nearly always there is one alone, found in a third of the time."""
    if ids.count(ids[0]) == len(ids):
        return (ids[0],), _zeros(ids, "i4")
    return torch_events.distinct(ids)


def _streams(streams: Sequence[int]) -> NDArray[Any]:
    """The column of streams; nearly always there is one alone, which takes a third of the time."""
    if len(set(streams)) == 1:
        return np.full(len(streams), streams[0], dtype="u8")
    return np.array(streams, dtype="u8")


def _zeros(ring: Sequence[Any], dtype: str) -> NDArray[Any]:
    return np.zeros(len(ring), dtype=dtype)


def distinct_lists(lists: Iterable[list[Any]]) -> tuple[list[list[Any]], NDArray[Any]]:
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
