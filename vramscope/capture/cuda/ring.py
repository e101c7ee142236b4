"""Which entries of torch's ring are new, and how many were overwritten before they were read?

Training repeats itself, address for address, so the entries alone cannot tell: a stretch like the last one
read occurs once a step. The allocator's own counts say how many are new; the entries say that this is so.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from vramscope.capture.cuda.counts import COUNTED, EntryCounts

Key: TypeAlias = tuple[str, int, int]
"""Action, address and size of an entry. Its time is no part of it: torch computes that anew each time."""

TAIL = 32
"""So many entries are remembered to know the place again."""


def first_new(
    actions: Sequence[str], key: Callable[[int], Key], tail: Sequence[Key], made: tuple[int, int]
) -> int | None:
    """Where the entries begin that follow *tail*; None where they do not follow it: some are lost.

    *actions* are those of the whole ring, oldest first, *key* gives the entry of an index. *made*: at least
    and at most so many entries of the counted kinds came after the tail. 0.1 µs per new entry.
    """
    least, most = made
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
    """Whether as much of *tail* as the ring still holds stands before *start*."""
    if not tail:  # a ring just begun
        return start == 0
    return all(key(start - i) == tail[-i] for i in range(1, min(start, len(tail)) + 1))


def lost(made: EntryCounts | None, seen: EntryCounts) -> int:
    """How many entries were made but not seen; 0 where the statistics do not tell."""
    if made is None:
        return 0
    return sum(max(0, count - found) for count, found in zip(made, seen, strict=True))
