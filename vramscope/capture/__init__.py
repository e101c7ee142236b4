"""Out of a live process, one source a file, ``SOURCE = Source(...)``; with integrations/ the only folder that
knows torch.

Importing a source imports torch: look for sources only when recording starts.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vramscope import registry
from vramscope.model.counters import Counters
from vramscope.model.device import Device
from vramscope.model.marks import Labels, MarkKind, Marks, Note, Phase
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Trace

if TYPE_CHECKING:
    from vramscope.capture.holders.growth_watch import Watch


@dataclass(frozen=True, slots=True)
class Options:
    """What a source may be asked for."""

    capacity_bytes: int | None = None
    """Of the simulated device; None = unlimited."""
    stack_depth: int = 64
    """The innermost so many frames of a stack are kept."""


class Sink(Protocol):
    """Where a source puts what it has: the writer of a trace directory, or a test's list."""

    def stacks(self, rows: Sequence[tuple[int, str, str, int]]) -> None:
        """Rows of ``StackBuilder.rows``, before the tables that use them."""

    def append(self, table: Trace | Marks | Labels | Counters, device: int) -> None:
        """The next rows."""

    def state(self, snapshot: Snapshot, device: int, *, reported: bool) -> None:
        """The initial state (event 0, not reported), or what the allocator itself said."""

    def pools(self, pools: Sequence[tuple[int, int]], device: int) -> None:
        """torch's pool ids, by the index that columns carry."""

    def device(self, device: Device) -> None:
        """One more is recorded than ``Capture.devices`` said at first."""

    def note(self, note: Note, device: int | None = None) -> None:
        """Something missing or doubtful."""


class Capture(Protocol):
    """One source at work in this process.

    Everything from ``start`` on may raise: ``record`` catches it, and training goes on.
    """

    @property
    def devices(self) -> Sequence[Device]:
        """What is recorded."""

    @property
    def torch(self) -> str:
        """Its version."""

    @property
    def watch(self) -> "Watch | None":
        """Looks whether memory grows; None where the source cannot tell storages apart."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The allocator's, by torch's names."""

    def start(self, sink: Sink) -> None:
        """Begin; what exists already becomes the initial state."""

    def pause(self) -> None:
        """A ``with record():`` block was left: take every hook out of the program."""

    def resume(self) -> None:
        """The next block was entered."""

    def enter_thread(self) -> None:
        """The calling thread entered its outermost block."""

    def exit_thread(self) -> None:
        """The calling thread left its outermost block."""

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """A fact about the program, now."""

    def flush(self) -> None:
        """Hand over what there is; called by a thread of ours about once a second, and on leaving a block."""

    def finish(self) -> None:
        """A block was left: hand over the rest, and the state at its end."""

    def conclude(self) -> None:
        """The program ends, long after the last block perhaps: hand over what waited for that."""

    def notes(self) -> Sequence[Note]:
        """What only the end tells."""

    def abandon(self) -> None:
        """Take every hook out and never touch the sink again: writing failed, or this is a forked child.

        Waits for nothing.
        """


Failed: TypeAlias = Callable[[Exception], None]
"""Told, once or often, that something of ours went wrong; training goes on."""


@dataclass(frozen=True, slots=True)
class Source:
    """One way to see memory."""

    name: str
    """Also the word in the manifest: ``cuda``, ``simulated``."""
    available: Callable[[], bool]
    """Whether this machine has it."""
    open: Callable[[Options, Failed], Capture]


@cache
def sources() -> dict[str, Source]:
    """Every source by name; imports torch."""
    return registry.parts(sys.modules[__name__], Source)
