"""States at regular distances of a trace, so that a part of it is replayed from the nearest state only."""

from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.allocator.state_index import StateIndex
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Snapshot

DISTANCE = 1 << 17
"""Events between two checkpoints: replaying this many takes a twentieth of a second."""

_FEWEST = 8
"""Least number of checkpoints: a shorter trace is replayed from its start in a tenth of a second."""


def checkpoints(recording: Recording, *, distance: int = DISTANCE) -> tuple[Snapshot, ...]:
    """States at every *distance*-th instant of a long trace but the first. 0.1 s per million events."""
    n_events = len(recording.trace)
    if n_events < _FEWEST * distance:
        return ()
    index = StateIndex(recording.trace, recording.initial)
    return tuple(index.at(k) for k in range(distance, n_events, distance))


def state_from_nearest(recording: Recording, k: int) -> Snapshot:
    """Segments and blocks at instant *k*; reads no event before the nearest checkpoint."""
    known = (recording.initial, *recording.checkpoints)
    start = max((state for state in known if state.event <= k), key=lambda state: state.event)
    if start.event == k:
        return start
    between = recording.trace.rows(slice(start.event, k))
    found = state_at(between, start, k - start.event, Settings())
    return Snapshot(event=k, time_ns=found.time_ns, segments=found.segments, blocks=found.blocks)
