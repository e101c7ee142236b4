"""Records a program on the CPU as if CUDA's allocator served it, for machines without a GPU.

The creation and release of every storage goes through a model of the caching allocator. The program still
runs on the CPU: workspaces inside an operator are not seen, and CPU kernels save other tensors than CUDA
kernels. What a data loader allocates and frees before it returns its batch is no part of it: transforms work
on the host. The result is always labeled *simulated*; it is not a prediction.
"""

import math
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import compress
from time import time_ns
from types import FrameType
from typing import Any

import numpy as np
import torch

from vramscope.allocator.levels import inactive_split_bytes
from vramscope.allocator.settings import Settings
from vramscope.allocator.simulation import (
    CachingAllocator,
    OutOfMemory,
)
from vramscope.capture import Failed, Options, Sink, Source, hooks
from vramscope.capture.holders.frozen import frozen_objects
from vramscope.capture.holders.growth_watch import Watch
from vramscope.capture.hooks.modules import NONE, ModuleLog
from vramscope.capture.labels import Labeler, tensors_in
from vramscope.capture.log import (
    HolderRow,
    LabelRow,
    MarkRow,
    labels_table,
    marks_table,
)
from vramscope.capture.simulated.stacks import CallPath, StackWalker
from vramscope.capture.simulated.storages import Life, Storages
from vramscope.capture.torch_versions.allocator_settings import allocator_conf
from vramscope.capture.undisturbed import undisturbed
from vramscope.errors import CaptureError
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.holders import Holders, Word
from vramscope.model.marks import ANY_THREAD, Category, MarkKind, Note, Phase
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace
from vramscope.units import format_bytes

_COLUMNS = len(Trace.DTYPES)
# Events waiting for the writer, 300 bytes each: above the first number the program's own thread writes them,
# above the second (a disk that hangs) recording stops.
_MANY_WAITING = 500_000
_TOO_MANY_WAITING = 4_000_000
_MANY_QUEUED = 1_000_000
"""Queue entries, seven per event, above which the program waits for the queue to be emptied."""
_LONGEST_WAIT_S = 5.0
_STATE_INTERVAL_S = 10.0
_EVENTS = _PLACE, _REPLACE, _MARK, _LABEL, _HOLDER = range(5)


class Simulated:
    """Records the simulated device of this process.

    Events come from any thread and from within any code (a weak reference calls back wherever the garbage
    collector runs), so no event may wait: each enters one queue by a single call of C code, which no signal
    handler interrupts. The order of the queue is the order of events. The queue is emptied on background
    threads, which no signal handler interrupts, at each training step and each flush.
    """

    def __init__(self, options: Options, failed: Failed) -> None:
        conf = allocator_conf(str(torch.__version__))
        settings = Settings.from_conf(conf, torch=torch.__version__)
        self.failed = failed
        self.torch = str(torch.__version__)
        self.settings: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
        self.devices: Sequence[Device] = (
            Device(0, "simulated", f"simulated on {platform.machine()}", options.capacity_bytes or 0),
        )
        self._allocator = CachingAllocator(settings, options.capacity_bytes, self._emit)
        self._queue: deque[Any] = deque()
        """Queued events: a Life whose storage is gone; or a number of _EVENTS, a time and five arguments.

        The entries are not tuples: Python's garbage collector would count waiting tuples, run more often than
        without vramscope, and free the program's cycles earlier.
        """
        self.died = self._queue.append
        self._storages = Storages(self)
        self._placed: dict[int, Life] = {}
        """Every storage with a block, by the address of its C++ object."""
        self.modules = ModuleLog(is_timed=False)
        self._module = NONE
        self._labeler = Labeler(self._add_labels, self.modules)
        self.watch = Watch(self.allocated_bytes, self._add_holder, self._note)
        self._builder = StackBuilder()
        self._walker = StackWalker(self._builder, options.stack_depth)
        self._sink: Sink | None = None
        self._at_work = threading.RLock()
        self._writing = threading.Lock()
        self._is_initial = True
        self._n_events, self._n_stacks = 0, 1
        self._stated_s = -math.inf
        self._now = 0
        self._stack_id = 0
        # One flat list: the garbage collector would count tuples, run more often than without vramscope, and
        # free the program's cycles earlier.
        self._rows: list[int] = []
        self._marks: list[MarkRow] = []
        self._labels: list[LabelRow] = []
        self._holders: list[HolderRow] = []
        self._notes: list[Note] = []
        self._noted: set[str] = set()
        self._phase_threads: set[int] = set()
        """The threads that began a phase."""
        self._maker = ANY_THREAD
        """The thread of the last event."""
        self._fetched: dict[int, list[tuple[Life, CallPath | None]]] = {}
        """What the data loader that a thread runs has allocated so far, by thread."""
        self._threads, self._other_threads = set[int](), set[int]()

    # ------------------------------------------------------------------------------- as a Capture

    def start(self, sink: Sink) -> None:
        """Begin recording; storages that exist already become the initial state."""
        self._storages.adopt(everything=True, frozen=self._frozen())
        with self._at_work:
            self._work()
            self._is_initial = False
            initial = self._allocator.snapshot(0, self._now)
        sink.state(initial, 0, reported=False)
        self._sink = sink
        self._hook()

    def _frozen(self) -> Sequence[Any]:
        """Objects that the program hid from the garbage collector, and that may be tensors."""
        return frozen_objects()

    def resume(self) -> None:
        """Continue recording: the next block was entered.

        The weak references stayed during the pause, so every release was seen. New storages are taken in if
        the garbage collector still counts their tensors as young, the rest once an operator returns them.
        """
        self._storages.adopt(everything=False)
        self._hook()

    def _hook(self) -> None:
        self._storages.wrap_resize()
        hooks.install(self)

    def pause(self) -> None:
        """Take every hook out of the program: a block was left."""
        hooks.uninstall()
        self._storages.unwrap_resize()

    def enter_thread(self) -> None:
        """Observe the operators of the calling thread."""
        self._threads.add(threading.get_ident())
        self._storages.enter_thread()

    def exit_thread(self) -> None:
        """Stop observing the calling thread, which left its outermost block."""
        self._threads.discard(threading.get_ident())
        hooks.forget_thread()
        self._storages.exit_thread()

    def flush(self) -> None:
        """Write everything recorded so far."""
        with self._writing:
            self._write()

    def catch_up(self) -> None:
        """Write everything recorded so far now."""
        undisturbed(self.flush, _LONGEST_WAIT_S)

    def inactive_split_bytes(self) -> Mapping[int, int]:
        """Bytes in free pieces of used segments of the simulated device."""
        self._catch_up()
        with self._at_work:
            state = self._allocator.snapshot(self._n_events, self._now)
        return {0: inactive_split_bytes(state)}

    def finish(self) -> None:
        """Write the rest of a block that was left, and the state at its end.

        With a block per step not every end gets a state (40 bytes per memory block): ``conclude`` writes the
        last.
        """
        with self._writing:
            self._write(is_end=time.monotonic() - self._stated_s > _STATE_INTERVAL_S)

    def conclude(self) -> None:
        """Write the events since the last block and the state at the program's end."""
        with self._writing:
            self._write(is_end=True)

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again; waits for nothing."""
        self.pause()
        self._sink = None
        self._storages.quiet = True
        self._storages.live.clear()
        self._placed.clear()
        self._queue.clear()
        self._rows.clear()

    def notes(self) -> list[Note]:
        """The notes that only the end of a block can give."""
        found = []
        if not self._storages.n_born:
            text = "no GPU and no tensor on the CPU: nothing was recorded"
            if self._storages.saw_fake:
                text = (
                    "fake tensors have no memory, and there were no others: nothing was recorded. "
                    "`vramscope predict` runs a program under fake tensors and records what it would allocate"
                )
            found.append(Note(NoteCode.NOTHING_SEEN, text))
        if self._storages.n_late:
            text = (
                "some storages were first seen after their creation: created outside of the blocks or in C++"
            )
            found.append(Note(NoteCode.SEEN_LATE, text, self._storages.n_late))
        if self._other_threads:
            text = (
                "modules were called on threads that entered no block: what they allocate is seen late or not"
            )
            found.append(Note(NoteCode.OTHER_THREADS, text, len(self._other_threads)))
        found += hooks.recursion_notes(self._storages.n_too_deep)
        self._storages.n_too_deep = 0
        new = [note for note in found if note.code not in self._noted]
        self._noted.update(note.code for note in new)
        return new

    # ------------------------------------------------- as a hooks.Listener and a StorageListener

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """Record an event of the program at this moment."""
        if self._storages.quiet:
            return
        if hooks.has_collected():
            self._queue.extend((_MARK, time_ns(), int(MarkKind.GC), 0, threading.get_ident(), 2, ""))
        if kind == MarkKind.PHASE_BEGIN and not hooks.works_for_another():
            self._phase_threads.add(threading.get_ident())
        if phase == Phase.DATA and kind == MarkKind.PHASE_END:
            self._place_fetched()
        self._queue.extend((_MARK, time_ns(), int(kind), int(phase), threading.get_ident(), value, name))
        if kind == MarkKind.STEP:
            self.watch.tick("step", 0, sys._getframe(1))

    def _place_fetched(self) -> None:
        """Queue the allocation of what the data loader of this thread has made and kept: its batch."""
        for life, path in self._fetched.pop(threading.get_ident(), ()):
            # Alive until it is queued, or its release would come before it and be ignored.
            storage = life()
            if storage is not None:
                self._queue.extend((_PLACE, time_ns(), life, life.n_bytes, path, NONE, None))

    def born(self, life: Life, frame: FrameType | None) -> None:
        """Queue the allocation of a new storage.

        What a data loader allocates waits until it returns its batch: samples and what transforms make of
        them never leave the host.
        """
        path = None if frame is None else self._walker.path(frame)
        if len(self._phase_threads) > 1 and frame is not None:
            life.maker = threading.get_ident()
        if hooks.loads_data():
            self._fetched.setdefault(threading.get_ident(), []).append((life, path))
            return
        self._queue.extend((_PLACE, time_ns(), life, life.n_bytes, path, hooks.module_now(), None))
        if len(self._queue) > _MANY_QUEUED:
            self._catch_up()

    def resized(self, life: Life, n_bytes: int, frame: FrameType | None) -> None:
        """Queue the new size of a storage."""
        path = None if frame is None else self._walker.path(frame)
        self._queue.extend((_REPLACE, time_ns(), life.cdata, n_bytes, path, None, None))

    def allocated_bytes(self) -> int:
        """Allocated bytes on the simulated device now; takes about 50 µs after emptying the queue."""
        self._catch_up()
        return self._allocator.allocated_bytes

    def address(self, storage: Any) -> int:
        """The current address of a storage's block; 0 if it has none."""
        self._catch_up()
        life = self._placed.get(storage._cdata)
        return 0 if life is None else life.address

    @property
    def mesh(self) -> Mapping[str, int]:
        """The coordinates of this process in the mesh of the program's parameters."""
        return self._labeler.mesh

    def forward_begins(self, module: Any) -> None:
        """Label the parameters and buffers of a root module by name."""
        if threading.get_ident() not in self._threads:
            self._other_threads.add(threading.get_ident())
        self._labeler.module(module)

    def forward_ends(self, inputs: Any, result: Any) -> None:
        """Label the inputs and outputs of a root module; compiled code returns storages not seen before."""
        self._labeler.inputs(inputs)
        self._labeler.outputs(result)
        for tensor in tensors_in(result, depth=3):
            self._storages.see(tensor, None)
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

    def _add_labels(
        self, storages: Sequence[Any], category: Category, names: Sequence[str], element_bytes: Sequence[int]
    ) -> Sequence[bool]:
        are_known = list(map(self._is_known, storages))
        for storage, name, n in compress(zip(storages, names, element_bytes, strict=True), are_known):
            self._queue_label(storage._cdata, category, name, n)
        return are_known

    def _queue_label(self, cdata: int, category: Category, name: str = "", element_bytes: int = 0) -> None:
        self._queue.extend((_LABEL, time_ns(), cdata, int(category), element_bytes, name, None))

    def _add_holder(self, storage: Any, words: Sequence[Word]) -> None:
        if self._is_known(storage):
            self._queue.extend((_HOLDER, time_ns(), storage._cdata, words, None, None, None))

    def _is_known(self, storage: Any) -> bool:
        if not self._storages.knows(storage._cdata):
            self._storages.n_late += self._storages.see_storage(storage, None)
        return self._storages.knows(storage._cdata)

    def _note(self, note: Note) -> None:
        self._notes.append(note)

    # ---------------------------- emptying the queue: under the lock, in order, never interrupted

    def _catch_up(self) -> None:
        """Empty the queue, on any thread; this never waits for the disk."""
        undisturbed(self._work, _LONGEST_WAIT_S)

    def _work(self) -> None:
        with self._at_work:
            # In the order of _EVENTS.
            events = (self._place, self._replace, self._mark, self._label, self._hold)
            queue, take = self._queue, self._queue.popleft
            while queue:
                kind = take()
                if type(kind) is Life:
                    self._release(kind)
                    continue
                now = take()
                if now > self._now:  # noqa: PLR1730 -- max() costs more than the event's row
                    self._now = now
                events[kind](take(), take(), take(), take(), take())
        if len(self._rows) > _MANY_WAITING * _COLUMNS:
            self._relieve()

    def _place(self, life: Life, n_bytes: int, path: CallPath | None, module: int, _: None) -> None:
        if life.cdata in self._placed:
            return  # seen twice
        if module != self._module:
            self._module = module
            self._mark(int(MarkKind.MODULE), int(Phase.OTHER), 0, NONE, self.modules.names[module])
        self._placed[life.cdata] = life
        self._switch_to(life.maker)
        self._malloc(life, n_bytes, path)

    def _switch_to(self, maker: int) -> None:
        """Mark that the next events are of another thread; a free is of the thread that allocated."""
        if maker != self._maker:
            self._maker = maker
            self._mark(int(MarkKind.THREAD), int(Phase.OTHER), maker, 0, "")

    def _malloc(self, life: Life, n_bytes: int, path: CallPath | None) -> None:
        self._stack_id = stack_id = 0 if path is None else self._walker.stack_id(path)
        try:
            life.address = self._allocator.malloc(n_bytes, stack_id=stack_id)
        except OutOfMemory:
            self._overflow()
            life.address = self._allocator.malloc(n_bytes, stack_id=stack_id)

    def _release(self, life: Life) -> None:
        # A Ctrl-C may have come before its address was set.
        if self._placed.get(getattr(life, "cdata", 0)) is not life:
            return  # seen twice, or no longer recorded
        del self._placed[life.cdata]
        if self._storages.live.get(life.cdata) is life:
            # Another thread may be adding its successor right now, which is then seen again.
            self._storages.live.pop(life.cdata, None)
        self._stack_id = 0
        if life.address:
            self._switch_to(life.maker)
            self._now = max(self._now, time_ns() if not self._queue else self._now)
            self._allocator.free(life.address)
            life.address = 0

    def _replace(self, cdata: int, n_bytes: int, path: CallPath | None, _: None, __: None) -> None:
        """Resize a storage like CUDA: allocate the new block, copy the content, free the old block."""
        life = self._placed.get(cdata)
        if life is None:
            return
        old = life.address
        life.address = 0
        self._switch_to(life.maker)
        if n_bytes:
            self._malloc(life, n_bytes, path)
        if old:
            self._stack_id = 0
            self._allocator.free(old)

    def _mark(self, kind: int, phase: int, thread: int, value: int, name: str) -> None:
        self._marks.append((kind, phase, self._now, self._n_events, thread, value, name))

    def _label(self, cdata: int, category: int, element_bytes: int, name: str, _: None) -> None:
        life = self._placed.get(cdata)
        if life is not None and life.address:
            self._labels.append((self._n_events, life.address, category, element_bytes, name))

    def _hold(self, cdata: int, words: Sequence[Word], _: None, __: None, ___: None) -> None:
        life = self._placed.get(cdata)
        if life is not None and life.address:
            self._holders.append((self._n_events, life.address, words))

    def _emit(self, action: Action, address: int, size: int, block_size: int, stream: int, pool: int) -> None:
        if not self._is_initial:
            self._n_events += 1
            self._rows.extend((action, self._now, address, size, block_size, stream, pool, self._stack_id))

    def _overflow(self) -> None:
        """Remove the capacity of the full simulated device, as the program on the CPU continues."""
        capacity, reserved = self._allocator.capacity_bytes or 0, self._allocator.reserved_bytes
        self._marks.append(
            (MarkKind.OOM, 0, self._now, self._n_events, threading.get_ident(), capacity - reserved, "")
        )
        self._notes.append(
            Note(
                NoteCode.SIMULATED_OOM,
                f"the simulated device of {format_bytes(capacity)} was full; recorded on without a limit",
                capacity,
            )
        )
        self._allocator.capacity_bytes = None

    # ------------------------------------------------------------------------------------ writing

    def _relieve(self) -> None:
        """Write on this thread because the writer's thread does not keep up."""
        if len(self._rows) > _TOO_MANY_WAITING * _COLUMNS:
            self.failed(CaptureError(f"{_TOO_MANY_WAITING} events wait to be written: the disk hangs"))
        elif self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def _write(self, *, is_end: bool = False) -> None:
        """Write everything recorded so far, and at an end also the state."""
        with self._at_work:
            self._work()
            rows, self._rows = self._rows, []
            marks, self._marks = self._marks, []
            labels, self._labels = self._labels, []
            holders, self._holders = self._holders, []
            notes, self._notes = self._notes, []
            state = self._allocator.snapshot(self._n_events, self._now) if is_end else None
        sink = self._sink
        if sink is None:
            return
        self._write_stacks(sink)
        if rows:
            sink.append(_trace(rows), 0)
        if marks:
            sink.append(marks_table(marks), 0)
        if labels:
            sink.append(labels_table(labels), 0)
        if holders:
            sink.append(Holders.of_paths(holders), 0)
        if state is not None:
            self._stated_s = time.monotonic()
            sink.state(state, 0, reported=True)
        for note in notes:
            sink.note(note, 0)

    def _write_stacks(self, sink: Sink) -> None:
        rows = self._builder.rows(self._n_stacks)
        if rows:
            sink.stacks(rows)
            self._n_stacks += len(rows)


def _trace(rows: list[int]) -> Trace:
    table = np.array(rows, dtype=np.int64).reshape(-1, _COLUMNS)
    columns = zip(Trace.DTYPES.items(), table.T, strict=True)
    return Trace(**{name: column.astype(dtype) for (name, dtype), column in columns})


SOURCE = Source("simulated", available=lambda: True, open=Simulated)
