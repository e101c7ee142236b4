"""What was the allocator's state at any moment of a run that is still being written?

A trace that grows is a row of chapters, each with the state at its start. A chapter that is full is never
looked at again until somebody asks for an instant in it; new events touch only the last one.
"""

from bisect import bisect_right

import numpy as np

from vramscope.allocator.index import StateIndex
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Trace

_CHAPTER = 1 << 15
"""Events of a chapter, at least: its index is made in 10 ms."""


class GrowingIndex:
    """``extend`` takes new events; ``at(k)`` equals that of a ``StateIndex`` of all so far.

    Memory: the events, and one state per chapter.
    """

    __slots__ = ("_chapters", "_index", "_indexed", "_n_events", "_parts", "_starts", "_states")

    def __init__(self, initial: Snapshot) -> None:
        self._starts = [initial.event]
        """The first instant of each chapter."""
        self._chapters: list[Trace] = []
        """The full ones."""
        self._parts: list[Trace] = []
        """Of the last chapter, as they came."""
        self._n_events = initial.event
        self._index = StateIndex(Trace.of(), initial)
        """Of the chapter asked for last."""
        self._indexed = (0, 0)
        """Which chapter that is, and how many events it had."""
        self._states = [initial]

    def __len__(self) -> int:
        """The last instant known."""
        return self._n_events

    def extend(self, part: Trace) -> Snapshot:
        """The next events; gives the state before them. Its time does not depend on what lies behind.

        With that state the part is a recording of its own, which every analysis takes:
        ``timeline(Recording(trace=part, initial=before))``.
        """
        before = self.at(self._n_events)
        self._parts.append(part)
        self._n_events += len(part)
        if self._n_events - self._starts[-1] >= max(_CHAPTER, len(self._states[-1].blocks)):
            self._turn()
        return before

    def at(self, k: int) -> Snapshot:
        """Segments and blocks at instant *k*."""
        if not self._starts[0] <= k <= self._n_events:
            raise ValueError(f"instant {k}: instants {self._starts[0]} to {self._n_events} are known")
        chapter = bisect_right(self._starts, k) - 1
        return _moved(self._index_of(chapter).at(k - self._starts[chapter]), k, self._states[chapter])

    def _index_of(self, chapter: int) -> StateIndex:
        trace = self._chapters[chapter] if chapter < len(self._chapters) else self._last()
        if self._indexed != (chapter, len(trace)) or not len(trace):
            self._index = StateIndex(trace, self._states[chapter])
            self._indexed = (chapter, len(trace))
        return self._index

    def _last(self) -> Trace:
        """The last chapter as one trace."""
        if len(self._parts) != 1:
            self._parts = [_joined(self._parts)]
        return self._parts[0]

    def _turn(self) -> None:
        """The last chapter is full: the next begins with the state at its end."""
        state = self.at(self._n_events)
        self._chapters.append(self._last())
        self._parts = []
        self._states.append(state)
        self._starts.append(self._n_events)


def _joined(parts: list[Trace]) -> Trace:
    columns = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)], dtype=dtype)
        for name, dtype in Trace.DTYPES.items()
    }
    return Trace(**columns)


def _moved(state: Snapshot, k: int, start: Snapshot) -> Snapshot:
    """A chapter counts from its own start; at that start its clock is the one before."""
    time_ns = state.time_ns if k > start.event else start.time_ns
    return Snapshot(event=k, time_ns=time_ns, segments=state.segments, blocks=state.blocks)
