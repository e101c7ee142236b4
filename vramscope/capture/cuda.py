"""What did CUDA's allocator do? Its own history, torch's ``_record_memory_history``.

The history is a ring in host memory: at most 1,000,000 entries of some 450 bytes with Python stacks. It is
read at the end of every recorded block, and after an optimizer step that finds it half full: torch can only
hand over all of it at once, which takes about 5 µs an entry and holds the GIL.
"""

import inspect
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any

import numpy as np
import torch

from vramscope.allocator.history import DeviceHistory, histories
from vramscope.allocator.replay import reconstruct
from vramscope.capture import Failed, Options, Sink, Source, _phases
from vramscope.capture._gap import bridge
from vramscope.capture._instants import UNCOUNTED, instants
from vramscope.capture._labels import Labeller
from vramscope.capture._log import LabelRow, MarkRow, labels_table, marks_table
from vramscope.capture._samples import Sampler
from vramscope.capture._settings import allocator_conf
from vramscope.capture._watch import Watch
from vramscope.errors import CaptureError
from vramscope.model.device import Device
from vramscope.model.marks import Category, MarkKind, Marks, Note, Phase
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import StackBuilder

_MAX_ENTRIES = 1_000_000


class Cuda:
    """The allocator's history of this process; one device has our marks by count, others by time."""

    def __init__(self, options: Options, failed: Failed) -> None:  # noqa: ARG002
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise CaptureError(f"torch's allocator backend is {backend!r}; only 'native' keeps a history")
        self.failed = failed
        self.torch = str(torch.__version__)
        self.devices: Sequence[Device] = (_device(_ordinal()),)
        conf = allocator_conf()
        self.settings: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
        self._device = self.devices[0].index
        self._labeller = Labeller(self._tell)
        self.watch = Watch(self._allocated_bytes, self._tell)
        self._builder = StackBuilder()
        self._sink: Sink | None = None
        self._sampler = Sampler(self._device, self.devices[0].uuid, failed)
        self._is_theirs = False
        self._n_stacks = 1
        self._n_drained = 0
        self._n_events: dict[int, int] = {}
        self._last: dict[int, Snapshot] = {}
        self._marks: list[MarkRow] = []
        self._labels: list[tuple[int, LabelRow]] = []
        self._notes: list[Note] = []
        self._told: set[str] = set()

    # ------------------------------------------------------------------------------- as a Capture

    def start(self, sink: Sink) -> None:
        """Begin; what exists already becomes the initial state."""
        self._sink = sink
        self.resume()

    def resume(self) -> None:
        """The next block was entered."""
        self._is_theirs = _is_recording()
        if self._is_theirs:
            self._tell_once(
                Note("shared_history", "the program records its history itself: it was only read")
            )
        else:
            with torch.cuda.device(self._device):
                _start_history()
        self._n_drained = self._n_allocations()
        _phases.install(self)
        self._sampler.start()

    def pause(self) -> None:
        """A block was left: take every hook out of the program."""
        _phases.uninstall()
        self._sampler.stop()

    def enter_thread(self) -> None:
        """Nothing: the allocator sees every thread."""

    def exit_thread(self) -> None:
        """The calling thread left its outermost block."""
        _phases.forget_thread()

    def flush(self) -> None:
        """Samples only; events are read where the program waits for nothing."""
        if self._sink is not None:
            self._sink.append(self._sampler.take(), self._device)

    def finish(self) -> None:
        """A block was left: hand over everything, and stop the history."""
        try:
            self._drain()
        finally:
            if not self._is_theirs:
                torch.cuda.memory._record_memory_history(enabled=None)
        self.flush()

    def conclude(self) -> None:
        """The program ends: every block told its state already."""
        self._sampler.close()

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again; waits for nothing."""
        _phases.uninstall()
        self._sampler.retire()
        is_ours = self._sink is not None and not self._is_theirs
        self._sink = None
        self._marks.clear()
        self._labels.clear()
        # A forked child cannot use CUDA, and must not try.
        if is_ours and not torch.cuda._is_in_bad_fork():
            torch.cuda.memory._record_memory_history(enabled=None)

    def notes(self) -> Sequence[Note]:
        """What only the end tells."""
        notes, self._notes = self._notes, []
        return notes + self._sampler.notes()

    # ----------------------------------------------------------------------- told by the program

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """A fact about the program, now; where ``event`` belongs stands the number of allocations."""
        if self._sink is None:
            return
        count, now = self._n_allocations(), time_ns()
        self._marks.append((int(kind), int(phase), now, count, threading.get_ident(), value, name))
        if kind == MarkKind.STEP:
            self.watch.tick("step", 0, sys._getframe(1))

    def forward_begins(self, module: Any) -> None:
        """Its parameters and buffers are known by name."""
        self._labeller.module(module)

    def forward_ends(self, inputs: Any, result: Any) -> None:
        """Its inputs are known."""
        self._labeller.inputs(inputs)
        self._labeller.outputs(result)
        self.watch.tick("forward", 0, sys._getframe(1))

    def backward_ends(self) -> None:
        """Gradients are there."""
        self._labeller.gradients()
        self.watch.tick("backward", 0, sys._getframe(1))

    def step_begins(self, optimizer: Any) -> None:
        """Gradients of parameters that belong to no module seen."""
        self._labeller.gradients(optimizer)

    def step_ends(self, optimizer: Any) -> None:
        """Its state is there; a half full ring is read now."""
        self._labeller.optimizer_state(optimizer)
        self.watch.tick("optimizer", id(optimizer), sys._getframe(1))
        # An allocation makes about three entries: itself and two for its free.
        if 3 * (self._n_allocations() - self._n_drained) > _MAX_ENTRIES // 2 and not self._is_theirs:
            self._drain()
            _start_history()

    def _tell(self, storage: Any, category: Category, name: str) -> bool:
        if storage.device.type == "cuda" and storage.device.index == self._device:
            row = (self._n_allocations(), storage.data_ptr(), int(category), name)
            self._labels.append((time_ns(), row))
        return True

    def _n_allocations(self) -> int:
        """20 µs, without synchronizing; UNCOUNTED before CUDA runs."""
        if not torch.cuda.is_initialized():
            return UNCOUNTED
        return int(torch._C._cuda_memoryStats(self._device)["allocation"]["all"]["allocated"])

    def _allocated_bytes(self) -> int:
        """20 µs, without synchronizing."""
        if not torch.cuda.is_initialized():
            return 0
        return int(torch._C._cuda_memoryStats(self._device)["allocated_bytes"]["all"]["current"])

    # ------------------------------------------------------------------------------------ reading

    def _drain(self) -> None:
        """Everything the ring holds, as tables; called where the program allocates nothing meanwhile."""
        sink = self._sink
        if sink is None:
            return
        snapshot = torch.cuda.memory._snapshot()
        count = self._n_allocations()
        found, notes = histories(snapshot, self._builder, torch=torch.__version__)
        marks, self._marks = self._marks, []
        labels, self._labels = self._labels, []
        for note in notes:
            self._tell_once(note)
        for history in found:
            self._write(sink, history, marks, labels, count)
        self._n_drained = count

    def _write(
        self,
        sink: Sink,
        history: DeviceHistory,
        marks: list[MarkRow],
        labels: list[tuple[int, LabelRow]],
        count: int,
    ) -> None:
        rebuilt = reconstruct(history.trace, history.final, history.settings, history.pools)
        device, trace = history.device, rebuilt.trace
        for note in (*history.notes, *rebuilt.notes):
            self._tell_once(note)
        n_before = self._open_gap(sink, device, rebuilt.initial)
        self._write_stacks(sink)
        sink.pools(history.pools, device)
        sink.append(trace, device)
        if device == self._device:
            at = instants(trace, count, [row[3] for row in marks], [row[2] for row in marks])
        else:
            at = np.searchsorted(trace.time_ns, [row[2] for row in marks], side="right")
        table = _merged(marks, n_before + at, history.marks, n_before)
        if len(table):
            sink.append(table, device)
        if labels and device == self._device:
            at = instants(trace, count, [row[0] for _, row in labels], [now for now, _ in labels])
            rows = [(n_before + int(k), *row[1:]) for k, (_, row) in zip(at, labels, strict=True)]
            sink.append(labels_table(rows), device)
        self._n_events[device] = n_before + len(trace)
        final = _at(history.final, self._n_events[device])
        sink.state(final, device, reported=True)
        self._last[device] = final

    def _open_gap(self, sink: Sink, device: int, initial: Snapshot) -> int:
        """Hand over what leads to *initial*: the first state, or events for what a pause hid."""
        last = self._last.get(device)
        if last is None:
            self._write_stacks(sink)
            sink.state(_at(initial, 0), device, reported=False)
            return 0
        n_before = self._n_events[device]
        missing = bridge(last, initial, last.time_ns)
        if len(missing):
            self._write_stacks(sink)
            sink.append(missing, device)
            self._tell_once(Note("gap", "memory changed between two recorded blocks: shown as one moment"))
        return n_before + len(missing)

    def _write_stacks(self, sink: Sink) -> None:
        rows = self._builder.rows(self._n_stacks)
        if rows:
            sink.stacks(rows)
            self._n_stacks += len(rows)

    def _tell_once(self, note: Note) -> None:
        if note.code not in self._told:
            self._told.add(note.code)
            self._notes.append(note)


def _merged(ours: list[MarkRow], at: Any, theirs: Marks, n_before: int) -> Marks:
    """Our marks with torch's own annotations, but for those that say again what our hooks said."""
    rows = [(*row[:3], int(k), *row[4:]) for row, k in zip(ours, at, strict=True)]
    again = (Phase.OPTIMIZER, Phase.ZERO_GRAD, Phase.DATA)
    annotations = zip(*(column.tolist() for _, column in theirs.columns()), strict=True)
    rows += [
        (*row[:3], n_before + row[3], *row[4:6], theirs.names[row[6]])
        for row in annotations
        if row[1] not in again
    ]
    if not rows:
        return Marks.of()
    rows.sort(key=lambda row: row[2])
    return marks_table(rows)


def _at(state: Snapshot, event: int) -> Snapshot:
    return Snapshot(event, state.time_ns, state.segments, state.blocks)


def _start_history() -> None:
    """From here on, with Python stacks; arguments by what this torch takes (2.1 to 2.13)."""
    start = torch.cuda.memory._record_memory_history
    wanted: dict[str, Any] = {
        "enabled": "all",
        "context": "all",
        "stacks": "python",
        "max_entries": _MAX_ENTRIES,
        "clear_history": True,
        "global_record_annotations": True,
    }
    taken = inspect.signature(start).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
        wanted = {name: value for name, value in wanted.items() if name in taken}
    start(**wanted)


def _is_recording() -> bool:
    """Whether the program keeps a history already."""
    ask = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(torch.cuda.is_initialized() and ask is not None and ask())


def _ordinal() -> int:
    """The device of this process; before it chose one, torchrun's word for it."""
    local = os.environ.get("LOCAL_RANK", "")
    if not torch.cuda.is_initialized() and local.isdigit() and int(local) < torch.cuda.device_count():
        return int(local)
    return int(torch.cuda.current_device())


def _device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))  # torch ≥ 2.5
    return Device(
        index=index,
        kind="cuda",
        name=properties.name,
        total_bytes=properties.total_memory,
        uuid=f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid,
    )


SOURCE = Source("cuda", available=torch.cuda.is_available, open=Cuda)
