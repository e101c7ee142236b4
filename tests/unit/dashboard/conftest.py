"""Recorded runs on disk, small and made on the spot: a training whose every byte is known."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access

from vramscope.model.device import Device, Process
from vramscope.model.marks import MarkKind, Marks, Phase
from vramscope.model.recording import Outcome
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace
from vramscope.store.write.writer import Writer

MIB = 1 << 20
START_NS = 1_700_000_000_000_000_000
TORCH = "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py"
HOSTILE = (
    "<script>window.pwned=1</script>",
    "<b>bold</b>",
    '<a href="https://evil.example/">link</a>',
    '<span style="background:url(https://evil.example/x)">beacon</span>',
    "<img src=https://evil.example/y onerror=window.pwned=2>",
    "javascript:window.pwned=3",
    "\u202eRTL שלום",
    "{{7*7}} %{customdata}",
    "😀 & <lambda>",
    "A" * 10_240,
)


@dataclass
class Program:
    """A training that writes itself down; sizes are whole MiB, so block and request are equal."""

    writer: Writer
    names: tuple[str, ...] = ("Attention.forward", "MLP.forward")
    stacks: StackBuilder = field(default_factory=StackBuilder)
    clock: int = START_NS
    n_events: int = 0
    written_stacks: int = 1
    next_address: int = 1 << 40
    _events: list[tuple[int, ...]] = field(default_factory=list)
    _marks: list[tuple[int, ...]] = field(default_factory=list)

    def stack(self, name: str, line: int) -> int:
        own = [(name, "/home/me/model.py", line), ("train", "/home/me/train.py", 88)]
        return self.stacks.add([("linear", TORCH, 114), *own])

    def event(self, action: Action, address: int, size: int, stack: int = 0) -> None:
        self.clock += 10_000
        self.n_events += 1
        self._events.append((int(action), self.clock, address, size, size, stack))

    def malloc(self, size: int, stack: int = 0) -> tuple[int, int]:
        self.next_address += size
        self.event(Action.ALLOC, self.next_address, size, stack)
        return self.next_address, size

    def free(self, block: tuple[int, int]) -> None:
        self.event(Action.FREE_REQUESTED, *block)
        self.event(Action.FREE_COMPLETED, *block)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.mark(MarkKind.PHASE_BEGIN, phase)
        yield
        self.mark(MarkKind.PHASE_END, phase)

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER) -> None:
        self._marks.append((int(kind), int(phase), self.clock, self.n_events))

    def begin(self, reserved: int = 512 * MIB) -> None:
        self.event(Action.SEGMENT_ALLOC, 1 << 40, reserved)
        self.malloc(20 * MIB, self.stack("__init__", 5))

    def step(self) -> None:
        with self.phase(Phase.FORWARD):
            kept = [
                self.malloc(8 * MIB, self.stack(n, i)) for i, n in enumerate(self.names, 10) for _ in range(4)
            ]
        with self.phase(Phase.BACKWARD):
            for block in reversed(kept):
                gradient = self.malloc(2 * MIB)
                self.free(block)
                self.free(gradient)
        with self.phase(Phase.OPTIMIZER):
            self.free(self.malloc(4 * MIB, self.stack("AdamW.step", 30)))
        self.mark(MarkKind.STEP)
        self.clock += 2_000_000
        self.flush()

    def flush(self) -> None:
        self.writer.stacks(self.stacks.rows(self.written_stacks))
        self.written_stacks = len(self.stacks)
        self.writer.append(
            Trace.of(
                **_columns(("action", "time_ns", "address", "size", "block_size", "stack_id"), self._events)
            ),
            0,
        )
        self.writer.append(Marks.of(**_columns(("kind", "phase", "time_ns", "event"), self._marks)), 0)
        self._events, self._marks = [], []


def _columns(names: tuple[str, ...], rows: list[tuple[int, ...]]) -> dict[str, Any]:
    return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}


def open_program(
    path: Path,
    max_bytes: int | None = None,
    rank: int = 0,
    started_ns: int = START_NS,
    tags: str = "",
    **more: Any,
) -> Program:
    """A run, or one *rank* of it, that has begun and not ended; *max_bytes* is its size cap."""
    device = Device(kind="simulated", name="Simulated 1 GiB", total_bytes=1 << 30)
    process = Process(torch="2.13.0", host=socket.gethostname(), pid=os.getpid(), rank=rank, tags=tags)
    writer = Writer(
        path,
        source="simulated",
        process=process,
        devices=[device],
        started_ns=started_ns,
        max_bytes=max_bytes,
    )
    return Program(writer, clock=started_ns, **more)


def recorded(path: Path, steps: int = 3, outcome: Outcome = Outcome.FINISHED, **more: Any) -> Path:
    """A finished run of some steps."""
    program = open_program(path, **more)
    if steps:
        program.begin()
    for _ in range(steps):
        program.step()
    program.writer.close(outcome)
    return path


def thinned(path: Path, steps: int = 120) -> Path:
    """A finished run with a size cap: the detail of its first steps is gone; step 8 is the highest."""
    program = open_program(path, max_bytes=200_000)
    program.begin()
    for number in range(steps):
        if number == 8:
            large = program.malloc(200 * MIB, program.stack("evaluate", 77))
        program.step()
        if number == 8:
            program.free(large)
        program.writer.compact()
    program.writer.close(Outcome.FINISHED)
    return path


@pytest.fixture
def run_at(tmp_path: Path) -> Callable[..., Path]:
    return lambda name, **more: recorded(tmp_path / name, **more)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    recorded(tmp_path / "gpt", steps=3)
    return Data(tmp_path)


@pytest.fixture
def view(data: Data) -> View:
    return data.view(Address(run=next(iter(data.runs.paths()))))


@pytest.fixture
def app(data: Data) -> Any:
    return build_app(data, Access(token="secret-token"))


@pytest.fixture(name="open_program")
def _open_program() -> Callable[..., Program]:
    return open_program


@pytest.fixture(scope="session")
def make_program() -> Callable[..., Program]:
    return open_program


@pytest.fixture(name="thinned", scope="session")
def _thinned() -> Callable[..., Path]:
    return thinned


@pytest.fixture
def hostile() -> tuple[str, ...]:
    return HOSTILE
