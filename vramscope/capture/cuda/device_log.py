"""One device's part of a recording: which entries of the ring are new, what they mean, and out with them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.ledger import Ledger
from vramscope.allocator.replay import reconstruct
from vramscope.allocator.torch_history import DeviceHistory
from vramscope.capture import Sink
from vramscope.capture.cuda.counts import Counts, counted, counts_of
from vramscope.capture.cuda.gap import bridge
from vramscope.capture.cuda.history import Taken
from vramscope.capture.cuda.instants import UNCOUNTED, instants
from vramscope.capture.cuda.reading import Reading
from vramscope.capture.cuda.ring import TAIL, Key, first_new, lost
from vramscope.capture.log import (
    LabelRow,
    MarkRow,
    labels_table,
    marks_table,
)
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Marks, Note, Phase
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Action, Trace

_MANY = 1 << 62
_MANY_GAPS = 100


@dataclass(frozen=True, slots=True)
class Stretch:
    """The entries of the ring that are new."""

    start: int
    """Where they begin."""
    is_whole: bool
    """Whether they follow what was read last."""
    n_lost: int
    """Entries between, made and overwritten; 0 also where that is not known."""
    n_allocations: int
    """The allocator's count at the end of them; UNCOUNTED where the program set it back meanwhile."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the program's hooks knew of this device since the last reading."""

    marks: Sequence[MarkRow]
    """Where ``event`` belongs stands the count of allocations, or UNCOUNTED."""
    labels: Sequence[tuple[int, LabelRow]]
    """Time, and the same."""
    switches: Callable[[Trace], list[MarkRow]]
    """Marks that are placed by time in the trace given."""


class DeviceLog:
    """What was seen of one device so far, and where it goes."""

    def __init__(self, device: int, tell: Callable[[Note, int], None]) -> None:
        self.device = device
        self.n_events = 0
        self.n_blind = self.n_moves = 0
        """Allocations and frees so far, and those of them without a stack."""
        self._tell = tell
        self._counts: Counts | None = None
        self._tail: list[Key] = []
        self._ledger: Ledger | None = None
        self._pools: list[tuple[int, int]] = [(0, 0)]
        self._time_ns = 0
        self._n_gaps = self._n_lost_more = 0
        self.is_adrift = False
        """Whether entries were lost that nobody has bridged yet."""

    @property
    def is_begun(self) -> bool:
        """Whether its first state is written."""
        return self._ledger is not None

    def is_behind(self, stats: Any) -> bool:
        """Whether the allocator did anything that was not read."""
        return self._counts != counts_of(stats)

    def n_new(self, stats: Any) -> int:
        """How many entries of the counted kinds are not read yet."""
        made = counts_of(stats).since(self._counts) if self._counts is not None else None
        return sum(made) if made is not None else 0

    def forget_ring(self) -> None:
        """The ring is another one, and empty; nothing happened since the last reading."""
        self._tail = []

    def begin(self, sink: Sink, reading: Reading) -> None:
        """What there is now is the first state."""
        self.start_at(reading.taken)
        self._begin_with(sink, reading, self._state(reading))

    def start_at(self, taken: Taken) -> None:
        """Whatever is in the ring is no part of the recording; what comes now is."""
        ring = taken.ring(self.device)
        self._counts = taken.counts(self.device)[1]
        self._tail = [_key(row) for row in ring[-TAIL:]]

    def is_idle(self, taken: Taken) -> bool:
        """Whether the device was never used: then there is nothing to write."""
        return not self.is_begun and not any(taken.counts(self.device)[1])

    # ------------------------------------------------------------------------- what is new

    def find(self, taken: Taken) -> Stretch:
        """The new entries, and how many are missing before them; they count as seen from here on."""
        ring = taken.ring(self.device)
        before, after = taken.counts(self.device)
        known = self._counts if self._counts is not None else before
        made = before.since(known), after.since(known)
        bounds = (0, _MANY) if made[0] is None or made[1] is None else (sum(made[0]), sum(made[1]))
        actions = [row["action"] for row in ring]
        start = first_new(actions, lambda i: _key(ring[i]), self._tail, bounds)
        seen = counted(Counter(actions[start or 0 :]))
        is_whole = start is not None
        is_reset = made[1] is None
        n_lost = 0 if is_whole else lost(made[1] if taken.is_still else made[0], seen)
        self._counts = after if taken.is_still or is_reset else known.plus(seen) if is_whole else before
        kept = self._tail if is_whole and ring else []
        self._tail = [*kept, *(_key(row) for row in ring[max(start or 0, len(ring) - TAIL) :])][-TAIL:]
        return Stretch(start or 0, is_whole, n_lost, UNCOUNTED if is_reset else self._counts.alloc)

    def begin_ring(self, taken: Taken) -> None:
        """The ring was emptied after this reading."""
        if taken.begun is None:
            return
        now = counts_of(taken.begun[self.device])
        made = now.since(self._counts) if self._counts is not None else None
        self._tail = []
        self._counts = now
        if made is not None and any(made):
            self.is_adrift = True
            self._tell_gap(sum(made))

    # ------------------------------------------------------------------------------ out with it

    def write(self, sink: Sink, reading: Reading, stretch: Stretch, told: Told) -> None:
        """The new events with the sizes of their blocks, and what was told of them."""
        history = reading.events(self.device)
        trace = self._own(history)
        self._settle(sink, reading, (stretch, trace))
        if not stretch.is_whole:
            self._tell_gap(stretch.n_lost)
        assert self._ledger is not None  # noqa: S101 -- for the type checker: _settle sets it
        trace = replace(trace, block_size=self._ledger.advance(trace))
        n_before = self.n_events
        self._append(sink, reading, trace)
        self._append_marks(sink, (stretch, trace, n_before), told, history.marks)
        if reading.taken.is_still and self._ledger.totals != reading.taken.totals(self.device):
            self._resync(sink, reading)
        self._count_blind(trace)

    def write_state(self, sink: Sink, reading: Reading) -> None:
        """What the allocator itself says it holds now; checked block by block."""
        if not reading.taken.is_still or self._ledger is None:
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

    def _settle(self, sink: Sink, reading: Reading, new: tuple[Stretch, Trace]) -> None:
        """The state before the new events: known, or found by undoing them from what there is after them."""
        stretch, trace = new
        if self._ledger is not None and stretch.is_whole and not self.is_adrift:
            return
        settings = reading.settings(self.device)
        initial = reconstruct(trace, self._state(reading), settings, tuple(self._pools)).initial
        self.is_adrift = False
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
        """Events and allocator disagree: what the allocator says counts."""
        before = self.n_events
        self._move_to(
            sink, reading, (Ledger(self._state(reading), reading.settings(self.device)), reading.time_ns)
        )
        n_moved = self.n_events - before
        if n_moved:
            text = f"events and allocator disagreed: {n_moved} events were added at one moment, so they agree"
            self._tell(Note(NoteCode.REPLAY_DIFFERS, text, n_moved), self.device)

    def bridge_pause(self, sink: Sink, reading: Reading) -> bool:
        """Nobody recorded for a while: events that lead to what is there now; whether there were any."""
        if self._ledger is None:
            return False
        before = self.n_events
        state = self._state(reading)
        self._move_to(sink, reading, (Ledger(state, reading.settings(self.device)), reading.time_ns))
        return self.n_events > before

    def _move_to(self, sink: Sink, reading: Reading, target: tuple[Ledger, int]) -> None:
        ledger, time_ns = target
        if self._ledger is not None:
            missing = bridge(self._ledger, ledger, max(time_ns, self._time_ns))
            self._append(sink, reading, missing)
        self._ledger = ledger

    def _append(self, sink: Sink, reading: Reading, trace: Trace) -> None:
        reading.write_stacks(sink)
        if len(trace):
            sink.pools(self._pools, self.device)
            sink.append(trace, self.device)
            self.n_events += len(trace)
            self._time_ns = int(trace.time_ns[-1])

    def _append_marks(
        self, sink: Sink, new: tuple[Stretch, Trace, int], told: Told, annotations: Marks
    ) -> None:
        stretch, trace, n_before = new
        n, marks, labels = stretch.n_allocations, told.marks, told.labels
        counts = [UNCOUNTED if n == UNCOUNTED else row[3] for row in marks]
        at = n_before + instants(trace, n, counts, [row[2] for row in marks])
        rows = [(*row[:3], int(k), *row[4:]) for row, k in zip(marks, at, strict=True)]
        rows += [(*row[:3], n_before + row[3], *row[4:]) for row in told.switches(trace)]
        rows += _annotated(annotations, n_before)
        if rows:
            rows.sort(key=lambda row: row[2])
            sink.append(marks_table(rows), self.device)
        if labels:
            counts = [UNCOUNTED if n == UNCOUNTED else row[0] for _, row in labels]
            at = n_before + instants(trace, n, counts, [now for now, _ in labels])
            found = [(int(k), *row[1:]) for k, (_, row) in zip(at, labels, strict=True)]
            sink.append(labels_table(found), self.device)

    # ---------------------------------------------------------------------------- of torch's words

    def _own(self, history: DeviceHistory) -> Trace:
        """Without snapshots, with our pools, and never back in time: torch fits its clock anew each time."""
        trace = history.trace
        if (trace.action == Action.SNAPSHOT).any():
            trace = trace.rows(trace.action != Action.SNAPSHOT)
        if not len(trace):
            return trace
        time_ns = trace.time_ns
        if time_ns[0] < self._time_ns:
            time_ns = np.maximum(time_ns, self._time_ns)
        return replace(trace, time_ns=time_ns, pool=self._pool_index(history)[trace.pool])

    def _state(self, reading: Reading) -> Snapshot:
        history = reading.state(self.device)
        segments = history.final.segments
        segments = replace(segments, pool=self._pool_index(history)[segments.pool])
        return Snapshot(history.final.event, history.final.time_ns, segments, history.final.blocks)

    def _pool_index(self, history: DeviceHistory) -> NDArray[Any]:
        """Ours of each of its pools: a reading numbers them as it meets them."""
        for pool in history.pools:
            if pool not in self._pools:
                self._pools.append(pool)
        return np.array([self._pools.index(pool) for pool in history.pools], dtype="i4")

    def tell_rest(self) -> None:
        """The gaps that were too many to be told one by one."""
        if self._n_gaps > _MANY_GAPS:
            n_more = self._n_gaps - _MANY_GAPS
            text = f"{self._n_lost_more} events are missing in {n_more} more gaps"
            self._tell(Note(NoteCode.GAP, text, self._n_lost_more), self.device)
            self._n_gaps, self._n_lost_more = _MANY_GAPS, 0

    def _tell_gap(self, n_lost: int) -> None:
        self._n_gaps += 1
        if self._n_gaps <= _MANY_GAPS:
            self._tell(_gap(n_lost), self.device)
        else:
            self._n_lost_more += n_lost

    def _count_blind(self, trace: Trace) -> None:
        moves = trace.stack_id[trace.action <= Action.FREE_COMPLETED]
        self.n_moves += len(moves)
        self.n_blind += int(np.count_nonzero(moves == 0))


def _key(row: dict[str, Any]) -> Key:
    return row["action"], row.get("addr", 0), row["size"]


def _at(state: Snapshot, event: int, time_ns: int) -> Snapshot:
    return Snapshot(event, time_ns or state.time_ns, state.segments, state.blocks)


def _gap(n_lost: int) -> Note:
    how_many = f"{n_lost} events" if n_lost else "an unknown number of events"
    text = (
        f"{how_many} are missing: torch's ring was overwritten or emptied before it was read. "
        "What they did in all is shown as one moment, and what follows is exact"
    )
    return Note(NoteCode.GAP, text, n_lost)


def _annotated(theirs: Marks, n_before: int) -> list[MarkRow]:
    """torch's own annotations, but for those that say again what our hooks said."""
    again = (Phase.OPTIMIZER, Phase.ZERO_GRAD, Phase.DATA)
    rows = zip(*(column.tolist() for _, column in theirs.columns()), strict=True)
    return [
        (*row[:3], n_before + row[3], *row[4:6], theirs.names[row[6]]) for row in rows if row[1] not in again
    ]
