"""Names torch's private pools (of CUDA graphs, MemPools), and follows the bytes of each over time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from vramscope.allocator.levels import levels
from vramscope.analysis import asking
from vramscope.model.marks import MarkKind, pool_number
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Array, Int64, Table


class PoolKind(str, Enum):
    """The maker of a pool."""

    GRAPH = "graph"
    """One or several CUDA graphs were captured into it."""
    MEM_POOL = "mem_pool"
    """A ``torch.cuda.MemPool`` of the program, as the arenas of inference engines."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PoolName:
    """One pool, as far as it is known what made it."""

    id: tuple[int, int]
    """torch's id; (0, 0) is the default pool, and (n, 0) belongs to a graph that was given no pool."""
    kind: PoolKind = PoolKind.UNKNOWN
    place: str = ""
    """The line of code that made the pool, ``file:line``; '' if unknown."""

    def __str__(self) -> str:
        words = pool_words(self.kind, self.place)
        return f"pool {self.id}: {words}" if words else f"pool {self.id}"


@dataclass(frozen=True, slots=True)
class PoolLevels(Table):
    """The bytes of one pool: a row for the start and for each event of the pool."""

    instant: Int64
    """The instant from which the row holds, up to the next row's."""
    allocated_bytes: Int64
    """Bytes of blocks that serve tensors."""
    active_bytes: Int64
    """The same with freed blocks that wait for another stream."""
    reserved_bytes: Int64
    """Bytes of the pool's segments, which serve no other pool."""

    def at(self, instant: int) -> tuple[int, int]:
        """Return the allocated and the reserved bytes at an instant of the recording."""
        row = int(np.searchsorted(self.instant, instant, side="right")) - 1
        return int(self.allocated_bytes[row]), int(self.reserved_bytes[row])


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One private pool and its bytes over time."""

    name: PoolName
    levels: PoolLevels

    @property
    def peak_allocated_bytes(self) -> int:
        """The most allocated bytes of the pool at any instant."""
        return int(self.levels.allocated_bytes.max())

    @property
    def peak_reserved_bytes(self) -> int:
        """The most reserved bytes of the pool at any instant."""
        return int(self.levels.reserved_bytes.max())


def private_pools(recording: Recording) -> tuple[PoolUse, ...]:
    """Every private pool that held memory, with its bytes over time; the largest peak of reserved first.

    Before torch 2.12 events do not name their pool: there a pool is known while its segments last to the end.
    """
    names = pool_names(recording)
    found = [
        PoolUse(names[pool], _levels(recording, pool))
        for pool in used_pools(recording).tolist()
        if 0 <= pool < len(names) and names[pool].id != (0, 0)
    ]
    return tuple(sorted(found, key=lambda each: (-each.peak_reserved_bytes, each.name.id)))


def pool_names(recording: Recording) -> tuple[PoolName, ...]:
    """The name of each pool, by the index that columns use."""
    marks = recording.marks
    of_pools = marks.rows((marks.kind == MarkKind.GRAPH_POOL) | (marks.kind == MarkKind.MEM_POOL))
    known: dict[int, tuple[PoolKind, str]] = {}
    for kind, number, name in zip(
        of_pools.kind.tolist(), of_pools.value.tolist(), of_pools.name.tolist(), strict=True
    ):
        is_graph = kind == MarkKind.GRAPH_POOL
        # A MemPool into which a graph is captured is the graph's; of several graphs the first names it.
        if number not in known or (is_graph and known[number][0] is PoolKind.MEM_POOL):
            known[number] = (PoolKind.GRAPH if is_graph else PoolKind.MEM_POOL, marks.names[name])
    return tuple(
        PoolName(pool, *known.get(pool_number(*pool), (_by_id(pool), ""))) for pool in recording.pools
    )


def pool_words(kind: PoolKind, place: str) -> str:
    """Return what made a pool in words, ``CUDA graph of net/train.py:40``; '' if it is not known."""
    file, _, line = place.rpartition(":")
    where = f" of {'/'.join(file.replace(chr(92), '/').split('/')[-2:])}:{line}" if file else ""
    return {PoolKind.GRAPH: "CUDA graph", PoolKind.MEM_POOL: "MemPool"}.get(kind, "") + where


def used_pools(recording: Recording) -> Array:
    """The index of each pool that has segments or events."""
    columns = recording.initial.segments.pool, recording.trace.pool
    seen = np.zeros(1 + max(int(column.max(initial=0)) for column in columns), "?")
    for column in columns:  # a sort of a million pool numbers takes 30 MB
        seen[column] = True
    return np.flatnonzero(seen)


def of_pools(recording: Recording, pools: Sequence[int] | Array) -> tuple[Recording, Array]:
    """Return a recording of some pools alone, and its instant for each instant of the whole recording."""
    is_theirs = np.isin(recording.trace.pool, pools)
    state = recording.initial
    segments = np.isin(state.segments.pool, pools)
    number = np.cumsum(segments) - 1
    blocks = state.blocks.rows(segments[state.blocks.segment])
    blocks = replace(blocks, segment=number[blocks.segment].astype(blocks.segment.dtype))
    initial = Snapshot(state.event, state.time_ns, state.segments.rows(segments), blocks)
    found = replace(recording, trace=recording.trace.rows(is_theirs), initial=initial)
    return found, np.concatenate([[0], np.cumsum(is_theirs)])


def of_private(recording: Recording) -> tuple[Recording | None, Array]:
    """Return a recording of the private pools alone, and its instant for each instant of the whole one.

    None where every byte is in the default pool.
    """
    pools = used_pools(recording)
    private = pools[pools > 0]
    return of_pools(recording, private) if len(private) else (None, pools)


def _levels(recording: Recording, pool: int) -> PoolLevels:
    alone, _ = of_pools(recording, [pool])
    _, allocated, active, reserved = levels(alone.trace, alone.initial)
    at = np.flatnonzero(recording.trace.pool == pool) + 1
    return PoolLevels(np.concatenate([[0], at]), allocated, active, reserved)


def _by_id(pool: tuple[int, int]) -> PoolKind:
    """The kind that the id alone shows: a graph without a pool of its own gets (n, 0), others (0, n)."""
    return PoolKind.GRAPH if pool[0] and not pool[1] else PoolKind.UNKNOWN


ANALYSIS = asking("How much memory did each private pool hold, and what made the pool?", private_pools)
