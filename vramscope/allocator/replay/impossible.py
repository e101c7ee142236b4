"""What of a record cannot have been? It goes uncounted, so that no total falls below zero.

A record that is whole has nothing of this: then this file only looks, and changes nothing.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.layout import segments_ever
from vramscope.allocator.lives import Lives
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.trace import Action, Trace

_STRETCH = 1 << 16
"""Events at a time: what is needed in between stays in the processor's cache."""


def made_possible(trace: Trace, initial: Snapshot, found: Lives) -> tuple[Trace, list[Note]]:
    """*trace* (its ``block_size`` filled in) without what cannot have been, and what that was."""
    trace, found, notes = _with_completions(trace, found)
    trace, more = _with_own_sizes(trace, found)
    trace, less = _within_reserved(trace, initial, found)
    return trace, notes + more + less


def _with_completions(trace: Trace, found: Lives) -> tuple[Trace, Lives, list[Note]]:
    """A block whose address was handed out again was complete before: it then counts as complete from
    its request on, as nothing tells the moment."""
    ended = np.flatnonzero((found.end >= 0) & (found.request >= 0))
    rows = ended[trace.action[found.end[ended]] == Action.ALLOC]
    events = found.request[rows]
    if not len(events):
        return trace, found, []
    end = found.end.copy()
    end[rows] = events
    action = trace.action.copy()
    action[events] = Action.FREE_COMPLETED
    text = (
        f"{len(events)} blocks were allocated again although no event completes their free: "
        "the free counts as complete when it was requested"
    )
    note = Note(NoteCode.NO_COMPLETION, text, len(events))
    return replace(trace, action=action), replace(found, end=end), [note]


def _with_own_sizes(trace: Trace, found: Lives) -> tuple[Trace, list[Note]]:
    """A free that names another size than its allocation frees what was allocated."""
    size = trace.size.copy()
    # Of a block from before the record its first event tells the size.
    for column in (found.request, found.end):
        size[column[column >= 0]] = found.requested_size[column >= 0]
    n_other = int(np.count_nonzero(size != trace.size))
    if not n_other:
        return trace, []
    text = f"{n_other} frees name another size than their allocation: what was allocated counts"
    return replace(trace, size=size), [Note(NoteCode.SIZE_CONTRADICTION, text, n_other)]


def _within_reserved(trace: Trace, initial: Snapshot, found: Lives) -> tuple[Trace, list[Note]]:
    """Blocks never take more than the segments have: what would go beyond counts for nothing."""
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
    notes = []
    if n_segments:
        text = f"{n_segments} segments were given back that were not there or held blocks: not counted"
        notes.append(Note(NoteCode.SEGMENT_CONTRADICTION, text, n_segments))
    if n_blocks:
        text = f"{n_blocks} blocks exceed what the segments had left: not counted"
        notes.append(Note(NoteCode.NO_ROOM, text, n_blocks))
    return notes


def _goes_beyond(trace: Trace, initial: Snapshot, has_segments: bool) -> bool:
    """Whether ever more is in use than reserved; without any segment known, less reserved than nothing."""
    unused = _reserved(initial) - (_active(initial) if has_segments else 0)
    for first in range(0, len(trace), _STRETCH):
        part = slice(first, first + _STRETCH)
        change = _change(trace.action[part], trace.block_size[part], has_segments)
        levels = np.cumsum(change)
        if unused + int(levels.min()) < 0:
            return True
        unused += int(levels[-1])
    return False


def _change(action: NDArray[Any], size: NDArray[Any], has_segments: bool) -> NDArray[Any]:
    """Of the bytes reserved and unused, by each event."""
    sign = np.zeros(9, dtype="i1")
    sign[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = 1
    sign[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = -1
    if has_segments:
        sign[Action.ALLOC], sign[Action.FREE_COMPLETED] = -1, 1
    change: NDArray[Any] = sign[action] * size
    return change


def _beyond(trace: Trace, initial: Snapshot, found: Lives, has_segments: bool) -> tuple[list[int], list[int]]:
    """The lives for which there was no room, and the events of segments that cannot have gone then."""
    life_of = np.full(len(trace), -1, dtype="i8")
    life_of[found.alloc[found.alloc >= 0]] = np.flatnonzero(found.alloc >= 0)
    life_of[found.end[found.end >= 0]] = np.flatnonzero(found.end >= 0)
    change = _change(trace.action, trace.block_size, has_segments)
    unused = _reserved(initial) - (_active(initial) if has_segments else 0)
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


def _reserved(state: Snapshot) -> int:
    return int(state.segments.size.sum())


def _active(state: Snapshot) -> int:
    return int(state.blocks.size[state.blocks.state != BlockState.INACTIVE].sum())
