"""How full was CUDA's memory while the program ran? Counters alone: no history, no stacks, for ever.

torch's own counters are read where steps and phases begin and end (20 µs, on the program's thread), and with
the driver's ten times a second on a thread of ours. Where there is no CUDA device there is nothing to count:
steps and phases are recorded, and a note says so.
"""

import threading
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any

import torch

from vramscope.capture import Failed, Options, Sink, Source, hooks
from vramscope.capture.allocator_settings import allocator_conf
from vramscope.capture.devices import device_at, ordinal
from vramscope.capture.log import MarkRow, marks_table
from vramscope.capture.samples import Sampler
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import MarkKind, Note, Phase

_MODE = Note(
    NoteCode.COUNTERS_ONLY,
    "recorded with mode='counters': levels at moments, and no events. It cannot tell which line or tensor "
    "holds the memory, nor fragmentation; record(mode='events') does, for as few steps as wished",
)


class CountersOnly:
    """torch's counters and the driver's, of this process' device."""

    def __init__(self, options: Options, failed: Failed) -> None:  # noqa: ARG002
        self.failed = failed
        self.torch = str(torch.__version__)
        self.watch = None
        has_device = torch.cuda.is_available()
        self.devices: Sequence[Device] = (
            (device_at(ordinal()),) if has_device else (Device(index=0, kind="cpu", name="no CUDA device"),)
        )
        conf = allocator_conf(str(torch.__version__))
        self.settings: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
        self._device = self.devices[0].index
        self._sampler = Sampler(self._device, self.devices[0].uuid, failed) if has_device else None
        self._sink: Sink | None = None
        self._lock = threading.Lock()
        self._marks: list[MarkRow] = []
        self._is_said = False

    # ------------------------------------------------------------------------------- as a Capture

    def start(self, sink: Sink) -> None:
        """Begin."""
        self._sink = sink
        self.resume()

    def resume(self) -> None:
        """The next block was entered."""
        hooks.install(self)
        if self._sampler is not None:
            self._sampler.start()

    def pause(self) -> None:
        """A block was left: take every hook out of the program."""
        hooks.uninstall()
        if self._sampler is not None:
            self._sampler.stop()

    def enter_thread(self) -> None:
        """Nothing: counters are of every thread."""

    def exit_thread(self) -> None:
        """The calling thread left its outermost block."""
        hooks.forget_thread()

    def flush(self) -> None:
        """What there is since the last time."""
        sink = self._sink
        if sink is None:
            return
        with self._lock:
            marks, self._marks = self._marks, []
        if marks:
            sink.append(marks_table(marks), self._device)
        if self._sampler is not None:
            sink.append(self._sampler.take(), self._device)

    def finish(self) -> None:
        """A block was left: hand over the rest."""
        self.flush()

    def conclude(self) -> None:
        """The program ends."""
        if self._sampler is not None:
            self._sampler.close()

    def notes(self) -> Sequence[Note]:
        """What this mode cannot tell, and what the driver does not."""
        notes = [] if self._is_said else [_MODE]
        if self._sampler is None and not self._is_said:
            notes.append(
                Note(NoteCode.NO_DEVICE, "there is no CUDA device here: steps were recorded, no memory")
            )
        self._is_said = True
        return [*notes, *hooks.too_deep(0), *(self._sampler.notes() if self._sampler is not None else ())]

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again; waits for nothing."""
        hooks.uninstall()
        if self._sampler is not None:
            self._sampler.retire()
        self._sink = None

    # ----------------------------------------------------------------------- told by the program

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """A fact about the program, with torch's counters at that very time."""
        if self._sink is None:
            return
        if hooks.has_collected():
            self.mark(MarkKind.GC, value=2)
        now = time_ns()
        if self._sampler is not None and kind != MarkKind.GC:
            self._sampler.glance(now)
        row = (int(kind), int(phase), now, 0, threading.get_ident(), value, name)
        with self._lock:
            self._marks.append(row)

    def forward_begins(self, module: Any) -> None:
        """Nothing: modules are not told apart."""

    def forward_ends(self, inputs: Any, result: Any) -> None:
        """Nothing."""

    def backward_ends(self) -> None:
        """Nothing."""

    def step_begins(self, optimizer: Any) -> None:
        """Nothing."""

    def step_ends(self, optimizer: Any) -> None:
        """Nothing."""


def _always() -> bool:
    return True


SOURCE = Source("counters", available=_always, open=CountersOnly)
