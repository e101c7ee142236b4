"""Tracks the largest free block of each pool and stream over time."""

from dataclasses import dataclass

import numpy as np

from vramscope.allocator.state_index import StateIndex
from vramscope.analysis import Analysis
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.table import Bool, Int32, Int64, Table, UInt64
from vramscope.model.trace import Action

_MOST_INSTANTS = 128
_ASKS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM)


@dataclass(frozen=True, slots=True)
class LargestFree(Table):
    """One row per instant and kind of reserved memory, in order of the instants.

    Each row is exact. Between two sampled instants the largest block may have had any size.
    """

    instant: Int64
    time_ns: Int64
    pool: Int32
    """Index into ``Recording.pools``."""
    stream: UInt64
    is_large: Bool
    """Whether the blocks serve requests above 1 MiB; these and smaller ones never serve one another."""
    largest_bytes: Int64
    """Bytes of the largest free block: a longer request goes to the driver. 0 where all is in use."""
    free_bytes: Int64
    """Bytes of all free blocks together."""
    n_free: Int64


def largest_free(recording: Recording, instants: list[int] | None = None) -> LargestFree:
    """The largest free block of each pool, stream and size class at several instants.

    Takes 0.1 s per million events, and 1 ms per instant.

    Parameters
    ----------
    instants
        Numbers of events before each moment; None chooses up to 128: the last 64 at which the driver was
        asked for memory or an allocation failed, the others evenly spread.

    Returns
    -------
    LargestFree
        One row per instant and kind of memory, in bytes.

    Raises
    ------
    UsageError
        If an instant lies outside of the recording.
    """
    n_events = len(recording.trace)
    chosen = _moments(recording) if instants is None else instants
    if not all(0 <= instant <= n_events for instant in chosen):
        raise UsageError(f"this recording has instants 0 to {n_events}")
    index = StateIndex(recording.trace, recording.initial)
    parts = [of_state(index.at(instant)) for instant in chosen]
    columns = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)], dtype=dtype)
        for name, dtype in LargestFree.DTYPES.items()
    }
    return LargestFree(**columns)


def _moments(recording: Recording) -> list[int]:
    n_events = len(recording.trace)
    asked = np.flatnonzero(np.isin(recording.trace.action, _ASKS))[-_MOST_INSTANTS // 2 :]
    even = np.linspace(0, n_events, _MOST_INSTANTS - len(asked)).astype("i8")
    # The event number as an instant: the state that the request found.
    return np.unique(np.concatenate([asked, even])).tolist()


def of_state(state: Snapshot) -> LargestFree:
    """The same rows for one allocator state that is known already."""
    segments, blocks = state.segments, state.blocks
    kinds = np.stack([segments.pool, segments.stream, segments.is_large], axis=1)
    known, kind = np.unique(kinds.astype("u8"), axis=0, return_inverse=True)
    is_free = blocks.state == BlockState.INACTIVE
    size, of = blocks.size[is_free], kind.reshape(-1)[blocks.segment[is_free]]
    largest, free = np.zeros(len(known), "i8"), np.zeros(len(known), "i8")
    np.maximum.at(largest, of, size)
    np.add.at(free, of, size)
    return LargestFree.of(
        instant=np.full(len(known), state.event),
        time_ns=np.full(len(known), state.time_ns),
        pool=known[:, 0],
        stream=known[:, 1],
        is_large=known[:, 2],
        largest_bytes=largest,
        free_bytes=free,
        n_free=np.bincount(of, minlength=len(known)),
    )


ANALYSIS = Analysis(
    "largest_free", "How large was the largest free block of each pool and stream, over time?", largest_free
)
