"""The source for ``mode="counters"``: torch's and the driver's counters, without history or stacks.

It is cheap enough to stay on for a whole training. torch's counters are read where steps and phases begin and
end (25 µs, on the program's thread), and together with the driver's ten times a second on a background
thread. Without a CUDA device only steps and phases are recorded, and a note reports it.
"""

import threading
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any

import torch

from vramscope.capture import Failed, Options, Sink, Source, hooks
from vramscope.capture.cuda.devices import device_at, ordinal
from vramscope.capture.cuda.history import obstacle_met
from vramscope.capture.log import MarkRow, drained, marks_table
from vramscope.capture.samples import Sampler, backend, torch_counters
from vramscope.capture.torch_versions import allocator_conf
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import MarkKind, Note, Phase

_MODE = Note(
    NoteCode.COUNTERS_ONLY,
    "recorded with mode='counters': samples of levels, and no events. It cannot show which line or tensor "
    "holds the memory, nor fragmentation; record(every='auto') does for some steps, at little more cost",
)

_UNMET = (
    "torch {}: {}, so there is no history to read: there are no events, and its levels were sampled. "
    "It cannot show which line or tensor holds the memory; with a version that was checked it can"
)


def _mode() -> Note:
    name = backend() if torch.cuda.is_available() else "native"
    if name == "native":
        problem = obstacle_met()
        return Note(NoteCode.NO_HISTORY, _UNMET.format(torch.__version__, problem)) if problem else _MODE
    counts = "no figure of torch's is known either" if name == "pluggable" else "its levels were sampled"
    return Note(
        NoteCode.NO_HISTORY,
        f"torch's allocator backend is {name!r}, which keeps no history: there are no events, and {counts}. "
        "It cannot show which line or tensor holds the memory; the default backend does",
    )


class CountersOnly(hooks.Listener):
    """Records torch's and the driver's counters of this process's device."""

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
        self.mesh: Mapping[str, int] = {}  # no module is looked at
        self._device = self.devices[0].index
        self._sampler = Sampler(self._device, self.devices[0].uuid, failed) if has_device else None
        self._sink: Sink | None = None
        self._writing = threading.RLock()
        """Held while rows are taken and written: two threads would write them out of order."""
        self._marks: list[MarkRow] = []
        self._has_noted_mode = False

    def start(self, sink: Sink) -> None:
        """Begin recording to *sink*."""
        self._sink = sink
        self.resume()

    def resume(self) -> None:
        """Continue recording: the next block was entered."""
        hooks.install(self)
        if self._sampler is not None:
            self._sampler.start()

    def pause(self) -> None:
        """Take every hook out of the program: a block was left."""
        hooks.uninstall()
        if self._sampler is not None:
            self._sampler.stop()

    def enter_thread(self) -> None:
        """No-op: the counters cover every thread."""

    def exit_thread(self) -> None:
        """Forget the open phases of the calling thread, which left its outermost block."""
        hooks.forget_thread()

    def flush(self) -> None:
        """Write the marks and samples since the last call."""
        sink = self._sink
        if sink is None:
            return
        with self._writing:
            if self._marks:
                sink.append(marks_table(drained(self._marks)), self._device)
            if self._sampler is not None:
                sink.append(self._sampler.take(), self._device)
                for limit in self._sampler.take_limits():
                    sink.note(limit, self._device)

    def catch_up(self) -> None:
        """Write everything recorded so far now."""
        self.flush()

    def inactive_split_bytes(self) -> Mapping[int, int]:
        """The bytes that torch counts now, by device."""
        if self._sampler is None or not torch.cuda.is_initialized():
            return {}
        if backend() != "native":  # which alone counts them
            return {}
        counted = torch_counters(self._device).get("inactive_split_bytes")
        return {} if counted is None else {self._device: int(counted["all"]["current"])}

    def finish(self) -> None:
        """Write the rest of a block that was left."""
        self.flush()

    def conclude(self) -> None:
        """Close the driver's library when the program ends."""
        if self._sampler is not None:
            self._sampler.close()

    def notes(self) -> Sequence[Note]:
        """The notes on what this mode and the driver cannot report."""
        notes = [] if self._has_noted_mode else [_mode()]
        if self._sampler is None and notes:
            text = "there is no CUDA device here: steps were recorded, no memory"
            notes.append(Note(NoteCode.NO_DEVICE, text))
        self._has_noted_mode = True
        of_driver = self._sampler.notes() if self._sampler is not None else ()
        return [*notes, *hooks.recursion_notes(0), *of_driver]

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again; waits for nothing."""
        hooks.uninstall()
        if self._sampler is not None:
            self._sampler.retire()
        self._sink = None

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """Record an event of the program together with torch's counters at the same time."""
        if self._sink is None:
            return
        if hooks.has_collected():
            self.mark(MarkKind.GC, value=2)
        now = time_ns()
        if self._sampler is not None and kind != MarkKind.GC:
            self._sampler.sample_at_mark(now)
        self._marks.append((int(kind), int(phase), now, 0, threading.get_ident(), value, name))

    def step_ends(self, optimizer: Any) -> None:  # noqa: ARG002
        """Read what NCCL's communicators hold; counters mode does not label tensors."""
        if self._sampler is not None:
            self._sampler.communicators.read()


SOURCE = Source("counters", available=lambda: True, open=CountersOnly)
