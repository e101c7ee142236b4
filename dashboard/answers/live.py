"""The incremental state of a recording that grows: totals and live sets, extended by the new events only.

A page that follows a training asks every second. A pass over the whole trace would take longer every second,
beside the training that it observes; here an update costs only the events since the last one.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from threading import Lock, RLock, Thread
from time import monotonic, thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.levels import levels
from vramscope.allocator.state_index.appendable import AppendableStateIndex
from vramscope.analysis.by_stack import StackBytes, stack_bytes
from vramscope.analysis.churn import retry_events
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.timeline import Totals, times
from vramscope.columns import GrowingColumn
from vramscope.columns.scratch import Scratch
from vramscope.model.codes import QUANTITIES
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Blocks, BlockState, Snapshot
from vramscope.model.trace import Action, Trace

from ..figures.drawing.m4 import BLOCK, Extremes, block_extremes
from ..figures.drawing.series import (
    EVENTS,
    Ruler,
    Spans,
    instants,
    origin_ns,
    phase_columns,
    step_columns,
)
from .growing_spans import GrowingSpans

MOST_KEPT = 12
AT_ONCE = 1 << 19
"""New events that are taken at once: the 6.8 million of a run opened late took 540 MB for a moment."""
INDEXED_EVERY = 1 << 15
"""New events after which the states are indexed too, in some ms. Left to the next question about an instant,
which is that of the next peak, ten million events took 1.3 s in which no page was answered."""
SHARE = 0.02
"""Largest share of the time for answers that need the whole recording."""
LONGER = 1.2
"""They are computed again when the recording is longer by this factor: all of them together then cost no more
than a few times the last one."""


class LiveRecording:
    """The incremental state of one recording. Several threads may use it, one with an older version.

    Parameters
    ----------
    recording
        The recording at its first version.
    scratch
        Where what grows is kept; in memory where None.
    at_once
        The largest number of new events that are taken at once.
    """

    def __init__(
        self, recording: Recording, scratch: Scratch | None = None, *, at_once: int = AT_ONCE
    ) -> None:
        self._lock = RLock()
        self._scratch = scratch.growing() if scratch is not None else None
        self._at_once = at_once
        self._begin(recording)

    def totals(self, recording: Recording) -> Totals:
        """Return what the analysis ``timeline`` of the recording returns."""
        with self._lock:
            self._follow(recording)
            rows = slice(len(recording.trace) + 1)
            known = {f"{name}_bytes": column.view()[rows] for name, column in self._levels.items()}
            return Totals(**known, time_ns=self._time_ns.view()[rows])

    def retries(self, recording: Recording) -> NDArray[Any]:
        """Return what ``churn.retry_events`` of the recording returns."""
        with self._lock:
            self._follow(recording)
            found = self._retries.view()
            return found[found < len(recording.trace) - 1]

    def last_oom(self, recording: Recording) -> int:
        """Return the event of the last allocation that failed; −1 where none did."""
        with self._lock:
            self._follow(recording)
            found = self._ooms.view()
            return int(found[found < len(recording.trace)].max(initial=-1))

    def ruler(self, recording: Recording, axis: str) -> Ruler:
        """Return what ``series.ruler`` of the recording returns."""
        known = self.totals(recording)
        axis = axis if recording.trace.has_clock else EVENTS
        origin = origin_ns(recording, known)
        with self._lock:
            n_instants = len(known.time_ns)
            in_order = known.time_ns if not len(self._in_order_ns) else self._in_order_ns.view()[:n_instants]
            placed = self._placed(axis, origin)
            for end in range(len(placed) + self._at_once, len(in_order) + self._at_once, self._at_once):
                placed.extend(instants(axis, origin, in_order[:end], len(placed)))
            return Ruler(axis, in_order, origin, placed.view()[: len(in_order)])

    def spans(self, recording: Recording, axis: str) -> tuple[Spans, Spans]:
        """Return the spans of the phases and of the steps, as ``series.parts_of`` returns them."""
        with self._lock:
            placed = self.ruler(recording, axis)
            known = self._spans.setdefault(
                placed.axis, (GrowingSpans(self._scratch), GrowingSpans(self._scratch))
            )
            phases, steps = known
            return (
                phases.follow(*phase_columns(recording), placed),
                steps.follow(*step_columns(recording), placed),
            )

    def blocks(self, recording: Recording) -> dict[str, Extremes]:
        """Return the extremes of each block of all quantities, for curves over many events."""
        with self._lock:
            self._follow(recording)
            return {name: each.extremes(len(recording.trace) + 1) for name, each in self._blocks.items()}

    def fullest(self, recording: Recording, quantity: str) -> int:
        """Return the first instant of the most *quantity*."""
        with self._lock:
            self._follow(recording)
            at = self._fullest[quantity]
            if at <= len(recording.trace):
                return at
            return int(self._levels[quantity].view()[: len(recording.trace) + 1].argmax())

    def stacks_at(self, recording: Recording, instant: int) -> StackBytes:
        """Return what the analysis ``by_stack`` of the recording returns at *instant*."""
        with self._lock:
            self._follow(recording)
            if len(self._index) < len(recording.trace):
                self._index.extend(recording.trace)
            state = self._index.at(instant)
        found = stack_bytes(lifetimes(Recording(initial=state)), 0)
        return StackBytes(**dict(found.columns()), instant=instant)

    def kept(self, what: Hashable, make: Callable[[], Any]) -> Any:
        """Return a cached value that does not change while the recording grows."""
        with self._lock:
            if what in self._kept:
                self._kept.move_to_end(what)
                return self._kept[what]
            made = self._kept[what] = make()
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return made

    def ask_allowing_stale(
        self, what: Hashable, recording: Recording, make: Callable[[], Any], *, waits: bool = True
    ) -> Any:
        """Return an answer over the full recording; it may be that of an earlier version.

        Parameters
        ----------
        what
            Key of the answer.
        recording
            The recording at its current version.
        make
            Computes the answer; called when the recording is longer by the factor LONGER, for at most the
            share SHARE of the time.
        waits
            Whether to wait for a new answer where there is an earlier one; else a thread computes it.
        """
        with self._lock:
            making = self._making.setdefault(what, Lock())
        # Where a thread computes it already, the others answer with what they have: at five million events
        # eight at once took 2 GB, and a page was four minutes late.
        if not making.acquire(blocking=self.stale_answer(what) is None):
            return self.stale_answer(what)
        if waits or self.stale_answer(what) is None:
            return self._answered(what, recording, make, making)
        # On a busy machine a process took 12 s for it, and the page had no request to spare.
        if self._is_due(what, recording):
            Thread(target=self._answered, args=(what, recording, make, making), daemon=True).start()
        else:
            making.release()
        return self.stale_answer(what)

    def stale_answer(self, what: Hashable) -> Any:
        """Return the last answer to :meth:`ask_allowing_stale`; None where there is none."""
        with self._lock:
            known = self._stale_answers.get(what)
        return known[0] if known is not None else None

    def _is_due(self, what: Hashable, recording: Recording) -> bool:
        with self._lock:
            known = self._stale_answers.get(what)
        if known is None:
            return True
        _, n_events, n_steps, again_s = known
        is_longer = len(recording.trace) >= LONGER * n_events or len(recording.steps) >= LONGER * n_steps
        return is_longer and monotonic() >= again_s

    def _answered(self, what: Hashable, recording: Recording, make: Callable[[], Any], making: Lock) -> Any:
        """Return the answer, computed if it is due; *making* is held, and released at the end."""
        try:
            if self._is_due(what, recording):
                began = _spent_s()
                made = make()
                again_s = monotonic() + (_spent_s() - began) / SHARE
                with self._lock:
                    self._stale_answers[what] = made, len(recording.trace), len(recording.steps), again_s
            return self.stale_answer(what)
        finally:
            making.release()

    # ---------------------------------------------------------------------------------- new events

    def _begin(self, recording: Recording) -> None:
        self._initial = recording.initial
        self._n_past = recording.past.n_events
        self._index = AppendableStateIndex(recording.initial)
        self._n_events = 0
        start = levels(recording.trace.rows(slice(0)), recording.initial)
        self._levels = {name: GrowingColumn("i8", self._scratch) for name in QUANTITIES}
        for column, level in zip(self._levels.values(), start, strict=True):
            column.extend(level)
        self._time_ns, self._retries, self._ooms = (GrowingColumn("i8", self._scratch) for _ in range(3))
        self._blocks = {name: GrowingExtremes(self._scratch) for name in QUANTITIES}
        blocks = recording.initial.blocks
        self._pending = blocks.address[blocks.state == BlockState.PENDING_FREE]
        self._fullest = dict.fromkeys(QUANTITIES, 0)
        self._in_order_ns = GrowingColumn("i8", self._scratch)
        """The times as the axis has them, none before another; empty while they are in order."""
        self._positions: dict[str, tuple[int, GrowingColumn]] = {}
        self._spans: dict[str, tuple[GrowingSpans, GrowingSpans]] = {}
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._stale_answers: dict[Hashable, tuple[Any, int, int, float]] = {}
        self._making: dict[Hashable, Lock] = {}
        """Locks, each held while its answer is computed."""

    def _follow(self, recording: Recording) -> None:
        if not self._goes_on_in(recording):
            self._begin(recording)
        while self._n_events < len(recording.trace) or not len(self._time_ns):
            self._add(recording, min(self._n_events + self._at_once, len(recording.trace)))

    def _add(self, recording: Recording, end: int) -> None:
        """Take the events before *end* that are not known yet."""
        first = self._n_events
        new = recording.trace.rows(slice(first, end))
        self._add_levels(levels(new, self._before(first)), first)
        self._pending = _pending_after(self._pending, new)
        self._ooms.extend(first + np.flatnonzero(new.action == Action.OOM))
        self._add_times(recording, new)
        # Only the event after a retry shows that it was the last one of its request.
        pairs = slice(max(first - 1, 0), end)
        found = retry_events(Recording(trace=recording.trace.rows(pairs), stacks=recording.stacks))
        self._retries.extend(found + pairs.start)
        self._n_events = end
        if end - len(self._index) >= min(INDEXED_EVERY, self._at_once):
            self._index.extend(recording.trace.rows(slice(end)))

    def _goes_on_in(self, recording: Recording) -> bool:
        """Return whether *recording* begins with the known events.

        The size cap may remove events, and a reader may correct the initial state.
        """
        known, now = self._initial, recording.initial
        return self._n_past == recording.past.n_events and (
            known is now
            or all(
                np.array_equal(column, getattr(getattr(now, table), name))
                for table in ("segments", "blocks")
                for name, column in getattr(known, table).columns()
            )
        )

    def _before(self, first: int) -> Snapshot:
        """Return what the sums of the next events depend on besides the level: blocks with a pending free."""
        if not first:
            return self._initial
        n_waiting = len(self._pending)
        state = np.full(n_waiting, BlockState.PENDING_FREE)
        return Snapshot(blocks=Blocks.of(address=self._pending, state=state))

    def _add_levels(self, found: tuple[NDArray[Any], ...], first: int) -> None:
        for name, level in zip(QUANTITIES, found, strict=False):
            column = self._levels[name]
            here = level + (column.view()[-1] - level[0])
            most = int(here.argmax())
            if here[most] > column.view()[self._fullest[name]]:
                self._fullest[name] = first + most
            column.extend(here[1:])
            self._blocks[name].follow(column.view())

    def _add_times(self, recording: Recording, trace: Trace) -> None:
        first = self._n_events
        if not first:
            self._time_ns = GrowingColumn("i8", self._scratch)
            self._time_ns.extend(times(replace(recording, trace=trace)))
        else:
            self._time_ns.extend(trace.time_ns)
        n_known, times_ns = len(self._in_order_ns), self._time_ns.view()
        new = times_ns[max(first - 1, 0) :]
        if n_known or not (new[1:] >= new[:-1]).all():
            later = times_ns[n_known:].copy()
            later[:1] = max(later[0], self._in_order_ns.view()[-1]) if n_known else later[0]
            self._in_order_ns.extend(np.maximum.accumulate(later))

    def _placed(self, axis: str, origin: int) -> GrowingColumn:
        """Return the positions so far; empty where the axis now begins elsewhere."""
        known = self._positions.get(axis)
        if known is None or known[0] != origin:
            known = self._positions[axis] = origin, GrowingColumn("f8", self._scratch)
        return known[1]


def _spent_s() -> float:
    """Return the CPU seconds of this thread, and of the processes that have ended for it or for another."""
    times = os.times()
    return thread_time() + times.children_user + times.children_system


def _pending_after(pending: NDArray[Any], new: Trace) -> NDArray[Any]:
    """Return the addresses of blocks with a pending free, by the last event of each address."""
    moves = np.flatnonzero((new.action <= Action.FREE_COMPLETED) & (new.block_size > 0))[::-1]
    address, last = np.unique(new.address[moves], return_index=True)
    still = pending[~np.isin(pending, address)]
    return np.concatenate([still, address[new.action[moves[last]] == Action.FREE_REQUESTED]])


class GrowingExtremes:
    """The extremes of each block of a column that grows, as ``m4.Extremes``."""

    __slots__ = ("_high", "_low")

    def __init__(self, scratch: Scratch | None = None) -> None:
        self._low, self._high = GrowingColumn("i8", scratch), GrowingColumn("i8", scratch)

    def follow(self, values: NDArray[Any]) -> None:
        """Add the complete blocks of *values*, which is the whole column."""
        found = block_extremes(values[len(self._low) * BLOCK :])
        self._low.extend(found.low)
        self._high.extend(found.high)

    def extremes(self, n_values: int) -> Extremes:
        """Return the extremes of the blocks of the first *n_values* values."""
        blocks = slice(n_values // BLOCK)
        return Extremes(self._low.view()[blocks], self._high.view()[blocks])
