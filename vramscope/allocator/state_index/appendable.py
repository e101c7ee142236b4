"""What was the allocator's state at any moment of a run that is still being written?

A trace that grows is a row of chapters, each with the state at its start. A chapter that is full is never
looked at again until somebody asks for an instant in it; new events touch only the last one.
"""

from bisect import bisect_right

from vramscope.allocator.state_index import StateIndex
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Trace

_CHAPTER = 1 << 15
"""Events of a chapter, at least: its index is made in 4 ms."""


class GrowingIndex:
    """``extend`` takes what the trace has become; ``at(k)`` equals that of a ``StateIndex`` of all so far.

    Memory: one state per chapter. The events stay with whoever holds them; none is copied.
    """

    __slots__ = ("_index", "_indexed", "_starts", "_states", "_trace")

    def __init__(self, initial: Snapshot) -> None:
        self._starts = [initial.event]
        """The first instant of each chapter."""
        self._states = [initial]
        self._trace = Trace.of()
        self._index = StateIndex(self._trace, initial)
        """Of the chapter asked for last."""
        self._indexed = (0, 0)
        """Which chapter that is, and how many events it had."""

    def __len__(self) -> int:
        """The last instant known."""
        return self._starts[0] + len(self._trace)

    def extend(self, trace: Trace) -> Snapshot:
        """*trace*: every event so far, those known before first; gives the state before the new ones. Its
        time does not depend on what lies behind.

        With that state the new ones are a recording of their own, which every analysis takes:
        ``timeline(Recording(trace=new, initial=before))``.
        """
        before = self.at(len(self))
        self._trace = trace
        while (end := self._end_of_last()) <= len(self):
            state = self.at(end)
            self._states.append(state)
            self._starts.append(end)
        return before

    def at(self, k: int) -> Snapshot:
        """Segments and blocks at instant *k*."""
        if not self._starts[0] <= k <= len(self):
            raise ValueError(f"instant {k}: instants {self._starts[0]} to {len(self)} are known")
        chapter = bisect_right(self._starts, k) - 1
        return _moved(self._index_of(chapter).at(k - self._starts[chapter]), k, self._states[chapter])

    def _end_of_last(self) -> int:
        """Where the last chapter is full: no state is larger than the events of its chapter."""
        return self._starts[-1] + max(_CHAPTER, len(self._states[-1].blocks))

    def _index_of(self, chapter: int) -> StateIndex:
        events = self._events_of(chapter)
        if self._indexed != (chapter, len(events)) or not len(events):
            self._index = StateIndex(events, self._states[chapter])
            self._indexed = (chapter, len(events))
        return self._index

    def _events_of(self, chapter: int) -> Trace:
        first = self._starts[chapter]
        end = self._starts[chapter + 1] if chapter + 1 < len(self._starts) else self._end_of_last()
        return self._trace.rows(slice(first - self._starts[0], end - self._starts[0]))


def _moved(state: Snapshot, k: int, start: Snapshot) -> Snapshot:
    """A chapter counts from its own start; at that start its clock is the one before."""
    time_ns = state.time_ns if k > start.event else start.time_ns
    return Snapshot(event=k, time_ns=time_ns, segments=state.segments, blocks=state.blocks)
