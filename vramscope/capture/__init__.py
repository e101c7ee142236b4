"""Sources read memory out of a live process: one source a file, declared as ``SOURCE = Source(...)``.

Only this folder, integrations/, prediction/ and recorder/ import torch. Importing a source imports torch, so
sources are looked up only when recording starts.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vramscope import registry
from vramscope.model.counters import Counters
from vramscope.model.device import Device
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, MarkKind, Marks, Note, Phase
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Trace

if TYPE_CHECKING:
    from vramscope.capture.holders.growth_watch import Watch


@dataclass(frozen=True, slots=True)
class Options:
    """The options that every source takes."""

    capacity_bytes: int | None = None
    """Capacity of the simulated device; None means unlimited."""
    stack_depth: int = 64
    """Number of frames kept of each call stack, counted from the innermost."""
    every: int | str | None = None
    """Steps from one with events to the next, or ``auto``; None where all have."""


class Sink(Protocol):
    """The receiver of a source's data: the writer of a trace directory, or a list in a test."""

    def stacks(self, rows: Sequence[tuple[int, str, str, int]]) -> None:
        """Append rows of ``StackBuilder.rows``; this comes before the tables that refer to them."""

    def append(self, table: Trace | Marks | Labels | Holders | Counters, device: int) -> None:
        """Append the next rows of one stream of *device*."""

    def state(self, snapshot: Snapshot, device: int, *, reported: bool) -> None:
        """Write a state: the initial one (event 0, not *reported*), or one that the allocator reported."""

    def pools(self, pools: Sequence[tuple[int, int]], device: int) -> None:
        """Write torch's pool ids in the order of the index that the columns carry."""

    def device(self, device: Device) -> None:
        """Add a device that was not yet in ``Capture.devices`` when the recording began."""

    def note(self, note: Note, device: int | None = None) -> None:
        """Record that something is missing or doubtful."""


class Capture(Protocol):
    """One source at work in this process.

    Everything from ``start`` on may raise: ``record`` catches it, and training goes on.
    """

    @property
    def devices(self) -> Sequence[Device]:
        """The devices that are recorded."""

    @property
    def torch(self) -> str:
        """The version of torch."""

    @property
    def watch(self) -> "Watch | None":
        """The watch for growing memory; None where the source cannot tell storages apart."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The allocator's settings, by torch's names."""

    @property
    def mesh(self) -> Mapping[str, int]:
        """The coordinates of this process in the mesh of the program's parameters; empty until known."""

    def start(self, sink: Sink) -> None:
        """Begin recording; memory that is allocated already becomes the initial state."""

    def pause(self) -> None:
        """Take every hook out of the program: a ``with record():`` block was left."""

    def resume(self) -> None:
        """Continue recording: the next block was entered."""

    def enter_thread(self) -> None:
        """Begin to record the calling thread, which entered its outermost block."""

    def exit_thread(self) -> None:
        """Stop recording the calling thread, which left its outermost block."""

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """Record an event of the program at this moment: a phase, a step, a named mark."""

    def flush(self) -> None:
        """Write everything recorded so far; a background thread calls this about once a second."""

    def catch_up(self) -> None:
        """Write everything recorded so far now, on the calling thread."""

    def inactive_split_bytes(self) -> Mapping[int, int]:
        """Bytes in free pieces of used segments now, by device; empty where unknown."""

    def finish(self) -> None:
        """Write the rest of a block that was left, and the state at its end."""

    def conclude(self) -> None:
        """Write what waits for the end of the program, perhaps long after the last block."""

    def notes(self) -> Sequence[Note]:
        """The notes that only the end of a block can give."""

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again: writing failed, or this is a forked child.

        This call waits for nothing.
        """


Failed: TypeAlias = Callable[[BaseException], None]
"""Receives each error of vramscope itself, possibly several; the training goes on."""


@dataclass(frozen=True, slots=True)
class Source:
    """One way of recording memory."""

    name: str
    """The source's name in the manifest: ``cuda``, ``simulated``, ``counters``."""
    available: Callable[[], bool]
    """Whether this machine has such a device."""
    open: Callable[[Options, Failed], Capture]
    instead: Callable[[], str] = str
    """Returns the name of the source that records in its place in this process; '' if it can itself."""


@cache
def sources() -> dict[str, Source]:
    """Every source by name; imports torch."""
    return registry.parts(sys.modules[__name__], Source)
