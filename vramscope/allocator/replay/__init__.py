"""Reconstructs the block of every event, and the state before the first event.

torch's record gives the address and the *requested* size of every allocation. The size of its block follows
from the rules and from what was free at that address then. Nothing is predicted: an allocation takes the free
block that begins at its address, whatever the search would have found.
"""

from dataclasses import dataclass, replace

import numpy as np

from vramscope.allocator.layout import (
    Used,
    blocks_of,
    is_held,
    room_after,
    segments_after,
    segments_before,
    segments_ever,
    used,
)
from vramscope.allocator.lives import BlockLives, ended_by_next, ends_at, is_among, lives, stable_order
from vramscope.allocator.replay.impossible import made_possible
from vramscope.allocator.replay.large_pool import Start, followed
from vramscope.allocator.settings import SMALL_LIMIT, Settings
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note, counted
from vramscope.model.snapshot import BlockState, Segments, Snapshot
from vramscope.model.table import Array, stretches
from vramscope.model.trace import Action, Trace
from vramscope.units import format_bytes


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """A trace with the size of every block, and the state from which it starts."""

    trace: Trace
    """The trace; ``block_size`` is 0 for an event that contradicts the others and is not counted."""
    initial: Snapshot
    notes: tuple[Note, ...] = ()


def reconstruct(
    trace: Trace,
    final: Snapshot | None,
    settings: Settings,
    pools: tuple[tuple[int, int], ...] = ((0, 0),),  # noqa: ARG001 no rule depends on them yet
) -> Reconstruction:
    """Fill in ``block_size``, and rewind from *final* to the state before the first event.

    Never raises on a contradictory record: impossible events are not counted, and a note says so. Takes about
    0.3 s per million events.

    Where *final*, the state after the last event, is None, the initial state has only the blocks that the
    trace frees. *pools* are torch's pool ids by index.
    """
    after = final or Snapshot(event=len(trace))
    segments = segments_before(after.segments, trace)
    # torch < 2.3 exports no settings: the record shows expandable segments.
    is_expandable = bool(after.segments.is_expandable.any() or (trace.action == Action.SEGMENT_MAP).any())
    settings = replace(settings, expandable_segments=settings.expandable_segments or is_expandable)
    found = BlockLives.joined(*lives(trace, is_filled_in=False))
    found = found.rows(stable_order(found.address))
    # Blocks in use at the end that the trace never mentions: they existed at the beginning.
    at_end = used(after.blocks)
    older = at_end.rows(~is_among(at_end.address, found.address))
    sizes, notes = _block_sizes(found, (trace, segments, older), settings)
    if final is not None:
        notes += _settle(found, sizes, used(final.blocks))
    blocks = blocks_of(segments, Used.joined(_at_start(found, sizes), older))
    initial = Snapshot(segments=segments, blocks=blocks)
    unended = ended_by_next(trace, found.end)
    notes += _drop_homeless(found, sizes, initial, trace) + _contradictions(trace, found, unended)
    filled = replace(trace, block_size=_by_event(trace, found, sizes, unended))
    filled, impossible = made_possible(filled, initial, found, unended)
    return Reconstruction(filled, initial, (*notes, *impossible))


def state_at(trace: Trace, initial: Snapshot, k: int, settings: Settings) -> Snapshot:  # noqa: ARG001
    """Segments and blocks at instant *k* of a trace whose ``block_size`` is filled in.

    Sorts the first k events: about 0.5 s per million. Start from a nearer state where that matters.
    """
    past = trace.rows(slice(0, k))
    older = used(initial.blocks)
    freed, fresh = lives(past)
    request, end = ends_at(older.address, freed)
    state = np.where(request < 0, older.state, BlockState.PENDING_FREE).astype("u1")
    older = replace(older, state=state).rows(end < 0)
    fresh = fresh.rows(fresh.end < 0)
    born = Used(
        address=fresh.address,
        size=past.block_size[fresh.alloc],
        requested_size=fresh.requested_size,
        state=np.where(fresh.request < 0, BlockState.ALLOCATED, BlockState.PENDING_FREE).astype("u1"),
        stack_id=past.stack_id[fresh.alloc],
    )
    segments = segments_after(initial.segments, past)
    blocks = blocks_of(segments, Used.joined(older, born))
    return Snapshot(event=k, time_ns=int(past.time_ns[-1]) if k else 0, segments=segments, blocks=blocks)


def _at_start(found: BlockLives, sizes: Array) -> Used:
    """Blocks in use at the beginning that the trace frees. Their allocating stack is unknown."""
    freed, size = found.rows(found.alloc < 0), sizes[found.alloc < 0]
    # A block without FREE_REQUESTED was freed before, unless the record leaves them out (skip_actions).
    leaves_out = bool(((found.alloc >= 0) & (found.end >= 0) & (found.request < 0)).any())
    is_pending = (freed.request < 0) & (not leaves_out)
    return Used(
        address=freed.address,
        size=size,
        requested_size=freed.requested_size,
        state=np.where(is_pending, BlockState.PENDING_FREE, BlockState.ALLOCATED).astype("u1"),
        stack_id=np.zeros(len(freed), dtype="i4"),
    )


def _settle(found: BlockLives, sizes: Array, at_end: Used) -> list[Note]:
    """Use the snapshot's sizes for blocks in use at the end; note where they differ from the computed."""
    rows = np.flatnonzero(found.end < 0)
    order = np.argsort(at_end.address, kind="stable")
    place = np.searchsorted(at_end.address, found.address[rows], sorter=order)
    place = order[np.minimum(place, len(order) - 1)] if len(order) else place
    is_there = is_among(found.address[rows], at_end.address[order])
    rows, place = rows[is_there], place[is_there]
    is_same = at_end.requested_size[place] == found.requested_size[rows]
    is_same &= at_end.size[place] >= found.requested_size[rows]
    rows, place = rows[is_same], place[is_same]
    n_other = int(np.count_nonzero(sizes[rows] != at_end.size[place]))
    sizes[rows] = at_end.size[place]
    mentioned = int(np.count_nonzero(is_among(at_end.address, found.address)))
    n_unlike = int(np.count_nonzero(found.end < 0)) + mentioned - 2 * len(rows)
    other = f"{n_other} blocks have another size than torch's rules give: private pools or changed settings"
    unlike = f"the events leave {n_unlike} blocks otherwise than the snapshot says: some events are missing"
    return [
        *counted(NoteCode.OTHER_SIZE, n_other, other),
        *counted(NoteCode.END_DIFFERS, n_unlike, unlike),
    ]


def _drop_homeless(found: BlockLives, sizes: Array, initial: Snapshot, trace: Trace) -> list[Note]:
    """Do not count blocks that lie in no segment, so that active never exceeds reserved."""
    older, segments = np.sort(used(initial.blocks).address), segments_ever(initial.segments, trace)
    n_lost = n_bytes = 0
    for at in stretches(len(found)):
        is_older, address, size = found.alloc[at] < 0, found.address[at], sizes[at]
        is_lost = is_older & ~is_among(address, older)
        if len(segments):  # a record without any segment has at least its allocations
            is_lost |= ~is_older & ~is_held(segments, address, size)
        n_lost += int(np.count_nonzero(is_lost))
        n_bytes += int(size[is_lost].sum())
        size[is_lost] = 0
    text = f"{n_lost} blocks of {format_bytes(n_bytes)} in all lie in no known segment: not counted"
    return counted(NoteCode.NO_SEGMENT, n_lost, text)


def _contradictions(trace: Trace, found: BlockLives, unended: Array) -> list[Note]:
    """A note on events that belong to no life."""
    n_used = sum(int(np.count_nonzero(column >= 0)) for column in (found.alloc, found.request, found.end))
    n_used -= len(unended)
    n_lost = int(np.count_nonzero(trace.action <= Action.FREE_COMPLETED)) - n_used
    what = "events contradict the others (freed twice, or allocated where a block lives): not counted"
    return counted(NoteCode.CONTRADICTION, n_lost, f"{n_lost} {what}")


def _doubts(n_unsure: int, n_strays: int) -> list[Note]:
    unsure = (
        f"{n_unsure} blocks from before the recording may have been up to 1 MiB larger each: "
        "they were freed before anything showed their end"
    )
    strays = f"{n_strays} blocks were allocated where nothing was free: events before them are missing"
    return [*counted(NoteCode.UNSURE_SIZE, n_unsure, unsure), *counted(NoteCode.GAP, n_strays, strays)]


def _by_event(trace: Trace, found: BlockLives, sizes: Array, unended: Array) -> Array:
    """The block size of each event; an end that is the next ALLOC belongs to the next life."""
    block_size = np.zeros(len(trace), "i8")
    block_size[trace.of_segments] = trace.size[trace.of_segments]
    is_own = found.end >= 0
    is_own[unended] = False
    for at in stretches(len(found)):
        for events, is_known in (
            (found.alloc[at], found.alloc[at] >= 0),
            (found.request[at], found.request[at] >= 0),
            (found.end[at], is_own[at]),
        ):
            block_size[events[is_known]] = sizes[at][is_known]
    return block_size


def _block_sizes(
    found: BlockLives, given: tuple[Trace, Segments, Used], settings: Settings
) -> tuple[Array, list[Note]]:
    """Block size of each life, and notes on doubtful ones.

    Small and expandable blocks are split exactly. A large one keeps a remainder of up to 1 MiB: whether
    there was one depends on the free memory after it, so these are followed one by one.
    """
    trace, segments, older = given
    sizes = settings.rounded_all(found.requested_size)
    large = np.flatnonzero(sizes > SMALL_LIMIT)
    if settings.expandable_segments or not len(large):
        return sizes, []
    unsure = _grow_to_neighbours(found, sizes, (segments, older), settings)
    free = blocks_of(segments, Used.joined(_at_start(found, sizes), older))
    free = free.rows(free.state == BlockState.INACTIVE)
    unsure = np.searchsorted(large, unsure)
    start = Start(sizes[large], unsure, segments.address, free.address, free.size)
    sizes[large], n_unsure, n_strays = followed(trace, found, large, start, settings)
    return sizes, _doubts(n_unsure, n_strays)


def _grow_to_neighbours(
    found: BlockLives, sizes: Array, given: tuple[Segments, Used], settings: Settings
) -> Array:
    """Write the sizes of large blocks that predate the trace to *sizes*; return the rows that stay unsure.

    All large blocks are larger than 1 MiB, so a smaller gap after one belongs to it. With a wider gap the
    end shows only when a block is allocated in the gap.
    """
    segments, older = given
    rows = np.flatnonzero((found.alloc < 0) & (sizes > SMALL_LIMIT))
    others = np.unique(np.concatenate([found.address[found.alloc < 0], older.address]))
    room = room_after(segments, found.address[rows], others)
    need = sizes[rows]
    is_whole = (room >= need) & ((room - need <= SMALL_LIMIT) | (need >= settings.max_split_size))
    sizes[rows[is_whole]] = room[is_whole]
    return rows[(room > need) & ~is_whole]
