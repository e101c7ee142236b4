"""The layout of the allocator's segments, computed from the events and the blocks in use.

Two facts make this a matter of sorting instead of simulating. Free neighbors in a segment are always
merged, so the blocks in use determine the free ones. A segment exists or not whatever created it, so undoing
events from the end is the same as applying them from the beginning with the signs changed.
"""

from dataclasses import dataclass

import numpy as np

from vramscope.allocator.settings import LARGE_SEGMENT, SMALL_SEGMENT
from vramscope.model.snapshot import Blocks, BlockState, Segments
from vramscope.model.table import Array, Int32, Int64, Table, UInt8, UInt64, sums_of
from vramscope.model.trace import Action, Trace


@dataclass(frozen=True, slots=True)
class Used(Table):
    """One row per block in use."""

    address: UInt64
    size: Int64
    """Bytes of the block."""
    requested_size: Int64
    state: UInt8
    """A ``BlockState``, not INACTIVE."""
    stack_id: Int32


def used(blocks: Blocks) -> Used:
    """The blocks of a snapshot that are in use."""
    kept = blocks.rows(blocks.in_use)
    return Used(**{name: getattr(kept, name) for name in Used.DTYPES})


def segments_after(before: Segments, trace: Trace) -> Segments:
    """The segments after the events of *trace*."""
    return _moved(before, trace, backward=False)


def segments_before(after: Segments, trace: Trace) -> Segments:
    """The segments before the events of *trace*, given those after them."""
    return _moved(after, trace, backward=True)


def segments_ever(before: Segments, trace: Trace) -> Segments:
    """Every range that was a segment at some time of *trace*, ranges that overlap or touch are merged."""
    came = np.flatnonzero((trace.action == Action.SEGMENT_ALLOC) | (trace.action == Action.SEGMENT_MAP))
    start = np.concatenate([before.address, trace.address[came]]).astype("i8")
    size = np.concatenate([before.size, trace.size[came]])
    order = np.argsort(start, kind="stable")
    start, size = start[order], size[order]
    reached = np.maximum.accumulate(start + size) if len(start) else start
    begins = np.flatnonzero(np.r_[True, start[1:] > reached[:-1]]) if len(start) else np.zeros(0, "i8")
    end = reached[np.r_[begins[1:], len(start)] - 1] if len(start) else start
    return Segments.of(address=start[begins].astype("u8"), size=end - start[begins])


def _moved(known: Segments, trace: Trace, *, backward: bool) -> Segments:
    cuda = _cuda_malloced(known, trace, backward=backward)
    mapped = _mapped(known, trace, backward=backward)
    found = _joined(cuda, mapped)
    # Only a contradictory record has segments that overlap an earlier one.
    return found.rows(not_overlapping(found.address, found.size))


def _joined(*tables: Segments) -> Segments:
    """All rows of several tables, ordered by address."""
    found = Segments.joined(*tables)
    return found.rows(np.argsort(found.address, kind="stable"))


def not_overlapping(address: Array, size: Array) -> Array:
    """Mask of the ranges (sorted by address) that begin after all earlier ones have ended."""
    start = address.astype("i8")
    reached = np.maximum.accumulate(start + size) if len(start) else start
    kept = np.ones(len(start), dtype="?")
    kept[1:] = start[1:] >= reached[:-1]
    return kept & (size > 0)


def _cuda_malloced(known: Segments, trace: Trace, *, backward: bool) -> Segments:
    """Segments from cudaMalloc: the nearest event in time decides whether one exists at its address."""
    events = np.flatnonzero((trace.action == Action.SEGMENT_ALLOC) | (trace.action == Action.SEGMENT_FREE))
    nearest = events if backward else events[::-1]
    nearest = nearest[np.unique(trace.address[nearest], return_index=True)[1]]
    present = Action.SEGMENT_FREE if backward else Action.SEGMENT_ALLOC
    untouched = ~known.is_expandable & ~np.isin(known.address, trace.address[nearest])
    appeared = _from_events(trace, nearest[trace.action[nearest] == present])
    return _joined(known.rows(untouched), appeared)


def _mapped(known: Segments, trace: Trace, *, backward: bool) -> Segments:
    """Ranges of mapped memory: counts how often each address was mapped minus how often it was unmapped."""
    known = known.rows(known.is_expandable)
    events = np.flatnonzero((trace.action == Action.SEGMENT_MAP) | (trace.action == Action.SEGMENT_UNMAP))
    if not len(known) and not len(events):
        return known
    moved = _from_events(trace, events)
    gained = Action.SEGMENT_UNMAP if backward else Action.SEGMENT_MAP
    sign = np.where(trace.action[events] == gained, 1, -1)
    start = np.concatenate([known.address, moved.address]).astype("i8")
    end = start + np.concatenate([known.size, moved.size])
    weight = np.concatenate([np.ones(len(known), "i8"), sign])
    edge, place = np.unique(np.concatenate([start, end]), return_inverse=True)
    rise = sums_of(place, np.concatenate([weight, -weight]), len(edge) + 1)
    is_mapped = np.cumsum(rise) > 0
    was_mapped = np.r_[False, is_mapped[:-1]]
    begin = edge[np.flatnonzero(is_mapped & ~was_mapped)]
    size = edge[np.flatnonzero(was_mapped & ~is_mapped)] - begin
    # Whatever begins or ends where a range begins is in the same reservation: it has its stream and pool.
    first = np.unique(np.concatenate([start, end]), return_index=True)[1]
    witness = first[np.searchsorted(edge, begin)] % max(len(start), 1)
    properties = {
        name: np.concatenate([getattr(known, name), getattr(moved, name)])[witness]
        for name in ("stream", "pool", "is_large", "stack_id")
    }
    return Segments(
        address=begin.astype("u8"), size=size, is_expandable=np.ones(len(begin), "?"), **properties
    )


def _from_events(trace: Trace, events: Array) -> Segments:
    """Segments as SEGMENT_* events describe them."""
    size, action = trace.size[events], trace.action[events]
    is_born = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
    # Several small units may be unmapped at once; large ones are multiples of another size.
    is_small_unmap = (action == Action.SEGMENT_UNMAP) & (size % LARGE_SEGMENT != 0)
    return Segments(
        address=trace.address[events],
        size=size,
        stream=trace.stream[events],
        pool=trace.pool[events],
        is_large=(size > SMALL_SEGMENT) & ~is_small_unmap,
        is_expandable=np.zeros(len(events), dtype="?"),
        stack_id=np.where(is_born, trace.stack_id[events], 0).astype("i4"),
    )


def room_after(segments: Segments, address: Array, others: Array) -> Array:
    """Bytes from each address to the next of *others* above it (sorted) or to the end of its segment.

    0 for an address that no segment holds.
    """
    start, point = segments.address.astype("i8"), address.astype("i8")
    owner = _owner(segments, point)
    limit = np.where(owner >= 0, (start + segments.size)[owner] if len(start) else 0, point)
    above = np.searchsorted(others.astype("i8"), point, side="right")
    following = np.append(others.astype("i8"), np.iinfo("i8").max)[above]
    return np.minimum(limit, following) - point


def _owner(segments: Segments, point: Array) -> Array:
    """The row of the segment that holds each address, −1 where none does."""
    start = segments.address.astype("i8")
    row = np.searchsorted(start, point, side="right") - 1
    if not len(start):
        return row
    return np.where((row >= 0) & (point - start[row] < segments.size[row]), row, -1)


def blocks_of(segments: Segments, in_use: Used) -> Blocks:
    """The blocks of the segments: those in use, and the free ones between them.

    A block that no segment holds whole, or that overlaps an earlier one, is left out.
    """
    in_use = in_use.rows(np.argsort(in_use.address, kind="stable"))
    in_use = in_use.rows(is_held(segments, in_use.address, in_use.size))
    in_use = in_use.rows(not_overlapping(in_use.address, in_use.size))
    owner = _owner(segments, in_use.address.astype("i8"))
    # A free block may begin where a segment does or where a block in use ends.
    start = np.concatenate([segments.address.astype("i8"), in_use.address.astype("i8") + in_use.size])
    segment = np.concatenate([np.arange(len(segments)), owner])
    segment_end = (segments.address.astype("i8") + segments.size)[segment]
    next_used = np.append(in_use.address.astype("i8"), np.iinfo("i8").max)
    following = next_used[np.searchsorted(in_use.address.astype("i8"), start)]
    size = np.minimum(following, segment_end) - start
    is_free = size > 0
    n_free = int(np.count_nonzero(is_free))
    columns = {
        "segment": (owner, segment[is_free]),
        "address": (in_use.address, start[is_free].astype("u8")),
        "size": (in_use.size, size[is_free]),
        "requested_size": (in_use.requested_size, np.zeros(n_free)),
        "state": (in_use.state, np.full(n_free, BlockState.INACTIVE)),
        "stack_id": (in_use.stack_id, np.zeros(n_free)),
    }
    order = np.argsort(np.concatenate(columns["address"]), kind="stable")
    joined = {
        name: np.concatenate([part.astype(Blocks.DTYPES[name]) for part in parts])[order]
        for name, parts in columns.items()
    }
    return Blocks(**joined)


def is_held(segments: Segments, address: Array, size: Array) -> Array:
    """Mask of the ranges that lie in one segment."""
    start = address.astype("i8")
    owner = _owner(segments, start)
    if not len(segments):
        return np.zeros(len(start), dtype="?")
    end = (segments.address.astype("i8") + segments.size)[owner]
    return (owner >= 0) & (start + size <= end)
