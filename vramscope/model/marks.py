"""What the program was doing: raw marks, the steps and phases they mean, notes of what is missing."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

from numpy.typing import NDArray

from vramscope.model.table import Table


class Phase(IntEnum):
    """What a step was doing; values stored in files."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    RECOMPUTE = 4
    """A forward inside backward (activation checkpointing)."""
    EVAL = 5
    """A forward with gradients disabled."""
    ZERO_GRAD = 6
    DATA = 7
    LOSS = 8
    USER = 9
    """Named by ``recorder.phase(name)``."""


class BackwardKeeps(IntEnum):
    """What a BACKWARD was asked to keep: ``value`` of its mark."""

    NOTHING = 0
    ITS_GRAPH = 1
    """``retain_graph=True``."""
    A_NEW_GRAPH = 2
    """``create_graph=True``."""


class MarkKind(IntEnum):
    """What happened in the program; values stored in files."""

    PHASE_BEGIN = 0
    PHASE_END = 1
    STEP = 2
    """The program said that a step ended (``recorder.step()``, ProfilerStep)."""
    ENTER = 3
    """A ``with record():`` block was entered."""
    EXIT = 4
    MARK = 5
    """``recorder.mark(name)``."""
    OOM = 6
    """An out-of-memory error; value = bytes free on the device."""
    GC = 7
    """Python's cyclic garbage collector ran; value = generation."""
    EMPTY_CACHE = 8
    MODULE = 9
    """From here on the program runs in the module of that path; '' for none. One before every allocation
    that another module makes than the one before, so there are many: select by kind."""


ROOT_MODULE = "(root)"
"""The path of a root module itself, as a mark's name."""


@dataclass(frozen=True, slots=True)
class Marks(Table):
    """One row per fact about the program, in the order they happened."""

    DTYPES: ClassVar = {
        "kind": "u1",
        "phase": "u1",
        "time_ns": "i8",
        "event": "i8",
        "thread": "i8",
        "value": "i8",
        "name": "i4",
    }

    kind: NDArray[Any]
    """A ``MarkKind``."""
    phase: NDArray[Any]
    """A ``Phase``, for PHASE_BEGIN and PHASE_END."""
    time_ns: NDArray[Any]
    event: NDArray[Any]
    """The instant: how many events of the trace came before."""
    thread: NDArray[Any]
    """Ident of the Python thread."""
    value: NDArray[Any]
    """Identity of the optimizer for OPTIMIZER phases, a ``BackwardKeeps`` for BACKWARD ones, nesting depth
    for ENTER and EXIT, see ``MarkKind``."""
    name: NDArray[Any]
    """Index into ``names``: module class, optimizer class, the user's word; '' where none."""
    names: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class Steps(Table):
    """One row per training step, in order; steps do not overlap."""

    DTYPES: ClassVar = {
        "index": "i8",
        "start_event": "i8",
        "end_event": "i8",
        "start_ns": "i8",
        "end_ns": "i8",
    }

    index: NDArray[Any]
    """0, 1, …"""
    start_event: NDArray[Any]
    end_event: NDArray[Any]
    """Exclusive."""
    start_ns: NDArray[Any]
    end_ns: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Phases(Table):
    """One row per stretch of a phase, by start; inner ones (greater depth) override the outer."""

    DTYPES: ClassVar = {
        "phase": "u1",
        "step": "i8",
        "depth": "i4",
        "start_event": "i8",
        "end_event": "i8",
        "start_ns": "i8",
        "end_ns": "i8",
        "thread": "i8",
        "name": "i4",
    }

    phase: NDArray[Any]
    """A ``Phase``."""
    step: NDArray[Any]
    """Row of ``Steps`` in which it began; −1 outside of every step."""
    depth: NDArray[Any]
    """0 for an outermost phase."""
    start_event: NDArray[Any]
    end_event: NDArray[Any]
    """Exclusive; the end of the trace for a phase still open."""
    start_ns: NDArray[Any]
    end_ns: NDArray[Any]
    thread: NDArray[Any]
    name: NDArray[Any]
    """Index into ``names``."""
    names: tuple[str, ...] = ("",)


class Category(IntEnum):
    """What bytes are for; the profiler's names, values stored in files."""

    UNKNOWN = 0
    PARAMETER = 1
    BUFFER = 2
    GRADIENT = 3
    OPTIMIZER_STATE = 4
    INPUT = 5
    ACTIVATION = 6
    TEMPORARY = 7
    COMMUNICATION = 8
    WORKSPACE = 9
    """Scratch memory that a library (cuBLAS) takes once and keeps for good."""


@dataclass(frozen=True, slots=True)
class Labels(Table):
    """What capture knew by identity about a block: one row per (block, moment)."""

    DTYPES: ClassVar = {"event": "i8", "address": "u8", "category": "u1", "element_bytes": "u1", "name": "i4"}

    event: NDArray[Any]
    """The instant at which it was known."""
    address: NDArray[Any]
    """Of the block live at that instant."""
    category: NDArray[Any]
    """A ``Category``."""
    element_bytes: NDArray[Any]
    """Of each of the tensor's numbers: 4 for float32, 2 for bfloat16; 0 where unknown."""
    name: NDArray[Any]
    """Index into ``names``: ``layers.0.weight``, ``exp_avg of layers.0.weight``; '' where unknown."""
    names: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class Note:
    """Something missing, doubtful or repaired; shown in every view."""

    code: str
    """A ``NoteCode``, or the word of a format of another distribution: ``starts_late``, ``gap``, …"""
    text: str
    """One sentence for people, with its numbers."""
    value: int = 0
    """Bytes or events, as the text says."""
