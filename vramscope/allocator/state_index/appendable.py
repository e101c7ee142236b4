"""Gives the allocator's state at any instant of a run that is still being written.

A growing trace is divided into chapters, each with the state at its start. A full chapter is not touched
again until an instant in it is requested; new events affect only the last chapter.
"""

from bisect import bisect_right

from vramscope.allocator.state_index import StateIndex
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Trace

_CHAPTER_EVENTS = 1 << 15
"""Least number of events of a chapter: its index is built in 4 ms."""


class AppendableStateIndex:
    """A state index to which events can be appended; ``at(k)`` equals that of a ``StateIndex`` of all events
    so far.

    ``extend`` takes the extended trace. Memory: one state per chapter. The events are not copied.

    Parameters
    ----------
    initial
        The state before the first event.
    chapter_events
        The least number of events of a chapter.
    """

    __slots__ = ("_chapter_events", "_index", "_indexed", "_starts", "_states", "_trace")

    def __init__(self, initial: Snapshot, *, chapter_events: int = _CHAPTER_EVENTS) -> None:
        self._chapter_events = chapter_events
        self._starts = [initial.event]
        """The first instant of each chapter."""
        self._states = [initial]
        self._trace = Trace.of()
        self._index = StateIndex(self._trace, initial)
        """The index of the chapter requested last."""
        self._indexed = (0, 0)
        """The number of that chapter and of its events."""

    def __len__(self) -> int:
        """The last known instant."""
        return self._starts[0] + len(self._trace)

    def extend(self, trace: Trace) -> Snapshot:
        """Take the extended trace and return the state before its new events.

        The time does not depend on the number of earlier events. With the returned state the new events form
        a recording of their own, which every analysis accepts: ``timeline(Recording(trace=new,
        initial=before))``.

        Parameters
        ----------
        trace
            Every event so far, beginning with those already known.
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
        """The end of the last chapter once it is full: no state is larger than the events of its chapter."""
        return self._starts[-1] + max(self._chapter_events, len(self._states[-1].blocks))

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
    """Shift a state from its chapter's instants to those of the trace; at a chapter's start the clock is that
    of the state before.
    """
    time_ns = state.time_ns if k > start.event else start.time_ns
    return Snapshot(event=k, time_ns=time_ns, segments=state.segments, blocks=state.blocks)
