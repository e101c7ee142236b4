"""Finds the new entries of torch's ring, and how many were overwritten before they were read.

Training repeats itself, address for address, so the entries alone do not suffice: the last entries read occur
again in every step. The allocator's own counts give the number of new entries; the entries confirm it.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from vramscope.capture.cuda.ring.counts import COUNTED, EntryCounts

Key: TypeAlias = tuple[str, int, int]
"""Action, address and size of an entry, without its time, which torch computes again for each reading."""

TAIL = 32
"""Number of last entries that are remembered to find the place again."""


def first_new(
    actions: Sequence[str], key: Callable[[int], Key], tail: Sequence[Key], made: tuple[int, int]
) -> int | None:
    """Index of the first entry that follows *tail*; None if none does, as some entries are lost.

    *actions* are those of the whole ring, oldest first, *tail* the keys of the last entries read, *made* the
    least and largest possible number of entries of the counted kinds after it.
    """
    least, most = made
    if not tail:  # a new ring: all of it
        return 0 if least <= sum(map(COUNTED.__contains__, actions)) <= most else None
    n_new = 0
    for start in range(len(actions), -1, -1):
        if n_new >= least and _follows(start, key, tail):
            return start
        if start and actions[start - 1] in COUNTED:
            n_new += 1
            if n_new > most:
                return None
    return None


def _follows(start: int, key: Callable[[int], Key], tail: Sequence[Key]) -> bool:
    """Whether the part of *tail* that the ring still holds ends right before *start*."""
    return all(key(start - i) == tail[-i] for i in range(1, min(start, len(tail)) + 1))


def lost(made: EntryCounts | None, seen: EntryCounts) -> int:
    """Number of entries that were made but not seen; 0 if the statistics cannot tell."""
    if made is None:
        return 0
    return sum(max(0, count - found) for count, found in zip(made, seen, strict=True))
