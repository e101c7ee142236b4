"""Finds a batch that grows: each step allocates as many blocks as the one before, but larger ones.

It counts requested bytes: the allocator rounds blocks, so blocks of an evenly growing batch grow in leaps.
"""

from dataclasses import dataclass

import numpy as np

from vramscope.analysis.leaks.growth import growth
from vramscope.analysis.leaks.levels import LeakingLine, Levels
from vramscope.analysis.timeline import timeline
from vramscope.model.marks import Phase
from vramscope.model.table import Array
from vramscope.steps.innermost import phases_of

LEAST_SHARE_OF_BATCH = 0.5
"""The least share of a step's bytes that must lie in blocks that grow: activations and inputs do, the
parameters' gradients do not."""
MOST_SHARE_OF_BACKWARD = 0.9
"""If backward and optimizer allocate more than this share of the bytes that grow, a gradient grows. For each
gradient of an activation a forward keeps at least one tensor, so the share of a batch is near one half."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The allocations of a step that grow with its batch."""

    rows: Array
    """Allocations whose call grows from step to step."""
    source: Array
    """Rows of the first such call of a step, which the others follow from."""
    lines: tuple[LeakingLine, ...]
    """Lines that allocate them, with requested bytes per step; the source first, then most first."""
    peak_bytes: Array
    """The most that was allocated in each step, in bytes."""
    is_sure: bool
    """Whether phases were recorded; without them a growing gradient looks the same."""


def growing_batch(levels: Levels) -> Batch | None:
    """Return the calls whose blocks grow; None if no batch grows.

    A batch grows if every step has the same number of blocks and most bytes lie in blocks that get larger.
    """
    begin = int(levels.recording.steps.start_event[0]) if len(levels.recording.steps) else 0
    event, n_iterations = levels.found.alloc_event, len(levels.at)
    rows = np.flatnonzero((event >= min(begin, levels.at[0])) & (levels.born < n_iterations))
    # Calls are distinguished by the whole stack, not the line: a program may write a step in one line.
    stack_id = levels.found.stack_id[rows]
    occurs = np.zeros(len(levels.recording.stacks), "?")
    occurs[stack_id] = True
    call = (np.cumsum(occurs) - 1)[stack_id]
    volume, number = _per_iteration(levels, rows, call)
    total = volume.sum(axis=0)
    if growth(total) is None or growth(number.sum(axis=0)) is not None:
        return None
    busy = volume[:, -1] > 0
    grows = np.array(
        [
            is_busy and growth(volume[i]) is not None and growth(number[i]) is None
            for i, is_busy in enumerate(busy)
        ],
        bool,
    )
    if volume[grows, -1].sum() < LEAST_SHARE_OF_BATCH * total[-1]:
        return None
    mine = grows[call]
    last = rows[mine & (levels.born[rows] == n_iterations - 1)]
    if not len(last) or _is_of_backward(levels, last):
        return None
    source = rows[levels.found.stack_id[rows] == levels.found.stack_id[last[0]]]
    found = rows[mine]
    return Batch(
        found, source, _lines(levels, found, source), _peaks(levels, begin), len(levels.recording.phases) > 0
    )


def _per_iteration(levels: Levels, rows: Array, group: Array) -> tuple[Array, Array]:
    """Return requested bytes and number of blocks by group and iteration."""
    shape = (int(group.max(initial=-1)) + 1, len(levels.at))
    volume, number = np.zeros(shape, "i8"), np.zeros(shape, "i8")
    np.add.at(volume, (group, levels.born[rows]), levels.found.size[rows])
    np.add.at(number, (group, levels.born[rows]), 1)
    return volume, number


def _is_of_backward(levels: Levels, rows: Array) -> bool:
    """Return whether backward makes most of the growth: then a gradient grows, not a batch."""
    recording, event = levels.recording, levels.found.alloc_event[rows]
    row = phases_of(recording.phases, len(recording.trace))[event]
    phase = np.append(recording.phases.phase, Phase.OTHER)[row]
    later = np.isin(phase, (Phase.BACKWARD, Phase.OPTIMIZER))
    size = levels.found.size[rows]
    return bool(size[later].sum() > MOST_SHARE_OF_BACKWARD * size.sum())


def _lines(levels: Levels, rows: Array, source: Array) -> tuple[LeakingLine, ...]:
    places, group = np.unique(levels.place[rows], return_inverse=True)
    volume, _ = _per_iteration(levels, rows, group.reshape(-1))
    found = [(int(place), growth(volume[i])) for i, place in enumerate(places.tolist())]
    lines = [(place, rise.bytes_per_step / levels.stride) for place, rise in found if rise is not None]
    first = int(levels.place[source[0]])
    lines.sort(key=lambda line: (line[0] != first, levels.places[line[0]][0] is None, -line[1]))
    return tuple(LeakingLine(*levels.places[place], rate) for place, rate in lines)


def _peaks(levels: Levels, begin: int) -> Array:
    allocated = timeline(levels.recording).allocated_bytes
    starts = np.r_[min(begin, levels.at[0] - 1), levels.at[:-1]]
    return np.maximum.reduceat(allocated[: levels.at[-1] + 1], starts)
