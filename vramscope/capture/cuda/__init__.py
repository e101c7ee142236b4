"""Records CUDA's allocator: reads torch's own history (``_record_memory_history``) while the program runs.

torch can only return the whole history at once, which takes 1.1 µs an entry with the GIL held. So a reading
also empties it if the allocator's own counts prove that nothing happened meanwhile. If it cannot be emptied
(the program keeps it itself), new entries are distinguished from old ones by count.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic, time_ns
from traceback import walk_stack
from typing import Any

import torch

from vramscope.capture import Failed, Options, Sink, Source, hooks
from vramscope.capture.cuda import history, oom
from vramscope.capture.cuda.devices import device_at, ordinal
from vramscope.capture.cuda.emptied_cache import hook_emptied_cache
from vramscope.capture.cuda.history_calls import hook_program_calls
from vramscope.capture.cuda.history_reader import HistoryReader
from vramscope.capture.cuda.hook_records import HookLog
from vramscope.capture.cuda.ring.instants import UNCOUNTED
from vramscope.capture.cuda.thread_names import ThreadNames
from vramscope.capture.holders.growth_watch import Watch
from vramscope.capture.hooks.modules import ModuleLog
from vramscope.capture.hooks.stretches import Stretches
from vramscope.capture.labeling_listener import LabelingListener
from vramscope.capture.log import NoteLog, StackLog
from vramscope.capture.samples import Sampler, levels_so_far
from vramscope.capture.torch_versions.private_functions import IS_IN_BAD_FORK, ask
from vramscope.capture.undisturbed import Clockwork, Guarded, unheld
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import MarkKind, Note, Phase
from vramscope.stalls import is_stalled

_OOM_S = 1.0
"""Minimum time between readings for running out of memory, as a search for a batch size repeats it."""


_TRACED = (
    "tracemalloc traced the program, which makes torch's counters 30 times as slow: marks have their places "
    "among the events by time alone, to the microsecond, and steps without events one sample each"
)


class Cuda(LabelingListener):
    """Records the allocator's history of this process on every device that it uses."""

    def __init__(self, options: Options, failed: Failed) -> None:
        self.devices: Sequence[Device] = (device_at(ordinal()),)
        self._device = self.devices[0].index
        self._thread_names = ThreadNames()
        modules = ModuleLog(is_timed=True)
        self._notes = NoteLog()
        self._records = HookLog(self._device, modules, self._thread_names)
        watch = Watch(self._records.allocated_bytes, self._records.add_holder, self._notes.once)
        super().__init__(failed, modules, watch, self._records.add_labels)
        self._reader = HistoryReader(
            StackLog(options.stack_depth), self._records, modules, self._notes, self._add_devices
        )
        self._pace = self._reader.pace
        self._guard = Guarded(failed)
        self._stretches: Stretches | None = None
        if options.every is not None:
            levels = lambda: levels_so_far(self._records.counted)  # noqa: E731 -- of devices used later, too
            self._stretches = Stretches(options.every, self._reader, self, levels)
        self._samplers: dict[int, Sampler] = {}
        self._ring_guard: Clockwork | None = None
        self._oom_at = float("-inf")

    def start(self, sink: Sink) -> None:
        """Begin recording; memory that is allocated already becomes the initial state."""
        self._reader.sink = sink
        self.resume()

    def resume(self) -> None:
        """Continue recording: the next block was entered."""
        self._reader.start_history(self._device)
        self._reader.begin_or_bridge()
        hooks.install(self)
        hook_program_calls(self._before_program_call, self._after_program_call)
        hook_emptied_cache(self._take_stacks_of_frees)
        oom.listen(self._out_of_memory)
        for device in self.devices:
            self._sample(device)
        self._ring_guard = Clockwork(self._check_ring)

    def pause(self) -> None:
        """Take every hook out of the program: a block was left."""
        if self._stretches is not None:
            self._stretches.go_on()  # the block ends in the state that torch has
        hooks.uninstall()
        oom.ignore()
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
        self._reader.write_kept()
        with self._reader.writing:
            for device, sampler in list(self._samplers.items()):
                if self._reader.sink is not None:
                    self._reader.sink.append(sampler.take(), device)
                    self._write_limits(device, sampler)

    def catch_up(self) -> None:
        """Write everything recorded so far now; 1.1 µs per new event."""
        self.flush()
        if not is_stalled():
            unheld(self._reader.read)

    def inactive_split_bytes(self) -> Mapping[int, int]:
        """The bytes that torch counts now, by device."""
        if not torch.cuda.is_initialized():
            return {}
        return {
            i: int(history.stats(i)["inactive_split_bytes"]["all"]["current"]) for i in self._records.counted
        }

    def finish(self) -> None:
        """Write the rest of a block that was left, and stop the history."""
        try:
            self._reader.finish()
        finally:
            if not self._reader.is_shared:
                history.stop()
        self.flush()
        self._reader.note_what_is_missing()

    def conclude(self) -> None:
        """Write the state at the end of the last block if it is not written yet."""
        self._reader.conclude()
        for sampler in self._samplers.values():
            sampler.close()

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again; waits for nothing."""
        hooks.uninstall()
        oom.ignore()
        if self._ring_guard is not None:
            self._ring_guard.retire()
        for sampler in self._samplers.values():
            sampler.retire()
        is_ours = self._reader.sink is not None and not self._reader.is_shared
        self._reader.sink = None
        self._records.close()
        # A forked child cannot use CUDA, and must not try.
        if is_ours and ask(IS_IN_BAD_FORK) is False:
            history.stop()

    def notes(self) -> Sequence[Note]:
        """The notes that only the end of a block can give."""
        for note in self.checkpointing.notes():
            self._notes.once(note)
        if self._records.was_traced:
            self._notes.once(Note(NoteCode.TRACEMALLOC, _TRACED))
        return [
            *self._notes.take(),
            *hooks.recursion_notes(0),
            *(note for sampler in self._samplers.values() for note in sampler.notes()),
        ]

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """Record an event of the program; ``event`` holds the allocation count until the history is read."""
        if self._reader.sink is None:
            return
        if hooks.has_collected():
            self.mark(MarkKind.GC, value=2)
        if kind == MarkKind.PHASE_BEGIN and self._thread_names.phase_begins():
            self.mark(MarkKind.THREAD, value=1)
        if phase == Phase.RECOMPUTE:
            self.checkpointing.has_recomputed = True
        if self._stretches is not None:
            self._stretches.before(kind, phase, value)
        # Two dictionaries of torch's per mark: of steps without events one is enough.
        counts, now = () if self._reader.is_resting else self._records.counts(), time_ns()
        row = (int(kind), int(phase), now, UNCOUNTED, threading.get_ident(), value, name)
        if self._stretches is not None and self._reader.is_kept(row, self._samplers):
            return
        self._records.add_mark(row, counts or self._records.counts())
        if kind == MarkKind.STEP:
            self.watch.tick("step", 0, sys._getframe(1))
        is_on = self._ring_guard is not None  # else a block was entered or left while nothing is recorded
        if is_on and kind != MarkKind.GC and self._pace.reads_at_boundary(counts[0], self._reader.has_unread):
            unheld(lambda: self._reader.read(wait_s=0))  # a reading by another thread is as good

    def step_ends(self, optimizer: Any) -> None:
        """Label the optimizer's state, and read what NCCL's communicators hold."""
        super().step_ends(optimizer)
        for sampler in list(self._samplers.values()):
            sampler.step_ends()

    def _sample(self, device: Device) -> None:
        if device.index not in self._samplers:
            self._samplers[device.index] = Sampler(device.index, device.uuid, self.failed)
        self._samplers[device.index].start()

    def _check_ring(self) -> None:
        """Read a ring that is filling up, or if the program has passed no boundary for a while.

        Called ten times a second, by one thread alone: what a reading needs stays in its heap, 20 MB.
        """
        reader = self._reader
        try:
            if reader.sink is not None and self._pace.reads_by_guard(reader.n_new, reader.has_unread):
                reader.read(wait_s=0)
        except Exception as error:  # noqa: BLE001 -- the recorder's boundary
            self.failed(error)

    def _out_of_memory(self, device: int, asked: int, free: int) -> None:
        """Write the events and the limit to disk before the program sees its OutOfMemoryError."""
        if monotonic() - self._oom_at > _OOM_S:
            self._oom_at = monotonic()
            with self._guard:
                if self._stretches is not None and not self._stretches.is_on:
                    # A thread of autograd has no frame of Python but the observer's.
                    own = sys._getframe(1).f_back
                    walked = walk_stack(own) if own is not None else ()
                    callers = [(frame.f_code.co_name, frame.f_code.co_filename, n) for frame, n in walked]
                    unheld(self._stretches.go_on)
                    unheld(lambda: self._reader.write_failure(device, (asked, free), callers))
                unheld(lambda: self._read_at_error(device))

    def _read_at_error(self, device: int) -> None:
        self._reader.read(with_state=True)
        sampler = self._samplers.get(device)
        if sampler is not None:
            sampler.ask_limit()
            self._write_limits(device, sampler)

    def _write_limits(self, device: int, sampler: Sampler) -> None:
        for limit in sampler.take_limits():
            self._reader.note(limit, device)

    def _before_program_call(self) -> None:
        with self._guard:
            unheld(self._reader.read)

    def _after_program_call(self, is_on: bool) -> None:
        if is_on:
            self._reader.share()
            return
        self._reader.is_shared = False
        if self._reader.sink is not None:
            with suppress(RuntimeError):
                history.start(self._pace.n_entries)

    def _take_stacks_of_frees(self, are_taken: bool) -> None:
        with self._guard:
            if self._reader.sink is not None and not self._reader.is_shared and history.is_on():
                history.take_stacks_of_frees(self._pace.n_entries, are_taken=are_taken)

    def _add_devices(self, new: Sequence[int]) -> None:
        for index in new:
            self.devices = (*self.devices, device_at(index))
            if self._reader.sink is not None:
                self._reader.sink.device(self.devices[-1])
                self._sample(self.devices[-1])


def _source_without_history() -> str:
    """The counters, where the allocator keeps no history (``cudaMallocAsync``) or none can be read."""
    is_native = torch.cuda.get_allocator_backend() == "native"
    return "" if is_native and not history.obstacle() else "counters"


SOURCE = Source("cuda", available=torch.cuda.is_available, open=Cuda, instead=_source_without_history)
