"""Counts how often memory came from the driver and went back, and releases of the cache for a request."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import UNLIMITED, Settings
from vramscope.analysis import Analysis
from vramscope.analysis.churn.free_segments import free_segment_bytes
from vramscope.analysis.step_and_phase import steps_of
from vramscope.model.recording import Recording
from vramscope.model.table import Int64, Table
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


@dataclass(frozen=True, slots=True)
class ChurnOverTime(Table):
    """One row per step, and a first row for events outside of all steps."""

    step: Int64
    """Row of ``Recording.steps``; −1 outside of every step."""
    n_made: Int64
    made_bytes: Int64
    n_released: Int64
    released_bytes: Int64
    n_retries: Int64
    """Retries; each stalls the device: the whole cache is released before the driver is asked again."""
    n_ooms: Int64
    retries: tuple[int, ...] = ()
    """The instants right after the releases of each retry."""

    @property
    def total(self) -> Churn:
        """The sums over all rows."""
        return Churn(**{name: int(column.sum()) for name, column in self.columns() if name != "step"})


def churn(recording: Recording) -> ChurnOverTime:
    """Traffic with the driver, step by step; 10 ms per million events.

    The rows sum up to the churn that ``fragmentation`` gives for the whole recording.
    """
    trace, steps = recording.trace, recording.steps
    n_rows = len(steps) + 1

    def counted(events: NDArray[Any]) -> NDArray[Any]:
        return np.bincount(steps_of(steps, events) + 1, minlength=n_rows)

    def summed(events: NDArray[Any]) -> NDArray[Any]:
        total = np.zeros(n_rows, dtype="i8")
        np.add.at(total, steps_of(steps, events) + 1, trace.size[events])
        return total

    made, released = (np.flatnonzero(np.isin(trace.action, kinds)) for kinds in (GAINS, LOSSES))
    retries = retry_events(recording)
    return ChurnOverTime.of(
        step=np.arange(n_rows) - 1,
        n_made=counted(made),
        made_bytes=summed(made),
        n_released=counted(released),
        released_bytes=summed(released),
        n_retries=counted(retries),
        n_ooms=counted(np.flatnonzero(trace.action == Action.OOM)),
        retries=tuple((retries + 1).tolist()),
    )


def churn_of(recording: Recording) -> Churn:
    """Traffic with the driver over the whole recording."""
    return churn(recording).total


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


ANALYSIS = Analysis(
    "churn",
    "How often did memory come from the driver and go back, step by step, and when was the cache released?",
    churn,
)
