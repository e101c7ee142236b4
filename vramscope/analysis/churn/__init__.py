"""Counts how often memory came from the driver and went back, and releases of the cache for a request."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import UNLIMITED, Settings
from vramscope.analysis.churn.free_segments import free_segment_bytes
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

GAINS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
LOSSES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class Churn:
    """How often memory came from the driver and went back."""

    n_made: int = 0
    """Segments allocated, or ranges mapped."""
    made_bytes: int = 0
    n_released: int = 0
    """Segments freed, or ranges unmapped."""
    released_bytes: int = 0
    n_retries: int = 0
    """Times that the cache was released because a request did not fit, and the driver was asked again at
    once.
    """
    n_ooms: int = 0


def churn_of(recording: Recording) -> Churn:
    """Traffic with the driver over the whole recording; ``driver_calls`` has every call of it."""
    trace = recording.trace
    made, released = (np.isin(trace.action, kinds) for kinds in (GAINS, LOSSES))
    return Churn(
        n_made=int(made.sum()),
        made_bytes=int(trace.size[made].sum()),
        n_released=int(released.sum()),
        released_bytes=int(trace.size[released].sum()),
        n_retries=len(retry_events(recording)),
        n_ooms=int((trace.action == Action.OOM).sum()),
    )


def retry_events(recording: Recording) -> NDArray[Any]:
    """The last event of each run of releases that ends in a request to the driver, or out of memory.

    Releases by ``empty_cache``, and those of only a part of the cache, are not included.
    """
    action, stack_id = recording.trace.action, recording.trace.stack_id
    losses = np.isin(action, LOSSES)
    last = np.flatnonzero(losses[:-1] & ~losses[1:])
    asked_again = last[np.isin(action[last + 1], (*GAINS, Action.OOM))]
    wanted = [
        stack
        for stack in np.unique(stack_id[asked_again]).tolist()
        if any(frame.function == "empty_cache" for frame in recording.stacks.frames(stack))
    ]
    retries = asked_again[~np.isin(stack_id[asked_again], wanted)]
    return retries[_gave_up_all(recording, losses, retries)]


def _gave_up_all(recording: Recording, losses: NDArray[Any], last: NDArray[Any]) -> NDArray[Any]:
    """Whether each run of releases, given its last event, covered the whole cache.

    With ``garbage_collection_threshold`` old segments are released before the driver is asked; with
    ``max_split_size`` first only blocks that are never split. Neither counts as a retry, in torch and here.
    """
    found = np.ones(len(last), dtype="?")
    settings = Settings.from_snapshot(recording.process.allocator, recording.process.torch)
    is_split, collects = settings.max_split_size != UNLIMITED, settings.garbage_collection_threshold > 0
    if not len(last) or not (is_split or collects):
        return found
    found &= free_segment_bytes(recording)[last + 1] == 0
    if is_split:
        begins = np.flatnonzero(losses & ~np.append(False, losses[:-1]))
        begins = begins[np.searchsorted(begins, last, side="right") - 1]
        spans = np.stack([begins, last + 1], axis=1).ravel()
        # No run ends the trace: an event follows each.
        smallest = np.minimum.reduceat(recording.trace.size, spans)[::2]
        failed = recording.trace.action[last + 1] == Action.OOM
        found &= failed | (smallest < settings.max_split_size)
    return found
