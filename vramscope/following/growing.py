"""Everything that grows with a recording, extended by its new events only.

A page that follows a training asks every second. A pass over the whole trace would take longer every second,
beside the training that it observes.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vramscope.allocator.layout import Used, blocks_of, segments_after
from vramscope.allocator.levels import levels, tensor_bytes
from vramscope.allocator.state_index import StateIndex
from vramscope.analysis import analyses
from vramscope.analysis.churn import for_a_request, release_events
from vramscope.analysis.findings import collect
from vramscope.analysis.fragmentation import Parts, parts_of, parts_over_time
from vramscope.analysis.lifetimes import ALIVE, Allocations, lifetimes
from vramscope.analysis.shared_results import shared_results
from vramscope.analysis.timeline import Totals, timeline, times, totals_of
from vramscope.columns import GrowingColumn
from vramscope.columns.scratch import Scratch
from vramscope.following.course import Course, Piece, after, begin, next_piece
from vramscope.model.codes import QUANTITIES
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Segments, Snapshot
from vramscope.model.table import Array
from vramscope.model.trace import Action, Trace

_PARTS = ("requested", "rounding", "pending", "inactive_split", "releasable", "private_pools")
_EVENTS = ("alloc_event", "free_event", "completed_event")


class WhatFindingsNeed:
    """The lives of all blocks and the parts of the reserved bytes, as the analyses have them.

    A search of a million events takes 1.4 s of a processor; with these it takes 0.35.
    """

    def __init__(self, recording: Recording, scratch: Scratch | None) -> None:
        """Begin before the first event of *recording*."""
        begun = Recording(initial=recording.initial)
        self._parts = {name: GrowingColumn("i8", scratch) for name in _PARTS}
        self._extend_parts(parts_over_time(begun), 0)
        self._lives = {name: GrowingColumn(dtype, scratch) for name, dtype in Allocations.DTYPES.items()}
        for name, column in lifetimes(begun).columns():
            self._lives[name].extend(column)
        self._open = np.arange(len(self._lives["address"]))
        """The rows of the live blocks, in the order of the course's."""

    def add(self, piece: Piece, state: Snapshot, first: int) -> None:
        """Take the next events, before which the allocator was in *state*, from the event *first* on."""
        here = Recording(trace=piece.trace, initial=state)
        requested = tensor_bytes(piece.trace, state)
        requested += self._parts["requested"].view()[-1] - requested[0]
        totals = totals_of(here, tuple(piece.level[name] for name in QUANTITIES))
        self._extend_parts(parts_of(here, totals, requested), 1)
        self._add_lives(piece.blocks, first)

    def results(self, totals: Totals) -> Mapping[Callable[..., Any], Any]:
        """The results so far, by the function that returns them of a whole recording."""
        parts = {f"{name}_bytes": column.view() for name, column in self._parts.items()}
        return {
            timeline: totals,
            lifetimes: Allocations(**{name: column.view() for name, column in self._lives.items()}),
            parts_over_time: Parts(**parts, reserved_bytes=totals.reserved_bytes, time_ns=totals.time_ns),
        }

    def _extend_parts(self, parts: Parts, first: int) -> None:
        for name, column in self._parts.items():
            column.extend(getattr(parts, f"{name}_bytes")[first:])

    def _add_lives(self, blocks: Allocations, first: int) -> None:
        n_open, n_rows = len(self._open), len(self._lives["address"])
        events = {name: getattr(blocks, name) for name in _EVENTS}
        shifted = {name: np.where(event >= 0, event + first, event) for name, event in events.items()}
        for name, column in (dict(blocks.columns()) | shifted).items():
            self._lives[name].extend(column[n_open:])
        # A block that waits was freed before the piece, which keeps that free.
        for name, of in (("free_event", "free_event"), ("free_ns", "free_event"), ("completed_event",) * 2):
            ended = np.flatnonzero(getattr(blocks, of)[:n_open] >= 0)
            column = shifted.get(name, blocks.free_ns)
            self._lives[name].put(self._open[ended], column[ended])
        rows = np.concatenate([self._open, np.arange(n_rows, n_rows + len(blocks) - n_open)])
        self._open = rows[blocks.completed_event == ALIVE]


AT_ONCE = 1 << 19
"""New events that are taken at once: the 6.8 million of a run opened late took 540 MB for a moment."""
CHAPTER = 1 << 15
"""Least number of events between two states that are kept: the states between are found in 4 ms."""
_NO_CUTS = np.zeros(0, "i8")


class Following:
    """One recording as far as it was followed; each method answers for the recording that it is given.

    What grows is kept in *scratch*, in memory where None; at most *at_once* new events are taken at once, and
    states are kept at least *chapter* events apart. With *finds*, what a search for findings needs is kept
    too, 120 bytes per event.
    """

    def __init__(
        self,
        recording: Recording,
        scratch: Scratch | None = None,
        *,
        at_once: int = AT_ONCE,
        chapter: int = CHAPTER,
        finds: bool = False,
    ) -> None:
        self._scratch = scratch.growing() if scratch is not None else None
        self._at_once, self._chapter = at_once, chapter
        self._finds = finds
        self._begin(recording)

    def __len__(self) -> int:
        """The number of events so far."""
        return self.course.n_events

    def follow(self, recording: Recording) -> bool:
        """Take the new events of *recording*; return whether it goes on where the last one ended.

        The size cap may remove events, and a reader may correct the initial state: then all is counted anew.
        """
        # Whether *recording* begins with the events so far.
        known, now = self._initial, recording.initial
        goes_on = self._n_past == recording.past.n_events and (
            known is now
            or all(
                np.array_equal(column, getattr(getattr(now, table), name))
                for table in ("segments", "blocks")
                for name, column in getattr(known, table).columns()
            )
        )
        if not goes_on:
            self._begin(recording)
        n_events = len(recording.trace)
        if n_events > len(self):
            self._trace = recording.trace
        while len(self) < n_events:
            self._add(recording, min(len(self) + self._at_once, n_events))
        return goes_on

    def totals(self, recording: Recording) -> Totals:
        """What the analysis ``timeline`` of the recording returns."""
        self.follow(recording)
        rows = slice(len(recording.trace) + 1)
        known = {f"{name}_bytes": column.view()[rows] for name, column in self._levels.items()}
        return Totals(**known, time_ns=self._time_ns.view()[rows])

    def fullest(self, recording: Recording, quantity: str) -> int:
        """The first instant of the most *quantity*."""
        self.follow(recording)
        at = self.course.highest[quantity].instant
        if at <= len(recording.trace):
            return at
        return int(self._levels[quantity].view()[: len(recording.trace) + 1].argmax())

    def retries(self, recording: Recording) -> Array:
        """What ``churn.retry_events`` of the recording returns."""
        self.follow(recording)
        found = self._retries.view()
        return for_a_request(recording, found[found < len(recording.trace) - 1])

    def last_oom(self, recording: Recording) -> int:
        """The event of the last allocation that failed; −1 where none did."""
        self.follow(recording)
        found = self._ooms.view()
        return int(found[found < len(recording.trace)].max(initial=-1))

    def state_at(self, recording: Recording, instant: int) -> Snapshot:
        """Segments and blocks at *instant*, as ``StateIndex`` has them."""
        self.follow(recording)
        if not 0 <= instant <= len(self):
            raise ValueError(f"instant {instant}: instants 0 to {len(self)} are known")
        chapter = bisect_right(self._starts, instant) - 1
        start, state = self._starts[chapter], self._states[chapter]
        index = self._index_of(chapter)
        found = index.at(instant - start)
        return replace(found, event=instant, time_ns=found.time_ns if instant > start else state.time_ns)

    def findings(self, recording: Recording) -> list[Finding]:
        """What ``findings.collect`` finds in the whole recording, at a quarter of its cost."""
        given = self.results(recording)
        known = replace(recording, checkpoints=tuple(self._states[1:]))
        offered = analyses()
        with shared_results(known, given):
            return collect(lambda name: offered[name].run(known))

    def results(self, recording: Recording) -> Mapping[Callable[..., Any], Any]:
        """What takes most of a search for findings, by the function that returns it of a whole recording."""
        totals = self.totals(recording)
        return self._needed.results(totals) if self._needed is not None else {timeline: totals}

    def _begin(self, recording: Recording) -> None:
        self._initial = initial = recording.initial
        self._n_past = recording.past.n_events
        self._trace = recording.trace.rows(slice(0))
        self.course: Course = begin(initial)
        """Levels now, peaks, and the blocks that are live now."""
        self._segments = initial.segments
        self._starts, self._states = [0], [initial]
        """The states at the starts of chapters, and their instants."""
        self._indexed: tuple[tuple[int, int], StateIndex] | None = None
        self._levels = {name: GrowingColumn("i8", self._scratch) for name in QUANTITIES}
        for column, level in zip(self._levels.values(), levels(self._trace, initial), strict=True):
            column.extend(level)
        self._time_ns, self._retries, self._ooms = (GrowingColumn("i8", self._scratch) for _ in range(3))
        self._time_ns.extend(times(replace(recording, trace=recording.trace.rows(slice(1))))[:1])
        self._needed = WhatFindingsNeed(recording, self._scratch) if self._finds else None

    def _add(self, recording: Recording, end: int) -> None:
        first = len(self)
        new = recording.trace.rows(slice(first, end))
        if not first:  # the first event may show when the recording began
            self._time_ns = GrowingColumn("i8", self._scratch)
            self._time_ns.extend(times(replace(recording, trace=new)))
        else:
            self._time_ns.extend(new.time_ns)
        piece = next_piece(self.course, new)
        for name, column in self._levels.items():
            column.extend(piece.level[name][1:])
        if self._needed is not None:
            self._needed.add(piece, self._state(self._segments), first)
        self._ooms.extend(first + np.flatnonzero(new.action == Action.OOM))
        # Only the event after a retry shows that it was the last one of its request.
        pairs = slice(max(first - 1, 0), end)
        found = release_events(replace(recording, trace=recording.trace.rows(pairs)))
        self._retries.extend(found + pairs.start)
        self._advance(piece)

    def _advance(self, piece: Piece) -> None:
        trace = piece.trace
        self.course = after(self.course, piece, _NO_CUTS)
        if trace.of_segments.any():
            self._segments = segments_after(self._segments, trace.rows(trace.of_segments))
        # No state is larger than the events of its chapter.
        if len(self) - self._starts[-1] >= max(self._chapter, len(self._states[-1].blocks)):
            self._starts.append(len(self))
            self._states.append(self._state(self._segments))

    def _state(self, segments: Segments) -> Snapshot:
        """The state after the last event."""
        live = self.course.live
        held = Used(
            address=live.address,
            size=live.block_size,
            requested_size=live.size,
            state=np.where(live.is_pending, BlockState.PENDING_FREE, BlockState.ALLOCATED).astype("u1"),
            stack_id=live.stack_id,
        )
        time_ns = int(self._time_ns.view()[len(self)])
        return Snapshot(event=len(self), time_ns=time_ns, segments=segments, blocks=blocks_of(segments, held))

    def _index_of(self, chapter: int) -> StateIndex:
        """The index of one chapter; that of the last question is kept."""
        start = self._starts[chapter]
        end = self._starts[chapter + 1] if chapter + 1 < len(self._starts) else len(self)
        if self._indexed is None or self._indexed[0] != (chapter, end):
            events: Trace = self._trace.rows(slice(start, end))
            self._indexed = (chapter, end), StateIndex(events, self._states[chapter])
        return self._indexed[1]
