"""What did CUDA's allocator do? Its own history, torch's ``_record_memory_history``, read while it runs.

torch can only hand over the whole history at once, 1.1 µs an entry with the GIL held. So each reading also
empties it where the allocator's own counts prove that nothing happened meanwhile, and the next costs what is
new. Where it cannot be emptied (the program keeps it itself), new entries are told from old ones by count.
"""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, time_ns
from typing import Any

import torch

from vramscope.capture import Failed, Options, Sink, Source, hooks
from vramscope.capture.allocator_settings import allocator_conf
from vramscope.capture.cuda import history, oom
from vramscope.capture.cuda.device_log import DeviceLog, Told
from vramscope.capture.cuda.history import Taken
from vramscope.capture.cuda.instants import UNCOUNTED
from vramscope.capture.cuda.reading import Reading, StackLog
from vramscope.capture.cuda.shared_history import Calls
from vramscope.capture.devices import device_at, ordinal
from vramscope.capture.holders.growth_watch import Watch
from vramscope.capture.hooks.modules import ModuleLog
from vramscope.capture.labels import Labeller
from vramscope.capture.log import LabelRow, MarkRow
from vramscope.capture.nvml import Clockwork
from vramscope.capture.samples import Sampler
from vramscope.capture.undisturbed import (
    is_of_a_signal_handler,
    undisturbed,
)
from vramscope.errors import CaptureError
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import Category, MarkKind, Note, Phase

_BOUNDARY_S, _FLUSH_S = 0.7, 1.0
"""So old must the last reading be at a boundary of the program, or for the flusher, which comes every 0.8 s:
with the time that it takes itself this keeps the promise of two seconds."""
_MANY_NEW = 50_000
"""So many new entries are read at a boundary in any case: 60 ms."""
_OOM_S = 1.0
"""A program that tries batch sizes runs out of memory again and again: read at most once in this time."""
_STATE_S = 5.0
"""A loop with a block per step does not write its whole state each time; the last is written by conclude."""
_DEAREST = 0.05
"""Of the time, where each reading takes the whole ring again."""
_LONGEST_WAIT_S = 10.0


class Cuda:
    """The allocator's history of this process, on every device that it uses."""

    def __init__(self, options: Options, failed: Failed) -> None:
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise CaptureError(f"torch's allocator backend is {backend!r}; only 'native' keeps a history")
        self.failed = failed
        self.torch = str(torch.__version__)
        self.devices: Sequence[Device] = (device_at(ordinal()),)
        conf = allocator_conf(str(torch.__version__))
        self.settings: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
        self._device = self.devices[0].index
        self.modules = ModuleLog(is_timed=True)
        self.watch = Watch(self._allocated_bytes, self._tell, self._tell_once)
        self._labeller = Labeller(self._tell, self.modules)
        self._sink: Sink | None = None
        self._samplers: dict[int, Sampler] = {}
        self._guard: Clockwork | None = None
        self._calls: Calls | None = None
        self._is_theirs = False
        self._can_empty = True
        self._is_emptied = True
        """Whether the last reading left the ring empty, so that the next costs what is new alone."""
        self._n_entries = history.MAX_ENTRIES
        self._n_read = 0
        """The count of allocations up to which the history was read."""
        self._logs: dict[int, DeviceLog] = {}
        self._counted: tuple[int, ...] = (self._device,)
        self._stacks = StackLog(options.stack_depth)
        self._annotated_us = 0
        self._read_at = self._read_s = 0.0
        self._stated_at = self._oom_at = float("-inf")
        self._unstated: Reading | None = None
        """What the allocator held at the end of the last block, if that is not written."""
        self._marks: list[tuple[MarkRow, tuple[int, ...]]] = []
        self._labels: list[tuple[int, int, LabelRow]] = []
        self._moment = threading.local()
        self._lock = threading.RLock()
        """Of the reading: one at a time, whichever thread."""
        self._notes: list[Note] = []
        self._told: set[str] = set()

    # ------------------------------------------------------------------------------- as a Capture

    def start(self, sink: Sink) -> None:
        """Begin; what exists already becomes the initial state."""
        self._sink = sink
        self.resume()

    def resume(self) -> None:
        """The next block was entered."""
        self._is_theirs = history.is_on()
        if self._is_theirs:
            self._tell_once(
                Note(NoteCode.SHARED_HISTORY, "the program records its history itself: it was only read")
            )
        else:
            with torch.cuda.device(self._device):
                history.start(self._n_entries)
        self._begin_or_bridge()
        self._calls = Calls(self._before_theirs, self._after_theirs)
        hooks.install(self)
        oom.listen(self._out_of_memory)
        for device in self.devices:
            self._sample(device)
        self._guard = Clockwork(self._on_guard)

    def pause(self) -> None:
        """A block was left: take every hook out of the program."""
        hooks.uninstall()
        oom.ignore()
        if self._calls is not None:
            self._calls.remove()
            self._calls = None
        if self._guard is not None:
            self._guard.stop()
            self._guard = None
        for sampler in self._samplers.values():
            sampler.stop()

    def enter_thread(self) -> None:
        """Nothing: the allocator sees every thread."""

    def exit_thread(self) -> None:
        """The calling thread left its outermost block."""
        hooks.forget_thread()

    def flush(self) -> None:
        """Samples; and the events, where the program came by no boundary for a while."""
        for device, sampler in list(self._samplers.items()):
            if self._sink is not None:
                self._sink.append(sampler.take(), device)
        if self._is_due(_FLUSH_S):
            self._read()

    def finish(self) -> None:
        """A block was left: hand over everything, and stop the history."""
        try:
            # A loop with a block per step would write its state each time: the last is left to conclude.
            self._read(with_state=monotonic() - self._stated_at > _STATE_S)
        finally:
            if not self._is_theirs:
                history.stop()
        self.flush()
        for log in self._logs.values():
            log.tell_rest()
        self._tell_blind()

    def conclude(self) -> None:
        """The program ends: the state at the end of the last block was not written yet perhaps."""
        if self._unstated is not None and self._sink is not None:
            self._write_states(self._sink, self._unstated)
        for sampler in self._samplers.values():
            sampler.close()

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again; waits for nothing."""
        hooks.uninstall()
        oom.ignore()
        if self._calls is not None:
            self._calls.remove()
        if self._guard is not None:
            self._guard.retire()
        for sampler in self._samplers.values():
            sampler.retire()
        is_ours = self._sink is not None and not self._is_theirs
        self._sink = None
        self._marks.clear()
        self._labels.clear()
        # A forked child cannot use CUDA, and must not try.
        if is_ours and not torch.cuda._is_in_bad_fork():
            history.stop()

    def notes(self) -> Sequence[Note]:
        """What only the end tells."""
        notes, self._notes = self._notes, []
        return [
            *notes,
            *hooks.too_deep(0),
            *(note for sampler in self._samplers.values() for note in sampler.notes()),
        ]

    # ----------------------------------------------------------------------- told by the program

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """A fact about the program, now; where ``event`` belongs stands the number of allocations."""
        if self._sink is None:
            return
        if hooks.has_collected():
            self.mark(MarkKind.GC, value=2)
        counts, now = self._counts(), time_ns()
        row = (int(kind), int(phase), now, UNCOUNTED, threading.get_ident(), value, name)
        self._marks.append((row, counts))
        if kind == MarkKind.STEP:
            self.watch.tick("step", 0, sys._getframe(1))
        if kind != MarkKind.GC:
            self._at_boundary(counts[0])

    def forward_begins(self, module: Any) -> None:
        """Its parameters and buffers are known by name."""
        with self._one_moment():
            self._labeller.module(module)

    def forward_ends(self, inputs: Any, result: Any) -> None:
        """Its inputs are known."""
        with self._one_moment():
            self._labeller.inputs(inputs)
            self._labeller.outputs(result)
        self.watch.tick("forward", 0, sys._getframe(1))

    def backward_ends(self) -> None:
        """Gradients are there."""
        with self._one_moment():
            self._labeller.gradients()
        self.watch.tick("backward", 0, sys._getframe(1))

    def step_begins(self, optimizer: Any) -> None:
        """Gradients of parameters that belong to no module seen."""
        with self._one_moment():
            self._labeller.parameters(optimizer)

    def step_ends(self, optimizer: Any) -> None:
        """Its state is there."""
        with self._one_moment():
            self._labeller.optimizer_state(optimizer)
        self.watch.tick("optimizer", id(optimizer), sys._getframe(1))

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """Labelling allocates nothing: the counts are asked once for a thousand gradients."""
        self._moment.counts = self._counts()
        try:
            yield
        finally:
            self._moment.counts = None

    def _tell(self, storage: Any, category: Category, name: str, element_bytes: int = 0) -> bool:
        device = storage.device
        if device.type == "cuda" and self._sink is not None:
            counts = getattr(self._moment, "counts", None) or self._counts()
            count = dict(zip(self._counted, counts, strict=False)).get(device.index, UNCOUNTED)
            row = (count, storage.data_ptr(), int(category), element_bytes, name)
            self._labels.append((device.index, time_ns(), row))
        return True

    def _counts(self) -> tuple[int, ...]:
        """Allocations so far on each device in use: 10 to 20 µs each, without synchronizing."""
        if not torch.cuda.is_initialized():
            return (UNCOUNTED,) * len(self._counted)
        return tuple(history.stats(device)["allocation"]["all"]["allocated"] for device in self._counted)

    def _allocated_bytes(self) -> int:
        if not torch.cuda.is_initialized():
            return 0
        return int(history.stats(self._device)["allocated_bytes"]["all"]["current"])

    # -------------------------------------------------------------------------- threads of our own

    def _sample(self, device: Device) -> None:
        if device.index not in self._samplers:
            self._samplers[device.index] = Sampler(device.index, device.uuid, self.failed)
        self._samplers[device.index].start()

    def _on_guard(self) -> None:
        """Ten times a second: a ring that fills is read before it is overwritten."""
        try:
            if self._sink is not None and self._n_new() > self._n_entries // 2:
                self._read()
        except Exception as error:  # noqa: BLE001 -- the recorder's boundary
            self.failed(error)

    # ------------------------------------------------------------------------------ when to read

    def _at_boundary(self, n_allocations: int) -> None:
        # An allocation makes about three entries: itself and two for its free.
        n_new = 3 * (n_allocations - self._n_read)
        many = min(_MANY_NEW, self._n_entries // 2) if self._is_emptied else self._n_entries // 2
        if self._is_due(_BOUNDARY_S) or n_new > many:
            undisturbed(lambda: self._read(wait_s=0), _LONGEST_WAIT_S)

    def _is_due(self, age_s: float) -> bool:
        if self._sink is None:
            return False
        # Where the ring cannot be emptied a reading costs all of it, however little is new.
        least = age_s if self._is_emptied else max(age_s, self._read_s / _DEAREST)
        return monotonic() - self._read_at > least and self._is_behind()

    def _is_behind(self) -> bool:
        if self._marks or self._labels:
            return True
        return any(log.is_behind(history.stats(log.device)) for log in self._logs.values())

    def _n_new(self) -> int:
        """Entries that are not read yet."""
        return sum(self._logs[device].n_new(history.stats(device)) for device in self._counted)

    def _out_of_memory(self, _device: int) -> None:
        """What happened is on disk before the program hears of it."""
        if monotonic() - self._oom_at > _OOM_S:
            self._oom_at = monotonic()
            try:
                undisturbed(lambda: self._read(with_state=True))
            except Exception as error:
                if is_of_a_signal_handler(error):
                    raise
                self.failed(error)

    def _before_theirs(self) -> None:
        try:
            undisturbed(self._read)
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            self.failed(error)

    def _after_theirs(self, is_on: bool) -> None:
        self._is_theirs = is_on
        if is_on:
            self._tell_once(
                Note(NoteCode.SHARED_HISTORY, "the program records its history itself: it was only read")
            )
        elif self._sink is not None:
            with suppress(RuntimeError):
                history.start(self._n_entries)

    # ------------------------------------------------------------------------------------ reading

    def _begin_or_bridge(self) -> None:
        """A block begins: the state is what there is, and only what comes now is new."""
        if not self._logs:
            self._logs = {i: DeviceLog(i, self._note) for i in range(torch.cuda.device_count())}
        logs = list(self._logs.values())
        if not self._is_theirs and not any(log.is_behind(history.stats(log.device)) for log in logs):
            for log in logs:
                log.forget_ring()
            self._read_at = monotonic()
            return
        taken = self._take_still()
        reading = self._reading(taken, {})
        sink = self._sink
        for log in logs:
            if sink is None or log.is_idle(taken):
                log.start_at(taken)
            elif log.is_begun:
                log.start_at(taken)
                if log.bridge_pause(sink, reading):
                    self._tell_once(
                        Note(NoteCode.GAP, "memory changed between two recorded blocks: shown as one moment")
                    )
            else:
                log.begin(sink, reading)
        self._see_devices(taken)
        self._n_read = taken.counts(self._device)[1].alloc
        self._read_at = monotonic()

    def _take_still(self) -> Taken:
        """Other threads may be allocating: a moment is looked for in which they do not."""
        for _ in range(5):
            taken = history.take(list(self._logs))
            if taken.is_still:
                break
        return taken

    def _read(self, *, with_state: bool = False, wait_s: float = _LONGEST_WAIT_S) -> None:
        """Everything that is new, as tables."""
        if not self._lock.acquire(timeout=wait_s):
            return
        try:
            if self._sink is not None and not getattr(self._moment, "is_reading", False):
                self._moment.is_reading = True
                with history.uncollected():
                    self._read_all(self._sink, with_state=with_state)
        finally:
            self._moment.is_reading = False
            self._lock.release()

    def _read_all(self, sink: Sink, *, with_state: bool) -> None:
        began = monotonic()
        if not history.is_on():
            self._restart_history()
        # Before the entries: what is told later waits for the next reading.
        told = self._take_told()
        wants_empty = self._can_empty and not self._is_theirs
        taken = history.take(list(self._logs), self._n_entries if wants_empty else 0)
        stretches = {device: log.find(taken) for device, log in self._logs.items()}
        reading = self._reading(taken, {device: found.start for device, found in stretches.items()})
        self._see_devices(taken)
        for device, log in self._logs.items():
            if not log.is_idle(taken):
                log.write(sink, reading, stretches[device], told(device))
            log.begin_ring(taken)
            self._can_empty &= not log.is_adrift
        self._is_emptied = taken.begun is not None
        self.modules.cut()
        reading.forget_events()
        if with_state:
            self._write_states(sink, reading)
        else:
            self._unstated = reading
        self._n_read = taken.counts(self._device)[1].alloc
        self._read_at = monotonic()
        self._read_s = self._read_at - began

    def _write_states(self, sink: Sink, reading: Reading) -> None:
        for log in self._logs.values():
            log.write_state(sink, reading)
        self._stated_at = monotonic()
        self._unstated = None

    def _reading(self, taken: Taken, starts: Mapping[int, int]) -> Reading:
        reading = Reading(taken, starts, self._stacks, (self.torch, self._annotated_us))
        self._annotated_us = reading.annotated_us
        return reading

    def _restart_history(self) -> None:
        self._is_theirs = False
        self._tell_once(
            Note(
                NoteCode.HISTORY_STOPPED,
                "the program switched the history off inside the recording: it was begun again",
            )
        )
        history.start(self._n_entries)

    def _take_told(self) -> Any:
        marks, labels = _taken_out(self._marks), _taken_out(self._labels)
        counted = self._counted

        def told(device: int) -> Told:
            at = counted.index(device) if device in counted else len(counted)
            mine = [
                (*row[:3], counts[at] if at < len(counts) else UNCOUNTED, *row[4:]) for row, counts in marks
            ]
            return Told(mine, [(now, row) for i, now, row in labels if i == device], self.modules.marks)

        return told

    def _see_devices(self, taken: Taken) -> None:
        """Marks count the allocations of each device that is used, from when it is."""
        new = [i for i in self._logs if i not in self._counted and any(taken.counts(i)[1])]
        for index in new:
            self._counted = (*self._counted, index)
            self.devices = (*self.devices, device_at(index))
            if self._sink is not None:
                self._sink.device(self.devices[-1])
                self._sample(self.devices[-1])

    # -------------------------------------------------------------------------------------- notes

    def _note(self, note: Note, device: int) -> None:
        """At once: who dies next cannot say it later."""
        if self._sink is not None:
            self._sink.note(note, device)

    def _tell_once(self, note: Note) -> None:
        if note.code not in self._told:
            self._told.add(note.code)
            self._notes.append(note)

    def _tell_blind(self) -> None:
        n_blind, n_moves = (
            sum(getattr(log, name) for log in self._logs.values()) for name in ("n_blind", "n_moves")
        )
        if n_blind:
            share = f"{n_blind / n_moves:.0%}"
            moves_were = "allocation or free was" if n_blind == 1 else "allocations and frees were"
            text = f"{n_blind:,} {moves_were} recorded without a call stack ({share})"
            self._tell_once(Note(NoteCode.NO_STACK, text, n_blind))


def _taken_out(rows: list[Any]) -> list[Any]:
    """What *rows* holds now; in place, as other threads may be adding to it."""
    n = len(rows)
    taken = rows[:n]
    del rows[:n]
    return taken


SOURCE = Source("cuda", available=torch.cuda.is_available, open=Cuda)
