"""The number of history entries the allocator has made so far, from its own exact statistics.

torch.cuda.memory_stats counts, for each device, the entries that the history may have overwritten: each of
the counts below is the number of entries of one kind. SEGMENT_MAP and SEGMENT_UNMAP are counted in bytes
only, snapshots not at all.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class EntryCounts(NamedTuple):
    """Entries of each kind since the process began, by torch's names of their actions."""

    alloc: int
    free_requested: int
    free_completed: int
    segment_alloc: int
    segment_free: int
    oom: int

    def since(self, before: "EntryCounts") -> "EntryCounts | None":
        """The entries made after *before*; None if the program reset the statistics in between."""
        made = EntryCounts(*(now - then for now, then in zip(self, before, strict=True)))
        return made if min(made) >= 0 else None

    def plus(self, made: "EntryCounts") -> "EntryCounts":
        """The counts after *made* more entries."""
        return EntryCounts(*(one + other for one, other in zip(self, made, strict=True)))


class BytesInUse(NamedTuple):
    """Bytes in use now, by each of torch's four definitions."""

    requested: int
    allocated: int
    active: int
    reserved: int


COUNTED = frozenset(EntryCounts._fields)
"""The actions whose entries are counted."""


def counts_of(stats: Mapping[str, Any]) -> EntryCounts:
    """The counts in the nested statistics of one device that ``torch._C._cuda_memoryStats`` returns."""
    allocation, active, segment = (stats[name]["all"] for name in ("allocation", "active", "segment"))
    return EntryCounts(
        alloc=allocation["allocated"],
        free_requested=allocation["freed"],
        free_completed=active["freed"],
        segment_alloc=segment["allocated"],
        segment_free=segment["freed"],
        oom=stats["num_ooms"],
    )


def totals_of(stats: Mapping[str, Any]) -> BytesInUse:
    """The bytes in use in the same statistics."""
    return BytesInUse(*(stats[f"{name}_bytes"]["all"]["current"] for name in BytesInUse._fields))


def counted(actions: Mapping[str, int]) -> EntryCounts:
    """Convert a count of actions in a part of the history to counts by kind."""
    return EntryCounts(*(actions.get(name, 0) for name in EntryCounts._fields))
