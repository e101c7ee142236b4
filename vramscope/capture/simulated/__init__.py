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
from collections.abc import Sequence
from itertools import compress
from time import time_ns
from types import FrameType
from typing import Any

import numpy as np
import torch

from vramscope.allocator.settings import Settings
from vramscope.capture import Failed, Options, Sink, Source, hooks
from vramscope.capture.holders.frozen import frozen_objects
from vramscope.capture.holders.growth_watch import AT_END, Watch
from vramscope.capture.hooks.modules import NONE, ModuleLog
from vramscope.capture.hooks.stretches import Stretches
from vramscope.capture.labeling_listener import LabelingListener
from vramscope.capture.labels import tensors_in
from vramscope.capture.log import holders_table, labels_table, marks_table
from vramscope.capture.simulated.device import HOLDER, LABEL, MARK, PLACE, REPLACE, SimulatedDevice
from vramscope.capture.simulated.stacks import CallPath
from vramscope.capture.simulated.storages import Life, Storages
from vramscope.capture.torch_versions import allocator_conf
from vramscope.capture.undisturbed import unheld
from vramscope.errors import CaptureError
from vramscope.model.codes import QUANTITIES, NoteCode
from vramscope.model.counters import Counters
from vramscope.model.device import Device
from vramscope.model.holders import Word
from vramscope.model.marks import Category, MarkKind, Note, Phase
from vramscope.model.trace import Trace
from vramscope.stalls import is_stalled

_COLUMNS = len(Trace.DTYPES)
# Events waiting for the writer, 300 bytes each: above the first number the program's own thread writes them,
# above the second (a disk that hangs) recording stops.
_MANY_WAITING = 500_000
_TOO_MANY_WAITING = 4_000_000
_MANY_QUEUED = 70_000
"""Queue entries, seven per event, above which the program waits for the queue to be emptied."""
_STATE_INTERVAL_S = 10.0


class Simulated(LabelingListener, SimulatedDevice):
    """Records the simulated device of this process."""

    def __init__(self, options: Options, failed: Failed) -> None:
        conf = allocator_conf(str(torch.__version__))
        SimulatedDevice.__init__(self, Settings.from_conf(conf, torch=torch.__version__), options)
        watch = Watch(self.allocated_bytes, self._add_holder, self._notes.once)
        LabelingListener.__init__(self, failed, ModuleLog(is_timed=False), watch, self._add_labels)
        self.devices: Sequence[Device] = (
            Device(0, "simulated", f"simulated on {platform.machine()}", options.capacity_bytes or 0),
        )
        self._storages = Storages(self)
        every = options.every
        self._stretches = None if every is None else Stretches(every, self, self, self.levels_so_far)
        self._sink: Sink | None = None
        self._writing = threading.Lock()
        self._stated_s = -math.inf
        self._noted: set[str] = set()
        self._phase_threads: set[int] = set()
        """The threads that began a phase."""
        self._fetched: dict[int, list[tuple[Life, CallPath | None]]] = {}
        """What the data loader that a thread runs has allocated so far, by thread."""
        self._threads, self._other_threads = set[int](), set[int]()

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
        self._storages.quiet = False
        self._storages.wrap_resize()
        hooks.install(self)

    def pause(self) -> None:
        """Take every hook out of the program: a block was left."""
        if self._stretches is not None:
            self._stretches.go_on()
        hooks.uninstall()
        self._storages.unwrap_resize()
        self._storages.quiet = True  # for the mode of a thread whose block another thread left

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
        if not is_stalled():
            unheld(self.flush)

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
            text = "some storages were first seen after their creation, in C++ or outside of recorded blocks"
            found.append(Note(NoteCode.SEEN_LATE, text, self._storages.n_late))
        if self._other_threads:
            text = (
                "modules were called on threads that entered no block: what they allocate is seen late or not"
            )
            found.append(Note(NoteCode.OTHER_THREADS, text, len(self._other_threads)))
        found += hooks.recursion_notes(self._storages.n_too_deep)
        self._storages.n_too_deep = 0
        found += self.checkpointing.notes()
        new = [note for note in found if note.code not in self._noted]
        self._noted.update(note.code for note in new)
        return new

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """Record an event of the program at this moment."""
        if self._storages.quiet:
            return
        if hooks.has_collected():
            self._queue.extend((MARK, time_ns(), int(MarkKind.GC), 0, threading.get_ident(), 2, ""))
        if kind == MarkKind.PHASE_BEGIN and not hooks.works_for_another():
            self._phase_threads.add(threading.get_ident())
        if phase == Phase.RECOMPUTE:
            self.checkpointing.has_recomputed = True
        if phase == Phase.DATA and kind == MarkKind.PHASE_END:
            self._place_fetched()
        if self._stretches is not None:
            self._stretches.before(kind, phase, value)
        self._queue.extend((MARK, time_ns(), int(kind), int(phase), threading.get_ident(), value, name))
        if kind == MarkKind.STEP:
            self.watch.tick("step", 0, sys._getframe(1))

    def _place_fetched(self) -> None:
        """Queue the allocation of what the data loader of this thread has made and kept: its batch."""
        for life, path in self._fetched.pop(threading.get_ident(), ()):
            # Alive until it is queued, or its release would come before it and be ignored.
            storage = life()
            if storage is not None:
                self._queue.extend((PLACE, time_ns(), life, life.n_bytes, path, NONE, None))

    def born(self, life: Life, frame: FrameType | None) -> None:
        """Queue the allocation of a new storage.

        What a data loader allocates waits until it returns its batch: samples and what transforms make of
        them never leave the host.
        """
        path = self._path(frame)
        if len(self._phase_threads) > 1 and frame is not None:
            life.maker = threading.get_ident()
        if hooks.loads_data():
            self._fetched.setdefault(threading.get_ident(), []).append((life, path))
            return
        self._queue.extend((PLACE, time_ns(), life, life.n_bytes, path, hooks.module_now(), None))
        if len(self._queue) > _MANY_QUEUED:
            self._keep_up()

    def resized(self, life: Life, n_bytes: int, frame: FrameType | None) -> None:
        """Queue the new size of a storage."""
        path = self._path(frame)
        self._queue.extend((REPLACE, time_ns(), life.cdata, n_bytes, path, None, None))

    def forward_begins(self, module: Any) -> None:
        """Label the parameters and buffers of a root module by name."""
        if threading.get_ident() not in self._threads:
            self._other_threads.add(threading.get_ident())
        super().forward_begins(module)

    def _see_result(self, result: Any) -> None:
        # Compiled code returns storages not seen before.
        for tensor in tensors_in(result, depth=3):
            self._storages.see(tensor, None)

    def _add_labels(
        self, storages: Sequence[Any], category: Category, names: Sequence[str], element_bytes: Sequence[int]
    ) -> Sequence[bool]:
        are_known = [_is_known(self._storages, storage) for storage in storages]
        for storage, name, n in compress(zip(storages, names, element_bytes, strict=True), are_known):
            self._queue_label(storage._cdata, category, name, n)
        return are_known

    def _queue_label(self, cdata: int, category: Category, name: str = "", element_bytes: int = 0) -> None:
        self._queue.extend((LABEL, time_ns(), cdata, int(category), element_bytes, name, None))

    def _add_holder(self, storage: Any, words: Sequence[Word]) -> None:
        # What the search at a block's end meets for the first time may be of before or of another program.
        is_known = (
            self._storages.knows(storage._cdata) if AT_END in words else _is_known(self._storages, storage)
        )
        if is_known:
            self._queue.extend((HOLDER, time_ns(), storage._cdata, words, None, None, None))

    def _keep_up(self) -> None:
        """Empty the queue, and write here where the writer's thread does not keep up."""
        self._catch_up()
        if len(self._rows) > _TOO_MANY_WAITING * _COLUMNS:
            self.failed(CaptureError(f"{_TOO_MANY_WAITING} events wait to be written: the disk hangs"))
        elif len(self._rows) > _MANY_WAITING * _COLUMNS and not is_stalled():
            unheld(self.flush)

    def _write(self, *, is_end: bool = False) -> None:
        """Write everything recorded so far, and at an end also the state."""
        with self._at_work:
            self._work()
            rows, self._rows = self._rows, []
            marks, self._marks = self._marks, []
            labels, self._labels = self._labels, []
            holders, self._holders = self._holders, []
            counted, self._levels = self._levels, []
            notes = self._notes.take()
            state = self._allocator.snapshot(self._n_events, self._now) if is_end else None
        sink = self._sink
        if sink is None:
            return
        self._stacks.write(sink)
        if rows:
            sink.append(_trace(rows), 0)
        if marks:
            sink.append(marks_table(marks), 0)
        if labels:
            sink.append(labels_table(labels), 0)
        if counted:
            sink.append(_counters(counted), 0)
        if holders:
            sink.append(holders_table(holders), 0)
        if state is not None:
            self._stated_s = time.monotonic()
            sink.state(state, 0, reported=True)
        for note in notes:
            sink.note(note, 0)


def _is_known(storages: Storages, storage: Any) -> bool:
    if not storages.knows(storage._cdata):
        storages.n_late += storages.see_storage(storage, None)
    return storages.knows(storage._cdata)


def _counters(rows: list[tuple[int, ...]]) -> Counters:
    names = (f"{name}{kind}_bytes" for kind in ("", "_highest") for name in QUANTITIES)
    return Counters.of(**dict(zip(("time_ns", *names), zip(*rows, strict=True), strict=True)))


def _trace(rows: list[int]) -> Trace:
    table = np.array(rows, dtype=np.int64).reshape(-1, _COLUMNS)
    columns = zip(Trace.DTYPES.items(), table.T, strict=True)
    return Trace(**{name: column.astype(dtype) for (name, dtype), column in columns})


SOURCE = Source("simulated", available=lambda: True, open=Simulated)
