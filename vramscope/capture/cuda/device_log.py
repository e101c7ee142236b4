"""One device's part of a recording: finds the ring's new entries, checks them and writes them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from time import time_ns as clock_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.ledger import Ledger
from vramscope.allocator.replay import reconstruct
from vramscope.allocator.torch_history import DeviceHistory
from vramscope.allocator.torch_history.events import Events
from vramscope.capture import Sink
from vramscope.capture.cuda.gap import GapNotes, Unlike, bridge
from vramscope.capture.cuda.history import RawReading
from vramscope.capture.cuda.hook_records import HookRecords
from vramscope.capture.cuda.reading import Reading
from vramscope.capture.cuda.ring import TAIL, Key, first_new, lost
from vramscope.capture.cuda.ring.counts import EntryCounts, counted, counts_of
from vramscope.capture.cuda.ring.events import n_of_actions, ring_events
from vramscope.capture.cuda.ring.instants import UNCOUNTED, instants
from vramscope.capture.log import MarkRow, holders_table, joined_by_time, marks_table, table_of_batches
from vramscope.model.codes import NoteCode
from vramscope.model.marks import ANY_THREAD, MarkKind, Marks, Note, Phase
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Action, Trace

_MANY = 1 << 62
_NO_EVENTS = ("snapshot", "annotate")
"""Actions of entries that change no memory."""


@dataclass(frozen=True, slots=True)
class NewEntries:
    """The entries of the ring that are new."""

    start: int
    """Index of the first new entry in the ring."""
    is_whole: bool
    """Whether they directly follow the last entry read."""
    n_lost: int
    """Number of entries overwritten before they were read; 0 also if the number is unknown."""
    n_allocations: int
    """The allocation count at their end; UNCOUNTED if the program reset the statistics meanwhile."""
    events: Events | None
    """They as columns, if they are converted already."""
    stand_alone: bool = False
    """Whether they say it all without segments: none is missing, nor the pool of any."""


class DeviceLog:
    """Follows the allocator of one device and writes its events, marks, labels and states."""

    def __init__(self, device: int, add_note: Callable[[Note, int], None]) -> None:
        self.device = device
        self.n_events = 0
        self.n_allocations = 0
        """Number of allocations so far."""
        self.n_without_stack = 0
        """Number of allocations so far that have no call stack."""
        self.gaps = GapNotes(lambda note: add_note(note, device))
        self._add_note = add_note
        self.counts: EntryCounts | None = None
        self.tail: list[Key] = []
        """The last entries that were read; where ``find`` begins, with *counts*, if both are set back."""
        self._ledger: Ledger | None = None
        self._pools: list[tuple[int, int]] = [(0, 0)]
        self._time_ns = 0
        self._maker = ANY_THREAD
        self._lost_before: int | None = None
        """Events that are missing before those that are written next; None where none are."""

    @property
    def is_begun(self) -> bool:
        """Whether the initial state is written."""
        return self._ledger is not None

    def has_unread(self, stats: Any) -> bool:
        """Whether the allocator has made entries that are not read yet."""
        return self.counts != counts_of(stats)

    def n_new(self, stats: Any) -> int:
        """Number of entries of the counted kinds that are not read yet."""
        made = counts_of(stats).since(self.counts) if self.counts is not None else None
        return sum(made) if made is not None else 0

    def forget_ring(self) -> None:
        """Forget the last entries read: an empty ring replaced theirs.

        The next reading must find as many entries as the statistics count from here on.
        """
        self.tail = []

    def begin(self, sink: Sink, reading: Reading) -> None:
        """Write the current state as the initial state."""
        self.start_at(reading.raw)
        self._begin_with(sink, reading, self._state(reading))

    def start_at(self, raw: RawReading) -> None:
        """Skip the entries that are in the ring now: the recording begins after them."""
        ring = raw.ring(self.device)
        self.counts = raw.counts(self.device)[1]
        self.tail = [_key(row) for row in ring[-TAIL:]]

    def is_idle(self, raw: RawReading) -> bool:
        """Whether the device was never used, so that there is nothing to write."""
        return not self.is_begun and not any(raw.counts(self.device)[1])

    def find(self, raw: RawReading) -> NewEntries:
        """Find the new entries and how many are missing before them; from here on they count as read."""
        ring = raw.ring(self.device)
        before, after = raw.counts(self.device)
        known = self.counts if self.counts is not None else before
        made = before.since(known), after.since(known)
        bounds = (0, _MANY) if made[0] is None or made[1] is None else (sum(made[0]), sum(made[1]))
        # Nearly always the ring was emptied, and all of it is new: then its entries are gone through once.
        events = None if self.tail else ring_events(ring)
        start: int | None
        if events is not None:
            seen = counted(n_of_actions(events))
            start = 0 if bounds[0] <= sum(seen) <= bounds[1] else None
        else:
            actions = list(map(itemgetter("action"), ring))
            start = first_new(actions, lambda i: _key(ring[i]), self.tail, bounds)
            seen = counted(Counter(actions[start or 0 :]))
        is_whole = start is not None
        is_reset = made[1] is None
        n_lost = 0 if is_whole else lost(made[1] if raw.is_consistent else made[0], seen)
        self.counts = after if raw.is_consistent or is_reset else known.plus(seen) if is_whole else before
        kept = self.tail if is_whole and ring else []
        self.tail = [*kept, *(_key(row) for row in ring[max(start or 0, len(ring) - TAIL) :])][-TAIL:]
        n_allocations = UNCOUNTED if is_reset else self.counts.alloc
        is_told = not ring if events is None else _name_pools(events, len(self._pools))
        return NewEntries(start or 0, is_whole, n_lost, n_allocations, events, is_whole and is_told)

    def write(self, sink: Sink, reading: Reading, entries: NewEntries, records: HookRecords) -> None:
        """Write the new events with their block sizes, and the marks and labels that belong to them."""
        history = reading.events(self.device)
        trace = self._normalized(history)
        self._ensure_initial_state(sink, reading, (entries, trace))
        if not entries.is_whole:
            self.gaps.note(entries.n_lost)
            self._lost_before = entries.n_lost
        assert self._ledger is not None  # noqa: S101 -- for the type checker: _ensure_initial_state sets it
        trace = replace(trace, block_size=self._ledger.advance(trace))
        n_before = self.n_events
        self._append(sink, reading, trace)
        switches = self._thread_switches(reading, (entries, trace, n_before), records.makers)
        self._append_marks(sink, (entries, trace, n_before), records, (history.marks, switches))
        is_known = reading.raw.is_consistent and reading.raw.has_segments
        if is_known and self._ledger.totals != reading.raw.totals(self.device):
            self._resync(sink, reading)
        self._count_missing_stacks(trace)

    def write_state(self, sink: Sink, reading: Reading) -> None:
        """Write the allocator's own current state after comparing its blocks with those of the events."""
        if not reading.raw.is_consistent or self._ledger is None:
            return
        state = self._state(reading)
        held = Ledger(state, reading.settings(self.device))
        if (
            held.blocks.keys() != self._ledger.blocks.keys()
            or held.segments.keys() != self._ledger.segments.keys()
        ):
            self._resync(sink, reading)
        reading.write_stacks(sink)
        sink.pools(self._pools, self.device)
        sink.state(_at(state, self.n_events, self._time_ns), self.device, reported=True)

    def _ensure_initial_state(self, sink: Sink, reading: Reading, new: tuple[NewEntries, Trace]) -> None:
        """Make sure that the state before the new events is known.

        If it is not, it is reconstructed by undoing the new events from the state after them.
        """
        entries, trace = new
        if self._ledger is not None and entries.is_whole:
            return
        settings = reading.settings(self.device)
        initial = reconstruct(trace, self._state(reading), settings, tuple(self._pools)).initial
        if self._ledger is None:
            self._begin_with(sink, reading, initial)
            return
        time_ns = int(trace.time_ns[0]) if len(trace) else reading.time_ns
        self._move_to(sink, reading, (Ledger(initial, settings), time_ns))

    def _begin_with(self, sink: Sink, reading: Reading, initial: Snapshot) -> None:
        self._ledger = Ledger(initial, reading.settings(self.device))
        reading.write_stacks(sink)
        sink.pools(self._pools, self.device)
        sink.state(_at(initial, 0, 0), self.device, reported=False)

    def _resync(self, sink: Sink, reading: Reading) -> None:
        """Add events that lead to the allocator's own state, which wins where the events disagree with it."""
        before = self.n_events
        self._move_to(
            sink, reading, (Ledger(self._state(reading), reading.settings(self.device)), reading.time_ns)
        )
        n_moved = self.n_events - before
        if n_moved:
            text = f"events and allocator disagreed: {n_moved} events were added at one moment, so they agree"
            self._add_note(Note(NoteCode.REPLAY_DIFFERS, text, n_moved), self.device)

    def bridge_pause(self, sink: Sink, reading: Reading, *, is_planned: bool) -> bool:
        """Write events that lead to the state after a pause; returns whether they fill a gap, unplanned."""
        before, held = self.n_events, self._ledger
        assert held is not None  # noqa: S101 -- for the type checker: a begun log has it
        found = reading.rested(self.device, held, self._pools) if is_planned else None
        after, unlike = found or (Ledger(self._state(reading), reading.settings(self.device)), None)
        self._move_to(sink, reading, (after, reading.time_ns), unlike)
        if self.n_events == before or is_planned:
            return False
        sink.append(marks_table([_gap_mark(self._time_ns, self.n_events, 0)]), self.device)
        return True

    def write_failure(self, sink: Sink, sizes: tuple[int, int], stack_id: int) -> None:
        """Write an allocation that failed, with its request and the bytes that were free."""
        now, place = max(self._time_ns, clock_ns()), {"size": sizes[:1], "stack_id": [stack_id]}
        sink.append(Trace.of(action=[Action.OOM], time_ns=[now], **place), self.device)
        self.n_events += 1
        row = (int(MarkKind.OOM), int(Phase.OTHER), now, self.n_events, 0, sizes[1], "")
        sink.append(marks_table([row]), self.device)

    def _move_to(
        self, sink: Sink, reading: Reading, target: tuple[Ledger, int], unlike: Unlike | None = None
    ) -> None:
        ledger, time_ns = target
        if self._ledger is not None:
            missing = bridge(self._ledger, ledger, max(time_ns, self._time_ns), unlike)
            self._append(sink, reading, missing)
        self._ledger = ledger

    def _append(self, sink: Sink, reading: Reading, trace: Trace) -> None:
        reading.write_stacks(sink)
        if len(trace):
            sink.pools(self._pools, self.device)
            sink.append(trace, self.device)
            self.n_events += len(trace)
            self._time_ns = int(trace.time_ns[-1])

    def _thread_switches(
        self,
        reading: Reading,
        new: tuple[NewEntries, Trace, int],
        makers: Callable[[Sequence[Any]], NDArray[Any]] | None,
    ) -> list[MarkRow]:
        """A mark before each event that another thread made than the event before."""
        entries, trace, n_before = new
        if makers is None or not len(trace):
            return []
        ring = [
            row for row in reading.raw.ring(self.device)[entries.start :] if row["action"] not in _NO_EVENTS
        ]
        found = makers(ring)
        # Where torch's entries had to be sorted or left out, their order says nothing about the events.
        if [row.get("addr", 0) for row in ring] != trace.address.tolist():
            found = np.full(len(trace), ANY_THREAD)
        at = np.flatnonzero(np.diff(found, prepend=self._maker))
        self._maker = int(found[-1])
        return [
            (int(MarkKind.THREAD), int(Phase.OTHER), now, n_before + event, maker, 0, "")
            for now, event, maker in zip(
                trace.time_ns[at].tolist(), at.tolist(), found[at].tolist(), strict=True
            )
        ]

    def _append_marks(
        self,
        sink: Sink,
        new: tuple[NewEntries, Trace, int],
        records: HookRecords,
        others: tuple[Marks, list[MarkRow]],
    ) -> None:
        """Write the marks, labels and holders of the new events, and torch's annotations and the *others*."""
        entries, trace, n_before = new
        annotations, switches = others
        n, marks, labels = entries.n_allocations, records.marks, records.labels
        counts = [UNCOUNTED if n == UNCOUNTED else row[3] for row in marks]
        at = n_before + instants(trace, n, counts, [row[2] for row in marks])
        rows = [(*row[:3], k, *row[4:]) for row, k in zip(marks, at.tolist(), strict=True)]
        modules = records.switches(trace)
        modules = replace(modules, event=modules.event + n_before)
        rows_after = [*switches, *_annotated(annotations, n_before)]
        if self._lost_before is not None:
            time_ns = int(trace.time_ns[0]) if len(trace) else self._time_ns
            rows_after.append(_gap_mark(time_ns, n_before, self._lost_before))
            self._lost_before = None
        joined = joined_by_time([marks_table(rows), modules, marks_table(rows_after)])
        if len(joined):
            sink.append(joined, self.device)
        if labels:
            moments = [(batch.time_ns, batch.n_allocations) for batch in labels]
            places = _instants_of(moments, trace, (n, n_before))
            sink.append(table_of_batches(labels, places), self.device)
        if records.holders:
            moments = [(now, row[0]) for now, row in records.holders]
            places = _instants_of(moments, trace, (n, n_before))
            paths = [(k, *row[1:]) for k, (_, row) in zip(places, records.holders, strict=True)]
            sink.append(holders_table(paths), self.device)

    def _normalized(self, history: DeviceHistory) -> Trace:
        """Convert a trace: no snapshots, pools in the recording's numbering, and times that never decrease.

        torch calibrates its clock anew for each reading. A free has no stack: torch repeats its allocation's.
        """
        trace = history.trace
        if (trace.action == Action.SNAPSHOT).any():
            trace = trace.rows(trace.action != Action.SNAPSHOT)
        if not len(trace):
            return trace
        time_ns = trace.time_ns
        if time_ns[0] < self._time_ns:
            time_ns = np.maximum(time_ns, self._time_ns)
        is_free = (trace.action == Action.FREE_REQUESTED) | (trace.action == Action.FREE_COMPLETED)
        return replace(
            trace,
            time_ns=time_ns,
            pool=self._pool_index(history)[trace.pool],
            stack_id=np.where(is_free, np.int32(0), trace.stack_id),
        )

    def _state(self, reading: Reading) -> Snapshot:
        """The state of a reading, with pools in the recording's numbering."""
        history = reading.state(self.device)
        segments = history.final.segments
        segments = replace(segments, pool=self._pool_index(history)[segments.pool])
        return Snapshot(history.final.event, history.final.time_ns, segments, history.final.blocks)

    def _pool_index(self, history: DeviceHistory) -> NDArray[Any]:
        """The recording's index of each pool of a reading, which numbers pools as it meets them."""
        for pool in history.pools:
            if pool not in self._pools:
                self._pools.append(pool)
        return np.array([self._pools.index(pool) for pool in history.pools], dtype="i4")

    def _count_missing_stacks(self, trace: Trace) -> None:
        stack_id = trace.stack_id[trace.action == Action.ALLOC]
        self.n_allocations += len(stack_id)
        self.n_without_stack += int(np.count_nonzero(stack_id == 0))


def _key(row: dict[str, Any]) -> Key:
    return row["action"], row.get("addr", 0), row["size"]


def _at(state: Snapshot, event: int, time_ns: int) -> Snapshot:
    return Snapshot(event, time_ns or state.time_ns, state.segments, state.blocks)


def _gap_mark(time_ns: int, event: int, n_lost: int) -> MarkRow:
    return (int(MarkKind.GAP), int(Phase.OTHER), time_ns, event, 0, n_lost, "")


def _annotated(theirs: Marks, n_before: int) -> list[MarkRow]:
    """The program's own regions, which torch annotates."""
    rows = zip(*(column.tolist() for _, column in theirs.columns()), strict=True)
    return [(*row[:3], n_before + row[3], *row[4:6], theirs.names[row[6]]) for row in rows]


def _instants_of(moments: Sequence[tuple[int, int]], trace: Trace, end: tuple[int, int]) -> list[int]:
    """The instant of each moment, a time in ns and an allocation count.

    *end* is the allocation count at the end of the trace and the number of events before it.
    """
    n, n_before = end
    counts = [UNCOUNTED if n == UNCOUNTED else count for _, count in moments]
    at = n_before + instants(trace, n, counts, [now for now, _ in moments])
    return [int(instant) for instant in at]


def _name_pools(events: Events, n_pools: int) -> bool:
    """Whether the pool of each entry is known: up to torch 2.11 none names it; a second makes a segment."""
    makes_segments = any(word.startswith("segment") for word in events.words)
    return events.tells_pools or not (n_pools > 1 or makes_segments)
