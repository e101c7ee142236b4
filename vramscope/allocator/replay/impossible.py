"""Removes impossible events of a record from the count, so that no total falls below zero.

A complete record has none; it is then only checked and left unchanged.
"""

from dataclasses import replace

import numpy as np

from vramscope.allocator.layout import segments_ever
from vramscope.allocator.lives import BlockLives
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note, counted
from vramscope.model.snapshot import Snapshot
from vramscope.model.table import Array, stretches
from vramscope.model.trace import Action, Trace


def made_possible(
    trace: Trace, initial: Snapshot, found: BlockLives, unended: Array
) -> tuple[Trace, list[Note]]:
    """Correct *trace* where it is impossible, and return notes on the corrections.

    *found* are the lives of its blocks, *unended* their ``ended_by_next``; ``block_size`` is filled in.
    """
    trace, found, notes = _with_completions(trace, found, unended)
    trace, more = _with_own_sizes(trace, found)
    trace, less = _within_reserved(trace, initial, found)
    return trace, notes + more + less


def _with_completions(
    trace: Trace, found: BlockLives, unended: Array
) -> tuple[Trace, BlockLives, list[Note]]:
    """Add missing completions: a block whose address is allocated again counts as complete from its request
    on, as nothing shows the moment.
    """
    rows = unended[found.request[unended] >= 0]
    events = found.request[rows]
    if not len(events):
        return trace, found, []
    end = found.end.copy()
    end[rows] = events
    action = trace.action.copy()
    action[events] = Action.FREE_COMPLETED
    text = (
        f"{len(events)} blocks were allocated again although no event completes their free: "
        "counted as complete when they were freed"
    )
    note = Note(NoteCode.NO_COMPLETION, text, len(events))
    return replace(trace, action=action), replace(found, end=end), [note]


def _with_own_sizes(trace: Trace, found: BlockLives) -> tuple[Trace, list[Note]]:
    """Correct the size of a free that differs from the size of its allocation."""
    if not any(_sizes_differ(trace, found, at) for at in stretches(len(found))):
        return trace, []
    size = trace.size.copy()
    # For a block from before the record its first event gives the size.
    for events in (found.request, found.end):
        size[events[events >= 0]] = found.requested_size[events >= 0]
    n_other = int(np.count_nonzero(size != trace.size))
    text = f"{n_other} frees name another size than their allocation: what was allocated counts"
    return replace(trace, size=size), [Note(NoteCode.SIZE_CONTRADICTION, text, n_other)]


def _sizes_differ(trace: Trace, found: BlockLives, at: slice) -> bool:
    """Whether a free of the lives *at* differs in size from its allocation."""
    requested, both = found.requested_size[at], (found.request[at], found.end[at])
    return any(bool((trace.size[events] != requested)[events >= 0].any()) for events in both)


def _within_reserved(trace: Trace, initial: Snapshot, found: BlockLives) -> tuple[Trace, list[Note]]:
    """Do not count blocks and segment frees for which the segments have no room."""
    has_segments = bool(len(segments_ever(initial.segments, trace)))
    if not _goes_beyond(trace, initial, has_segments):
        return trace, []
    blocks, segments = _beyond(trace, initial, found, has_segments)
    block_size = trace.block_size.copy()
    block_size[segments] = 0
    for column in (found.alloc, found.request, found.end):
        block_size[column[blocks][column[blocks] >= 0]] = 0
    return replace(trace, block_size=block_size), _notes(len(blocks), len(segments))


def _notes(n_blocks: int, n_segments: int) -> list[Note]:
    freed = f"{n_segments} segments were given back that were not there or held blocks: not counted"
    no_room = f"{n_blocks} blocks exceed what the segments had left: not counted"
    return [
        *counted(NoteCode.SEGMENT_CONTRADICTION, n_segments, freed),
        *counted(NoteCode.NO_ROOM, n_blocks, no_room),
    ]


def _goes_beyond(trace: Trace, initial: Snapshot, has_segments: bool) -> bool:
    """Whether more is in use than reserved at any time; without segments, whether reserved is below zero."""
    unused = _unused(initial, has_segments)
    for part in stretches(len(trace)):
        change = _change(trace.action[part], trace.block_size[part], has_segments)
        levels = np.cumsum(change)
        if unused + int(levels.min()) < 0:
            return True
        unused += int(levels[-1])
    return False


def _change(action: Array, size: Array, has_segments: bool) -> Array:
    """Each event's change of the bytes that are reserved and unused."""
    sign = np.zeros(9, dtype="i1")
    sign[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = 1
    sign[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = -1
    if has_segments:
        sign[Action.ALLOC], sign[Action.FREE_COMPLETED] = -1, 1
    return sign[action] * size


def _beyond(
    trace: Trace, initial: Snapshot, found: BlockLives, has_segments: bool
) -> tuple[list[int], list[int]]:
    """The lives for which there was no room, and the segment frees that are impossible at their time."""
    life_of = np.full(len(trace), -1, dtype="i8")
    life_of[found.alloc[found.alloc >= 0]] = np.flatnonzero(found.alloc >= 0)
    life_of[found.end[found.end >= 0]] = np.flatnonzero(found.end >= 0)
    change = _change(trace.action, trace.block_size, has_segments)
    unused = _unused(initial, has_segments)
    blocks: set[int] = set()
    segments = []
    for event in np.flatnonzero(change).tolist():
        life, more = int(life_of[event]), int(change[event])
        if life in blocks:
            continue
        if unused + more >= 0:
            unused += more
        elif life >= 0:
            blocks.add(life)
        else:
            segments.append(event)
    return sorted(blocks), segments


def _unused(state: Snapshot, has_segments: bool) -> int:
    return state.reserved_bytes - (int(state.blocks.size[state.blocks.in_use].sum()) if has_segments else 0)
