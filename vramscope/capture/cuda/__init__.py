"""Records CUDA's allocator: reads torch's own history (``_record_memory_history``) while the program runs.

torch can only return the whole history at once, which takes 1.1 µs an entry with the GIL held. So each
reading also empties it if the allocator's own counts prove that nothing happened meanwhile; the next reading
then costs only its new entries. If the history cannot be emptied (the program keeps it itself), new entries
are distinguished from old ones by count.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import compress
from operator import attrgetter, methodcaller
from time import monotonic, thread_time, time_ns
from typing import Any

import torch

from vramscope.capture import Failed, Options, Sink, Source, hooks
from vramscope.capture.cuda import history, oom
from vramscope.capture.cuda.device_log import DeviceLog, HookRecords, NewEntries
from vramscope.capture.cuda.devices import device_at, limit_of, ordinal
from vramscope.capture.cuda.emptied_cache import EmptiedCache
from vramscope.capture.cuda.history import RawReading
from vramscope.capture.cuda.reading import NewOfDevice, Reading, StackLog
from vramscope.capture.cuda.ring.instants import UNCOUNTED
from vramscope.capture.cuda.shared_history import HistoryInterceptor
from vramscope.capture.cuda.thread_names import ThreadNames
from vramscope.capture.holders.growth_watch import Watch
from vramscope.capture.hooks.modules import ModuleLog
from vramscope.capture.labels import Labeler
from vramscope.capture.log import HolderRow, LabelBatch, MarkRow
from vramscope.capture.nvml import Clockwork
from vramscope.capture.samples import Sampler
from vramscope.capture.torch_versions.allocator_settings import allocator_conf
from vramscope.capture.torch_versions.private_functions import IS_IN_BAD_FORK, ask
from vramscope.capture.undisturbed import (
    is_of_a_signal_handler,
    undisturbed,
)
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.holders import Word
from vramscope.model.marks import Category, MarkKind, Note, Phase

_DEVICE, _ADDRESS = attrgetter("device"), methodcaller("data_ptr")
_BOUNDARY_S, _FLUSH_S = 0.7, 1.0
"""Age of the last reading at which a boundary of the program, or the guard of the ring, reads again.

The guard looks every 0.1 s; together with its own time this bounds what a killed process loses to two
seconds.
"""
_MANY_NEW = 20_000
"""Number of new entries that are read at any age, by a boundary of the program or by the guard of the ring.

From torch 2.9 on an emptied ring begins without room, and the thread that allocates makes it again, in twice
the size each time: 13 MB for 65,536 entries, 27 MB for one more, of which glibc keeps nearly all in the heap
of that thread. With 50,000, and no bound for the guard, four threads had 100 MB of it after 40 s.
"""
_MOST_RETRIES = 3
"""Number of readings soon after one whose emptying another thread prevented, which is one in 10 to 30."""
_RETRY_NEW = 2_000
"""Number of new entries that such a reading waits for."""
_OOM_S = 1.0
"""Minimum time between readings for running out of memory, as a search for a batch size repeats it."""
_STATE_S = 5.0
"""Minimum time between two written states in a loop with a block per step; conclude writes the last."""
_MOST_TIME_SHARE = 0.05
"""Largest share of time spent on entries that were read before, where the ring cannot be emptied."""
_LONGEST_WAIT_S = 10.0
_MOST_LOST_SHARE = 0.02
"""Largest share of emptied rings that may lose entries; above it the ring is not emptied any more.

Under three times the load of a busy machine it was 0.006.
"""


class Cuda:
    """Records the allocator's history of this process on every device that it uses."""

    def __init__(self, options: Options, failed: Failed) -> None:
        self.failed = failed
        self.torch = str(torch.__version__)
        self.devices: Sequence[Device] = (device_at(ordinal()),)
        conf = allocator_conf(str(torch.__version__))
        self.settings: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
        self._device = self.devices[0].index
        self.modules = ModuleLog(is_timed=True)
        self._thread_names = ThreadNames()
        self.watch = Watch(self._allocated_bytes, self._add_holder, self._note_once)
        self._labeler = Labeler(self._add_labels, self.modules)
        self._sink: Sink | None = None
        self._samplers: dict[int, Sampler] = {}
        self._ring_guard: Clockwork | None = None
        # They stand around functions of torch while a block runs.
        self._wrappers: Sequence[HistoryInterceptor | EmptiedCache] = ()
        # Whether the program keeps the history itself, and whether the last reading emptied the ring.
        self._is_shared = self._is_emptied = False
        self._n_emptied = self._n_lost_by_emptying = 0
        # Number of readings in a row whose emptying another thread prevented.
        self._n_prevented = 0
        self._n_left = 0
        """Number of entries that the last reading left in the ring: the next one reads them again."""
        self._n_entries = history.MAX_ENTRIES
        self._n_read = 0
        """The allocation count up to which the history has been read."""
        self._logs: dict[int, DeviceLog] = {}
        self._counted: tuple[int, ...] = (self._device,)
        self._stacks = StackLog(options.stack_depth)
        self._annotated_us = 0
        self._read_at = self._take_s = 0.0
        self._stated_at = self._oom_at = float("-inf")
        self._unwritten_state: Reading | None = None
        """The reading at the end of the last block, if its state is not written yet."""
        self._marks: list[tuple[MarkRow, tuple[int, ...]]] = []
        self._labels: list[LabelBatch] = []
        self._holders: list[tuple[int, int, HolderRow]] = []
        self._moment = threading.local()
        self._lock = threading.RLock()
        """Guards the reading: one thread at a time."""
        self._notes: list[Note] = []
        self._noted: set[str] = set()
        self._limits: dict[int, int] = {}
        """The last limit noted of each device in bytes."""

    # ------------------------------------------------------------------------------- as a Capture

    def start(self, sink: Sink) -> None:
        """Begin recording; memory that is allocated already becomes the initial state."""
        self._sink = sink
        self.resume()

    def resume(self) -> None:
        """Continue recording: the next block was entered."""
        self._is_shared = history.is_on()
        if self._is_shared:
            self._note_once(
                Note(NoteCode.SHARED_HISTORY, "the program records its history itself: it was only read")
            )
        else:
            with torch.cuda.device(self._device):
                history.start(self._n_entries)
        self._begin_or_bridge()
        self._wrappers = (
            HistoryInterceptor(self._before_program_call, self._after_program_call),
            EmptiedCache(self._take_stacks_of_frees),
        )
        hooks.install(self)
        oom.listen(self._out_of_memory)
        for device in self.devices:
            self._sample(device)
        self._ring_guard = Clockwork(self._check_ring)

    def pause(self) -> None:
        """Take every hook out of the program: a block was left."""
        hooks.uninstall()
        oom.ignore()
        self._leave_torch()
        if self._ring_guard is not None:
            self._ring_guard.stop()
            self._ring_guard = None
        for sampler in self._samplers.values():
            sampler.stop()

    def enter_thread(self) -> None:
        """No-op: the allocator's history covers every thread."""

    def exit_thread(self) -> None:
        """Forget the open phases of the calling thread, which left its outermost block."""
        hooks.forget_thread()
        self._thread_names.forget_thread()

    def flush(self) -> None:
        """Write the samples; the guard of the ring reads the events."""
        for device, sampler in list(self._samplers.items()):
            if self._sink is not None:
                self._sink.append(sampler.take(), device)

    def catch_up(self) -> None:
        """Write everything recorded so far now; 1.1 µs per new event."""
        self.flush()
        undisturbed(self._read, _LONGEST_WAIT_S)

    def inactive_split_bytes(self) -> Mapping[int, int]:
        """The bytes that torch counts now, by device."""
        if not torch.cuda.is_initialized():
            return {}
        return {i: int(history.stats(i)["inactive_split_bytes"]["all"]["current"]) for i in self._counted}

    def finish(self) -> None:
        """Write the rest of a block that was left, and stop the history."""
        try:
            # A loop with a block per step would write its state each time; conclude writes the last one.
            if not self._read(with_state=monotonic() - self._stated_at > _STATE_S):
                text = "the last events of a block are missing: another thread was reading for more than 10 s"
                self._note_once(Note(NoteCode.GAP, text))
        finally:
            if not self._is_shared:
                history.stop()
        self.flush()
        for log in self._logs.values():
            log.flush_gap_notes()
        self._note_missing_stacks()

    def conclude(self) -> None:
        """Write the state at the end of the last block if it is not written yet."""
        if self._unwritten_state is not None and self._sink is not None:
            self._write_states(self._sink, self._unwritten_state)
        for sampler in self._samplers.values():
            sampler.close()

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again; waits for nothing."""
        hooks.uninstall()
        oom.ignore()
        self._leave_torch()
        if self._ring_guard is not None:
            self._ring_guard.retire()
        for sampler in self._samplers.values():
            sampler.retire()
        is_ours = self._sink is not None and not self._is_shared
        self._sink = None
        self._marks.clear()
        self._labels.clear()
        self._holders.clear()
        # A forked child cannot use CUDA, and must not try.
        if is_ours and ask(IS_IN_BAD_FORK) is False:
            history.stop()

    def notes(self) -> Sequence[Note]:
        """The notes that only the end of a block can give."""
        notes, self._notes = self._notes, []
        return [
            *notes,
            *hooks.recursion_notes(0),
            *(note for sampler in self._samplers.values() for note in sampler.notes()),
        ]

    # ------------------------------------------------------------------------- as a hooks.Listener

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """Record an event of the program; ``event`` holds the allocation count until the history is read."""
        if self._sink is None:
            return
        if hooks.has_collected():
            self.mark(MarkKind.GC, value=2)
        if kind == MarkKind.PHASE_BEGIN and self._thread_names.phase_begins():
            self.mark(MarkKind.THREAD, value=1)
        counts, now = self._counts(), time_ns()
        row = (int(kind), int(phase), now, UNCOUNTED, threading.get_ident(), value, name)
        self._marks.append((row, counts))
        if kind == MarkKind.STEP:
            self.watch.tick("step", 0, sys._getframe(1))
        if kind != MarkKind.GC:
            self._at_boundary(counts[0])

    @property
    def mesh(self) -> Mapping[str, int]:
        """The coordinates of this process in the mesh of the program's parameters."""
        return self._labeler.mesh

    def forward_begins(self, module: Any) -> None:
        """Label the parameters and buffers of a root module by name."""
        self._labeler.module(module)

    def forward_ends(self, inputs: Any, result: Any) -> None:
        """Label the inputs and outputs of a root module."""
        self._labeler.inputs(inputs)
        self._labeler.outputs(result)
        self.watch.tick("forward", 0, sys._getframe(1))

    def backward_ends(self) -> None:
        """Label the gradients after a backward pass."""
        self._labeler.gradients()
        self.watch.tick("backward", 0, sys._getframe(1))

    def step_begins(self, optimizer: Any) -> None:
        """Label an optimizer's parameters and gradients, including those of no recorded module."""
        self._labeler.parameters(optimizer)

    def step_ends(self, optimizer: Any) -> None:
        """Label the optimizer's state."""
        self._labeler.optimizer_state(optimizer)
        self.watch.tick("optimizer", id(optimizer), sys._getframe(1))
        for sampler in list(self._samplers.values()):
            sampler.communicators.read()

    def _add_labels(
        self, storages: Sequence[Any], category: Category, names: Sequence[str], element_bytes: Sequence[int]
    ) -> Sequence[bool]:
        if self._sink is not None:
            # Labeling allocates nothing, so one count is right for the whole hook.
            counts, now = dict(zip(self._counted, self._counts(), strict=False)), time_ns()
            places = list(map(_cuda_index, map(_DEVICE, storages)))
            for device in {place for place in places if place is not None}:
                is_there = [place == device for place in places]
                self._labels.append(
                    LabelBatch(
                        device,
                        now,
                        counts.get(device, UNCOUNTED),
                        int(category),
                        addresses=list(map(_ADDRESS, compress(storages, is_there))),
                        element_bytes=list(compress(element_bytes, is_there)),
                        names=list(compress(names, is_there)),
                    )
                )
        return [True] * len(storages)

    def _add_holder(self, storage: Any, words: Sequence[Word]) -> None:
        if storage.device.type == "cuda" and self._sink is not None:
            # A search is long: other threads allocate meanwhile.
            counts = dict(zip(self._counted, map(_allocations, self._stats()), strict=False))
            row = (counts.get(storage.device.index, UNCOUNTED), storage.data_ptr(), words)
            self._holders.append((storage.device.index, time_ns(), row))

    def _stats(self) -> Sequence[Any]:
        """The statistics of each device in use; 15 µs a device, without synchronizing."""
        return tuple(map(history.stats, self._counted)) if torch.cuda.is_initialized() else ()

    def _counts(self) -> tuple[int, ...]:
        """Allocations so far on each device in use, read once in a hook."""
        found = tuple(map(_allocations, hooks.once_a_hook(self._stats)))
        return found or (UNCOUNTED,) * len(self._counted)

    def _allocated_bytes(self) -> int:
        found = hooks.once_a_hook(self._stats)
        return int(found[0]["allocated_bytes"]["all"]["current"]) if found else 0

    # ------------------------------------------------------------------------- background threads

    def _sample(self, device: Device) -> None:
        if device.index not in self._samplers:
            self._samplers[device.index] = Sampler(device.index, device.uuid, self.failed)
        self._samplers[device.index].start()

    def _check_ring(self) -> None:
        """Read a ring that is filling up, or if the program has passed no boundary for a while.

        Called ten times a second. All readings in the background are made by this one thread, because what a
        reading needs for a moment stays in the heap of the thread that made it: 20 MB.
        """
        try:
            if self._sink is not None and (self._is_due(_FLUSH_S) or self._n_new() > self._most_new()):
                # A reading by another thread is as good.
                self._read(wait_s=0)
        except Exception as error:  # noqa: BLE001 -- the recorder's boundary
            self.failed(error)

    # ------------------------------------------------------------------------------ when to read

    def _at_boundary(self, n_allocations: int) -> None:
        # An allocation makes about three entries: one for itself and two for its free.
        n_new = 3 * (n_allocations - self._n_read)
        # Nearly always neither time nor number can be enough, whatever was left: asked eight times a step.
        is_young = monotonic() - self._read_at <= _BOUNDARY_S
        if is_young and n_new <= min(_RETRY_NEW, self._n_entries // 2):
            return
        if self._is_due(_BOUNDARY_S) or n_new > self._most_new():
            undisturbed(lambda: self._read(wait_s=0), _LONGEST_WAIT_S)

    def _most_new(self) -> int:
        """Number of new entries that are read at any age: after some retries as many as were left.

        When a reading after a prevented one came only after 20 times the time of that, or with half of the
        ring, it had 160,000 entries on a busy machine; without retries 100,000 once in five minutes.
        """
        most = _RETRY_NEW if self._is_retrying() else max(_MANY_NEW, self._n_left)
        return min(most, self._n_entries // 2)

    def _is_retrying(self) -> bool:
        return 0 < self._n_prevented <= _MOST_RETRIES

    def _is_due(self, age_s: float) -> bool:
        if self._sink is None:
            return False
        # If the ring cannot be emptied, a reading takes all of it again, however little is new.
        is_long = self._n_left >= history.FEWEST_EMPTIED and not self._is_retrying()
        least = max(age_s, self._take_s / _MOST_TIME_SHARE) if is_long else age_s
        return monotonic() - self._read_at > least and self._has_unread()

    def _has_unread(self) -> bool:
        if self._marks or self._labels or self._holders:
            return True
        return any(log.has_unread(history.stats(log.device)) for log in self._logs.values())

    def _n_new(self) -> int:
        """Number of entries that are not read yet."""
        return sum(self._logs[device].n_new(history.stats(device)) for device in self._counted)

    def _out_of_memory(self, device: int) -> None:
        """Write the events and the limit to disk before the program sees its OutOfMemoryError."""
        if monotonic() - self._oom_at > _OOM_S:
            self._oom_at = monotonic()
            try:
                undisturbed(lambda: self._read_at_error(device))
            except Exception as error:
                if is_of_a_signal_handler(error):
                    raise
                self.failed(error)

    def _read_at_error(self, device: int) -> None:
        self._read(with_state=True)
        found = limit_of(device)
        if found is not None and self._limits.get(device) != found.value:
            self._limits[device] = found.value
            self._note(found, device)

    def _before_program_call(self) -> None:
        try:
            undisturbed(self._read)
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            self.failed(error)

    def _after_program_call(self, is_on: bool) -> None:
        self._is_shared = is_on
        if is_on:
            self._note_once(
                Note(NoteCode.SHARED_HISTORY, "the program records its history itself: it was only read")
            )
        elif self._sink is not None:
            with suppress(RuntimeError):
                history.start(self._n_entries)

    def _take_stacks_of_frees(self, are_taken: bool) -> None:
        try:
            if self._sink is not None and not self._is_shared and history.is_on():
                history.take_stacks_of_frees(self._n_entries, are_taken=are_taken)
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            self.failed(error)

    def _leave_torch(self) -> None:
        for wrapper in self._wrappers:
            wrapper.remove()
        self._wrappers = ()

    # ------------------------------------------------------------------------------------ reading

    def _begin_or_bridge(self) -> None:
        """Begin a block: write the initial state, or events that lead from the last block's end to now."""
        if not self._logs:
            self._logs = {i: DeviceLog(i, self._note) for i in range(torch.cuda.device_count())}
        logs = list(self._logs.values())
        if not self._is_shared and not any(log.has_unread(history.stats(log.device)) for log in logs):
            for log in logs:
                log.forget_ring()
            self._read_at = monotonic()
            return
        raw = self._take_consistent()
        reading = self._reading(raw, {})
        sink = self._sink
        for log in logs:
            if sink is None or log.is_idle(raw):
                log.start_at(raw)
            elif log.is_begun:
                log.start_at(raw)
                if log.bridge_pause(sink, reading):
                    self._note_once(
                        Note(NoteCode.GAP, "memory changed between two recorded blocks: shown as one moment")
                    )
            else:
                log.begin(sink, reading)
        self._add_used_devices(raw)
        self._n_read = raw.counts(self._device)[1].alloc
        self._read_at = monotonic()

    def _take_consistent(self) -> RawReading:
        """Take a reading during which nothing happened; other threads may allocate, so at most 5 tries."""
        for _ in range(5):
            raw = history.take(list(self._logs))
            if raw.is_consistent:
                break
        return raw

    def _read(self, *, with_state: bool = False, wait_s: float = _LONGEST_WAIT_S) -> bool:
        """Read everything new and write it as tables; returns whether no other thread prevented it."""
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            if self._sink is not None and not getattr(self._moment, "is_reading", False):
                self._moment.is_reading = True
                with history.uncollected():
                    self._read_all(self._sink, with_state=with_state)
        finally:
            self._moment.is_reading = False
            self._lock.release()
        return True

    def _read_all(self, sink: Sink, *, with_state: bool) -> None:
        if not history.is_on():
            self._restart_history()
        # Before the entries: marks and labels that come later wait for the next reading.
        records_of = self._take_hook_records()
        wants_empty = not self._is_shared and self._can_empty() and self._is_worth_emptying()
        read_ns = time_ns()
        # Of the thread: on a busy machine a reading takes several times as long by the clock.
        began_s = thread_time()
        raw = history.take(list(self._logs), self._n_entries if wants_empty else 0)
        self._take_s = thread_time() - began_s
        new_entries = {device: log.find(raw) for device, log in self._logs.items()}
        reading = self._reading(raw, {i: (found.start, found.columns) for i, found in new_entries.items()})
        # Each column is as long as the ring: it goes before the events are written.
        new_entries = {device: replace(found, columns=None) for device, found in new_entries.items()}
        self._add_used_devices(raw)
        for device, log in self._logs.items():
            if not log.is_idle(raw):
                log.write(sink, reading, new_entries[device], records_of(device))
            if raw.is_emptied:
                log.forget_ring()
        self._count_emptyings(raw, new_entries)
        self._n_prevented = self._n_prevented + 1 if wants_empty and not raw.is_emptied else 0
        self.modules.cut(read_ns)
        reading.forget_events()
        if with_state:
            self._write_states(sink, reading)
        else:
            self._unwritten_state = reading
        self._n_read = raw.counts(self._device)[1].alloc
        self._read_at = monotonic()

    def _count_emptyings(self, raw: RawReading, found: Mapping[int, NewEntries]) -> None:
        """Note whether the last emptying lost entries, and what this reading leaves in the ring."""
        n_read = max(map(len, raw.snapshot["device_traces"]), default=0)
        if self._is_emptied and n_read < self._n_entries:
            self._n_lost_by_emptying += any(not entries.is_whole for entries in found.values())
        self._is_emptied = raw.is_emptied
        self._n_emptied += raw.is_emptied
        self._n_left = 0 if raw.is_emptied else n_read

    def _is_worth_emptying(self) -> bool:
        least = min(history.FEWEST_EMPTIED, self._n_entries // 2)
        return self._n_left + self._n_new() >= least

    def _can_empty(self) -> bool:
        """Whether emptying the ring is safe enough: few attempts lost entries to threads of C++."""
        return self._n_lost_by_emptying <= 1 + self._n_emptied * _MOST_LOST_SHARE

    def _write_states(self, sink: Sink, reading: Reading) -> None:
        for log in self._logs.values():
            log.write_state(sink, reading)
        self._stated_at = monotonic()
        self._unwritten_state = None

    def _reading(self, raw: RawReading, new: Mapping[int, NewOfDevice]) -> Reading:
        reading = Reading(raw, new, self._stacks, (self.torch, self._annotated_us))
        self._annotated_us = reading.annotated_us
        return reading

    def _restart_history(self) -> None:
        self._is_shared = False
        self._note_once(
            Note(
                NoteCode.HISTORY_STOPPED,
                "the program switched the history off inside the recording: it was started again",
            )
        )
        history.start(self._n_entries)

    def _take_hook_records(self) -> Any:
        marks, labels, holders = _drained(self._marks), _drained(self._labels), _drained(self._holders)
        counted = self._counted

        def records_of(device: int) -> HookRecords:
            at = counted.index(device) if device in counted else len(counted)
            mine = [
                (*row[:3], counts[at] if at < len(counts) else UNCOUNTED, *row[4:]) for row, counts in marks
            ]
            return HookRecords(
                mine,
                [batch for batch in labels if batch.device == device],
                [(now, row) for i, now, row in holders if i == device],
                self.modules.marks,
                self._thread_names.makers if self._thread_names.are_used else None,
            )

        return records_of

    def _add_used_devices(self, raw: RawReading) -> None:
        """Add devices once the program uses them: marks count the allocations of each used device."""
        new = [i for i in self._logs if i not in self._counted and any(raw.counts(i)[1])]
        for index in new:
            self._counted = (*self._counted, index)
            self.devices = (*self.devices, device_at(index))
            if self._sink is not None:
                self._sink.device(self.devices[-1])
                self._sample(self.devices[-1])

    # -------------------------------------------------------------------------------------- notes

    def _note(self, note: Note, device: int) -> None:
        """Write a note immediately: a process that is killed could not write it later."""
        if self._sink is not None:
            self._sink.note(note, device)

    def _note_once(self, note: Note) -> None:
        if note.code not in self._noted:
            self._noted.add(note.code)
            self._notes.append(note)

    def _note_missing_stacks(self) -> None:
        n_without_stack, n_allocations = (
            sum(getattr(log, name) for log in self._logs.values())
            for name in ("n_without_stack", "n_allocations")
        )
        if n_without_stack:
            share = f"{n_without_stack / n_allocations:.0%}"
            were = "allocation was" if n_without_stack == 1 else "allocations were"
            text = f"{n_without_stack:,} {were} recorded without a call stack ({share})"
            self._note_once(Note(NoteCode.NO_STACK, text, n_without_stack))


def _allocations(stats: Any) -> int:
    """The number of allocations in the statistics of a device."""
    found: int = stats["allocation"]["all"]["allocated"]
    return found


@cache
def _cuda_index(device: torch.device) -> int | None:
    """The index of a CUDA device, None for any other; asking a device for its type takes 0.4 µs."""
    return device.index if device.type == "cuda" else None


def _drained(rows: list[Any]) -> list[Any]:
    """Remove and return all current rows; in place, as other threads may be appending."""
    n = len(rows)
    raw = rows[:n]
    del rows[:n]
    return raw


def _source_without_history() -> str:
    """The counters, where the allocator keeps no history (``cudaMallocAsync``) or none can be read."""
    is_native = torch.cuda.get_allocator_backend() == "native"
    return "" if is_native and not history.obstacle() else "counters"


SOURCE = Source("cuda", available=torch.cuda.is_available, open=Cuda, instead=_source_without_history)
