"""Reads the history of every device and writes what is new: one thread at a time."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic, thread_time, time_ns
from tracemalloc import is_tracing

import torch

from vramscope.capture import Sink
from vramscope.capture.cuda import history
from vramscope.capture.cuda.device_log import DeviceLog, NewEntries
from vramscope.capture.cuda.history import RawReading
from vramscope.capture.cuda.hook_records import HookLog
from vramscope.capture.cuda.reading import NewOfDevice, Reading
from vramscope.capture.cuda.reading_pace import ReadingPace
from vramscope.capture.cuda.ring.instants import UNCOUNTED
from vramscope.capture.hooks.modules import ModuleLog
from vramscope.capture.hooks.stretches import StepEnds
from vramscope.capture.log import MarkRow, NoteLog, StackLog, drained, marks_table
from vramscope.capture.samples import Sampler
from vramscope.malloc import collector_off
from vramscope.model.codes import NoteCode
from vramscope.model.device import HOST
from vramscope.model.marks import MarkKind, Note, Phase
from vramscope.units import format_share

_LONGEST_WAIT_S = 10.0
_STATE_S = 5.0
"""Minimum time between two written states in a loop with a block per step; ``conclude`` writes the last."""


class HistoryReader:
    """The logs of all devices, and the reading that they were last written from."""

    def __init__(
        self,
        stacks: StackLog,
        records: HookLog,
        modules: ModuleLog,
        notes: NoteLog,
        add_devices: Callable[[list[int]], None],
    ) -> None:
        """Read for the *records* of the hooks.

        *add_devices* takes the devices that the program has begun to use.
        """
        self.sink: Sink | None = None
        self.is_shared = False
        """Whether the program keeps the history itself."""
        self.pace = ReadingPace(history.MAX_ENTRIES)
        self.logs: dict[int, DeviceLog] = {}
        self._stacks = stacks
        self._records = records
        self._modules = modules
        self._notes = notes
        self._add_devices = add_devices
        self.is_resting = False
        """Whether the history is off, because the steps of now get no events."""
        self.kept: list[MarkRow] = []
        """Marks of steps without events."""
        self._is_noted = False
        self._step_ends = StepEnds()
        self._annotated_us = 0
        self._stated_at = float("-inf")
        self._unwritten_state: Reading | None = None
        """The reading at the end of the last block, if its state is not written yet."""
        self._moment = threading.local()
        self._lock = threading.RLock()
        self.writing = threading.RLock()
        """Held while rows without events are taken and written: two threads would write them out of order."""

    @property
    def _device(self) -> int:
        return self._records.counted[0]

    def note(self, note: Note, device: int) -> None:
        """Write a note immediately: a process that is killed could not write it later."""
        if self.sink is not None:
            self.sink.note(note, device)

    def share(self) -> None:
        """Only read from here on: the program keeps the history itself."""
        self.is_shared = True
        # The program's history has no pinned memory, or not from the beginning.
        self.logs = {i: log for i, log in self.logs.items() if i != HOST}
        text = "the program records its history itself: it was only read"
        self._notes.once(Note(NoteCode.SHARED_HISTORY, text))

    def has_unread(self) -> bool:
        """Whether there is anything to write."""
        return not self.is_resting and (
            bool(self._records) or any(log.has_unread(history.stats(i)) for i, log in self.logs.items())
        )

    def n_new(self) -> int:
        """Number of entries that are not read yet."""
        if self.is_resting:
            return 0
        return sum(self.logs[device].n_new(history.stats(device)) for device in self._records.counted)

    def begin_or_bridge(self, *, is_planned: bool = False) -> None:
        """Write the initial state, or events that lead from the last to now: no gap where *is_planned*."""
        if not self.logs:
            host = () if self.is_shared else history.host()
            self.logs = {i: DeviceLog(i, self.note) for i in (*range(torch.cuda.device_count()), *host)}
        logs = list(self.logs.values())
        if not self.is_shared and not any(log.has_unread(history.stats(log.device)) for log in logs):
            for log in logs:
                log.forget_ring()
            self.pace.has_read()
            return
        raw = self._take_consistent()
        reading = self._reading(raw, {})
        for log in logs:
            self._begin_or_bridge_one(log, reading, is_planned=is_planned)
        self._add_used_devices(raw)
        self.pace.has_read(raw.counts(self._device)[1].alloc)

    def rest(self, note: Note) -> bool:
        """Write everything, and stop the history until ``go_on``; not where the program keeps it."""
        with self._lock, collector_off():
            if not self.is_shared:
                self.read(is_last=True)
                self._unwritten_state = None  # go_on takes a later one
                history.stop()
                self.is_resting = True
                self.kept.append(_switch(is_on=False))  # to be written with the marks that follow
                if not self._is_noted and self.sink is not None:
                    self._is_noted = True
                    self.sink.note(note)
            return self.is_resting

    def go_on(self) -> None:
        """Start the history, and write events that lead from where it stopped to now."""
        with self._lock, collector_off():
            self.write_kept()
            self._records.take()
            self.start_history(self._device)
            self.is_resting = False
            self.begin_or_bridge(is_planned=True)
            self._records.add_mark(_switch(is_on=True), self._records.counts())

    def is_kept(self, row: MarkRow, samplers: Mapping[int, Sampler]) -> bool:
        """Sample torch's counters at a mark, and keep it if it is of a step without events."""
        is_sampled = self._step_ends.see(row[0], row[1]) if is_tracing() else row[0] != MarkKind.GC
        for sampler in tuple(samplers.values()) if is_sampled else ():
            sampler.sample_at_mark(row[2])
        if self.is_resting:
            self.kept.append(row)
        return self.is_resting

    def write_failure(self, device: int, sizes: tuple[int, int], frames: list[tuple[str, str, int]]) -> None:
        """Write a failed allocation that no history saw; *sizes* are its request and the free bytes."""
        with self._lock:
            self.read()  # what leads to it
            if self.sink is not None and self.logs[device].is_begun:
                stack_id = self._stacks.builder.add(frames)
                self._stacks.write(self.sink)
                self.logs[device].write_failure(self.sink, sizes, stack_id)

    def start_history(self, device: int) -> None:
        """Start the history for a block or a stretch, unless the program keeps one itself."""
        self.is_shared = False
        if history.is_on():
            self.share()
        else:
            with torch.cuda.device(device):
                history.start(self.pace.n_entries)

    def write_kept(self) -> None:
        """Write the marks of steps without events, on each device that is used."""
        with self.writing:
            rows = drained(self.kept)
            for device, log in self.logs.items():
                if self.sink is not None and rows and log.is_begun:
                    placed = [(*row[:3], log.n_events, *row[4:]) for row in rows]
                    self.sink.append(marks_table(placed), device)

    def _begin_or_bridge_one(self, log: DeviceLog, reading: Reading, *, is_planned: bool) -> None:
        if self.sink is None or log.is_idle(reading.raw):
            log.start_at(reading.raw)
        elif log.is_begun:
            log.start_at(reading.raw)
            if log.bridge_pause(self.sink, reading, is_planned=is_planned) and log.device != HOST:
                text = "memory changed between two recorded blocks: shown as one moment"
                self._notes.once(Note(NoteCode.GAP, text))
        else:
            log.begin(self.sink, reading)

    def _take_consistent(self) -> RawReading:
        """Take a reading during which nothing happened; other threads may allocate, so at most 5 tries."""
        for _ in range(5):
            raw = history.take(list(self.logs))
            if raw.is_consistent:
                break
        return raw

    def read(
        self, *, with_state: bool = False, is_last: bool = False, wait_s: float = _LONGEST_WAIT_S
    ) -> bool:
        """Read everything new and write it as tables; returns whether no other thread prevented it.

        After the *last* reading of a stretch the history stops, and ``go_on`` begins with the state.
        """
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            sink = None if self.is_resting else self.sink
            if sink is not None and not getattr(self._moment, "is_reading", False):
                self._moment.is_reading = True
                with collector_off():
                    self._read_all(sink, with_state=with_state, is_last=is_last)
        finally:
            self._moment.is_reading = False
            self._lock.release()
        return True

    def finish(self) -> None:
        """Read the rest of a block, with the state at its end where the last one is old."""
        # A loop with a block per step would write its state each time; conclude writes the last one.
        if not self.read(with_state=monotonic() - self._stated_at > _STATE_S):
            text = "the last events of a block are missing: another thread was reading for more than 10 s"
            self._notes.once(Note(NoteCode.GAP, text))

    def note_what_is_missing(self) -> None:
        """Note the gaps without a note of their own, and allocations without a stack."""
        for log in self.logs.values():
            log.gaps.flush()
        logs = [log for i, log in self.logs.items() if i != HOST]
        n_without_stack = sum(log.n_without_stack for log in logs)
        # Autograd's own thread runs no Python: up to 68 % of a training's allocations, all those of backward.
        if n_without_stack and self.is_shared:
            share = n_without_stack / sum(log.n_allocations for log in logs)
            were = "allocation was" if n_without_stack == 1 else "allocations were"
            text = f"{n_without_stack:,} {were} recorded without a call stack ({format_share(share, 1, 0)})"
            self._notes.once(Note(NoteCode.NO_STACK, text, n_without_stack))

    def conclude(self) -> None:
        """Write the state at the end of the last block if it is not written yet."""
        if self._unwritten_state is not None and self.sink is not None:
            self._write_states(self.sink, self._unwritten_state)

    def _read_all(self, sink: Sink, *, with_state: bool, is_last: bool) -> None:
        if not history.is_on():
            self._restart_history()
        # Before the entries: marks and labels that come later wait for the next reading.
        records_of = self._records.take()
        wants_empty = not (self.is_shared or is_last) and self.pace.wants_emptying(self.n_new)
        read_ns = time_ns()
        began_s = thread_time()
        restart_with = self.pace.n_entries if wants_empty else 0
        raw, new_entries = _taken(self.logs, restart_with, has_segments=not is_last)
        self.pace.take_s = thread_time() - began_s
        reading = self._reading(raw, {i: (new.start, new.events) for i, new in new_entries.items()})
        # Each column is as long as the ring: it goes before the events are written.
        new_entries = {device: replace(new, events=None) for device, new in new_entries.items()}
        self._add_used_devices(raw)
        for device, log in self.logs.items():
            if not log.is_idle(raw):
                log.write(sink, reading, new_entries[device], records_of(device))
            if raw.is_emptied:
                log.forget_ring()
        is_whole = all(new.is_whole for new in new_entries.values())
        self.pace.count_emptying(raw, is_wanted=wants_empty, is_whole=is_whole)
        self._modules.cut(read_ns)
        reading.forget_events()
        if with_state:
            self._write_states(sink, reading)
        else:
            self._unwritten_state = reading
        self.pace.has_read(raw.counts(self._device)[1].alloc)

    def _write_states(self, sink: Sink, reading: Reading) -> None:
        for log in self.logs.values():
            log.write_state(sink, reading)
        self._stated_at = monotonic()
        self._unwritten_state = None

    def _reading(self, raw: RawReading, new: Mapping[int, NewOfDevice]) -> Reading:
        reading = Reading(raw, new, self._stacks, (str(torch.__version__), self._annotated_us))
        self._annotated_us = reading.annotated_us
        return reading

    def _restart_history(self) -> None:
        self.is_shared = False
        text = "the program switched the history off inside the recording: it was started again"
        self._notes.once(Note(NoteCode.HISTORY_STOPPED, text))
        history.start(self.pace.n_entries)

    def _add_used_devices(self, raw: RawReading) -> None:
        """Add devices once the program uses them: marks count the allocations of each used device."""
        counted = self._records.counted
        new = [i for i in self.logs if i not in (*counted, HOST) and any(raw.counts(i)[1])]
        self._records.counted = (*counted, *new)
        self._add_devices(new)


def _switch(*, is_on: bool) -> MarkRow:
    return int(MarkKind.EVENTS), int(Phase.OTHER), time_ns(), UNCOUNTED, 0, int(is_on), ""


def _taken(
    logs: Mapping[int, DeviceLog], restart_with: int, *, has_segments: bool
) -> tuple[RawReading, dict[int, NewEntries]]:
    """Take a reading and find what is new; with segments after all if that needs them."""
    places = {log: (log.counts, log.tail) for log in logs.values()}
    raw = history.take(list(logs), restart_with, has_segments=has_segments)
    new_entries = {device: log.find(raw) for device, log in logs.items()}
    if has_segments or all(new.stand_alone for new in new_entries.values()):
        return raw, new_entries
    for log, (counts, tail) in places.items():
        log.counts, log.tail = counts, tail
    return _taken(logs, 0, has_segments=True)
