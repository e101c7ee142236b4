"""What is known of a recording that grows? Levels and states, to which only what is new is added.

A page that follows a training asks again every second. What took the whole trace would take longer every
second, beside the training that it looks at; here a look costs the events that came since the last.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from time import monotonic, thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.growing import GrowingIndex
from vramscope.allocator.levels import levels
from vramscope.analysis.by_stack import StackBytes, stack_bytes
from vramscope.analysis.churn import retry_events
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.timeline import Totals, times
from vramscope.model.recording import Recording
from vramscope.store.columns import GrowingColumn

QUANTITIES = ("requested", "allocated", "active", "reserved")
MOST_KEPT = 12
SHARE = 0.05
"""Of the time, at most, for answers that take the whole recording."""
LONGER = 1.1
"""They are given anew when the recording has become so much longer: all of them together then cost no more
than a few of the last."""


class Growing:
    """One recording, followed. Safe to use from several threads, of which one may be a version behind."""

    def __init__(self, recording: Recording) -> None:
        self._lock = RLock()
        self._begin(recording)

    def totals(self, recording: Recording) -> Totals:
        """As ``timeline`` of the recording."""
        with self._lock:
            self._follow(recording)
            rows = slice(len(recording.trace) + 1)
            known = {name: column.view()[rows] for name, column in self._levels.items()}
            return Totals(**known, time_ns=self._time_ns.view()[rows])

    def retries(self, recording: Recording) -> NDArray[Any]:
        """As ``churn.retry_events``."""
        with self._lock:
            self._follow(recording)
            found = self._retries.view()
            return found[found < len(recording.trace)]

    def fullest(self, recording: Recording, quantity: str) -> int:
        """The first instant at which most was *quantity*."""
        with self._lock:
            self._follow(recording)
            at = self._fullest[quantity]
            if at <= len(recording.trace):
                return at
            return int(self._levels[quantity].view()[: len(recording.trace) + 1].argmax())

    def stacks_at(self, recording: Recording, instant: int) -> StackBytes:
        """As ``by_stack`` of the recording."""
        with self._lock:
            self._follow(recording)
            state = self._index.at(instant)
        found = stack_bytes(lifetimes(Recording(initial=state)), 0)
        return StackBytes(**dict(found.columns()), instant=instant)

    def kept(self, what: Hashable, make: Callable[[], Any]) -> Any:
        """What does not change while the recording grows."""
        with self._lock:
            if what in self._kept:
                self._kept.move_to_end(what)
                return self._kept[what]
            made = self._kept[what] = make()
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return made

    def lately(self, what: Hashable, recording: Recording, make: Callable[[], Any]) -> Any:
        """What takes the whole recording: perhaps as of a while ago."""
        with self._lock:
            known = self._lately.get(what)
        if known is not None:
            made, n_events, n_steps, again_s = known
            is_longer = len(recording.trace) >= LONGER * n_events or len(recording.steps) >= LONGER * n_steps
            if not is_longer or monotonic() < again_s:
                return made
        began = thread_time()
        made = make()
        again_s = monotonic() + (thread_time() - began) / SHARE
        with self._lock:
            self._lately[what] = made, len(recording.trace), len(recording.steps), again_s
        return made

    # ------------------------------------------------------------------------------------ what is new

    def _begin(self, recording: Recording) -> None:
        self._initial = recording.initial
        self._n_past = recording.past.n_events
        self._index = GrowingIndex(recording.initial)
        self._n_events = 0
        start = levels(recording.trace.rows(slice(0)), recording.initial)
        self._levels = {name: GrowingColumn("i8") for name in QUANTITIES}
        for column, level in zip(self._levels.values(), start, strict=False):
            column.extend(level)
        self._time_ns, self._retries = GrowingColumn("i8"), GrowingColumn("i8")
        self._fullest = dict.fromkeys(QUANTITIES, 0)
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lately: dict[Hashable, tuple[Any, int, int, float]] = {}

    def _follow(self, recording: Recording) -> None:
        if not self._goes_on_in(recording):
            self._begin(recording)
        first, end = self._n_events, len(recording.trace)
        if end <= first and len(self._time_ns):
            return
        before = self._index.extend(recording.trace)
        new = recording.trace.rows(slice(first, None))
        self._add_levels(levels(new, before), first)
        self._add_times(recording, first)
        # Whether an event is the last of its kind shows in the one behind it.
        pairs = slice(max(first - 1, 0), None)
        found = retry_events(Recording(trace=recording.trace.rows(pairs), stacks=recording.stacks))
        self._retries.extend(found + pairs.start)
        self._n_events = end

    def _goes_on_in(self, recording: Recording) -> bool:
        """Whether what is known is its beginning: events may have been taken, the first state mended."""
        known, now = self._initial, recording.initial
        return self._n_past == recording.past.n_events and (
            known is now
            or all(
                np.array_equal(column, getattr(getattr(now, table), name))
                for table in ("segments", "blocks")
                for name, column in getattr(known, table).columns()
            )
        )

    def _add_levels(self, found: tuple[NDArray[Any], ...], first: int) -> None:
        for name, level in zip(QUANTITIES, found, strict=False):
            column = self._levels[name]
            most = int(level.argmax())
            if level[most] > column.view()[self._fullest[name]]:
                self._fullest[name] = first + most
            column.extend(level[1:])

    def _add_times(self, recording: Recording, first: int) -> None:
        if not first:
            self._time_ns = GrowingColumn("i8")
            self._time_ns.extend(times(recording))
        else:
            self._time_ns.extend(recording.trace.time_ns[first:])
