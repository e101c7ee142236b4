"""What the program did: raw marks, the steps and phases they mean, labels, and notes on what is missing."""

from dataclasses import dataclass, field
from enum import IntEnum

from vramscope.model.table import Int32, Int64, Table, UInt8, UInt64


class Phase(IntEnum):
    """The activity within a step; files store these values."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    RECOMPUTE = 4
    """A forward inside backward (activation checkpointing)."""
    EVAL = 5
    """A forward with gradients disabled, or of an evaluation that runs with gradients on."""
    ZERO_GRAD = 6
    DATA = 7
    LOSS = 8
    USER = 9
    """A phase that ``recorder.phase(name)`` names."""


class BackwardKeeps(IntEnum):
    """What a backward keeps: the ``value`` of its mark."""

    NOTHING = 0
    ITS_GRAPH = 1
    """``retain_graph=True``."""
    A_NEW_GRAPH = 2
    """``create_graph=True``."""
    RETURNS = 4
    """Added to one of the others where the gradients are returned and not kept (``autograd.grad``)."""


ANY_THREAD = -1
"""The thread of an event that any thread may have made, because none was recorded for it."""


class MarkKind(IntEnum):
    """The kind of a fact about the program; files store these values."""

    PHASE_BEGIN = 0
    PHASE_END = 1
    STEP = 2
    """The program reported the end of a step (``recorder.step()``, ProfilerStep)."""
    ENTER = 3
    """The program entered a ``with record():`` block."""
    EXIT = 4
    MARK = 5
    """The program called ``recorder.mark(name)``."""
    OOM = 6
    """An out-of-memory error; value = bytes free on the device."""
    GC = 7
    """Python's cyclic garbage collector ran; value = generation."""
    EMPTY_CACHE = 8
    MODULE = 9
    """From this mark on the program runs in the module with that path; '' for none. A mark precedes each
    allocation, or failed one, of another module than the one before, so there are many: select by kind.
    """
    GRAPH_POOL = 10
    """A CUDA graph was captured into a private pool; value = ``pool_number`` of the pool's id, name =
    the line of code."""
    MEM_POOL = 11
    """The program made a ``torch.cuda.MemPool``; value and name likewise."""
    THREAD = 12
    """From this mark on the events are those of the thread ``thread``: 0 for one without a name, −1 where
    the thread is not known. With the value 1 the thread takes a name here. Only recordings in which several
    threads have phases have such marks, and then many: select by kind.
    """
    GAP = 13
    """Events before this instant are missing, or memory changed while nothing was recorded: what happened
    in all is shown as one moment, which ends here; value = number of missing events, 0 where unknown."""
    ANNOTATION = 14
    """The program annotated an allocation (``torch.cuda.memory._annotate_tensor``); value = its address,
    name = the text."""
    METADATA = 15
    """From this mark on allocations carry that text (``torch.cuda.memory._set_memory_metadata``); '' for
    none. Threads have texts of their own, so there may be many: select by kind."""
    EVENTS = 16
    """From this mark on the allocator's events are recorded (value 1), or levels by torch's counters alone
    (value 0), as with ``record(every=100)``. What happened without events is shown as one moment, which
    ends at the mark with the value 1."""


def pool_number(first: int, second: int) -> int:
    """Return both halves of torch's id of a pool as one number."""
    return (first << 32) + second


ROOT_MODULE = "(root)"
"""Name of a mark that stands for the root module itself."""


@dataclass(frozen=True, slots=True)
class Marks(Table):
    """One row per fact about the program, in the order in which they happened."""

    kind: UInt8
    """A ``MarkKind``."""
    phase: UInt8
    """A ``Phase``, for PHASE_BEGIN and PHASE_END."""
    time_ns: Int64
    event: Int64
    """The instant: the number of events of the trace before the mark."""
    thread: Int64
    """Ident of the Python thread."""
    value: Int64
    """Identity of the optimizer, loader or module of a phase, negative for a FORWARD in evaluation mode; a
    ``BackwardKeeps`` for BACKWARD ones, nesting depth for ENTER and EXIT, see ``MarkKind``."""
    name: Int32
    """Index into ``names``: module class, optimizer class or the user's name; '' where there is none."""
    names: tuple[str, ...] = ("",)

    def of_phase(self, kind: MarkKind, phase: Phase) -> "Marks":
        """Return the marks of one kind and phase."""
        return self.rows((self.kind == kind) & (self.phase == phase))


@dataclass(frozen=True, slots=True)
class Steps(Table):
    """One row per training step, in order; steps do not overlap."""

    index: Int64
    """0, 1, …"""
    start_event: Int64
    end_event: Int64
    """The exclusive end."""
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True, slots=True)
class EventThreads(Table):
    """Which thread made the events: one row per run of events of one thread, in order."""

    start_event: Int64
    """The first event of the run, which ends where the next one begins. A run without events tells from
    where on a thread has a name.
    """
    thread: Int64
    """Ident of the thread; 0 for a thread that has taken no name, −1 where it is not known."""


@dataclass(frozen=True, slots=True)
class Phases(Table):
    """One row per interval of a phase, ordered by start.

    Inner phases (greater depth) override outer ones of the same thread.
    """

    phase: UInt8
    """A ``Phase``."""
    step: Int64
    """Row of the ``Steps`` in which the phase began; −1 outside of every step."""
    depth: Int32
    """0 for an outermost phase."""
    start_event: Int64
    end_event: Int64
    """The exclusive end; the end of the trace for a phase that is still open."""
    start_ns: Int64
    end_ns: Int64
    thread: Int64
    """Ident of the thread that the phase belongs to: a recompute on a thread of autograd belongs to the
    thread that called backward.
    """
    name: Int32
    """Index into ``names``."""
    names: tuple[str, ...] = ("",)
    made_by: EventThreads = field(default_factory=EventThreads.of)
    """Which thread made the events; empty where no such fact was recorded."""


class Category(IntEnum):
    """The purpose of bytes, with the names of torch's profiler; files store these values."""

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
    """Scratch memory that a library (cuBLAS) allocates once and never frees."""
    SHARDED_PARAMETER = 10
    """This rank's shard of a parameter: FSDP's, or the local tensor of a DTensor with a Shard placement."""
    UNSHARDED_PARAMETER = 11
    """A whole parameter that FSDP gathers from the shards of all ranks while a module computes."""
    SHARDED_GRADIENT = 12
    """This rank's shard of a gradient: under FSDP the reduced gradient, which reduce-scatter leaves."""


@dataclass(frozen=True, slots=True)
class Labels(Table):
    """What capture knew about a block from the identity of its tensor: one row per block and moment."""

    event: Int64
    """The instant at which capture knew it."""
    address: UInt64
    """Address of the block that was live at that instant."""
    category: UInt8
    """A ``Category``."""
    element_bytes: UInt8
    """Bytes per element of the tensor: 4 for float32, 2 for bfloat16; 0 where unknown."""
    name: Int32
    """Index into ``names``: ``layers.0.weight``, ``exp_avg of layers.0.weight``; '' where unknown."""
    names: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class Note:
    """A statement that something is missing, doubtful or repaired; every view shows it."""

    code: str
    """Stable code for machines: ``starts_late``, ``gap``, ``truncated``, ``no_clock``, …"""
    text: str
    """One sentence for people, with its numbers."""
    value: int = 0
    """Bytes or events, as the text says."""
    stream: str = ""
    """For a file that is damaged or missing: the kind of its rows, such as ``events``; '' for other notes."""


def counted(code: str, n: int, text: str) -> list[Note]:
    """Return the note on *n* things that *text* counts; none where there are none."""
    return [Note(code, text, n)] if n else []
