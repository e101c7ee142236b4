"""Which phases are open on this thread, and who is told about it?"""

import gc
import sys
import threading
from _thread import get_ident
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch.compiler import is_compiling

from vramscope.capture.hooks.modules import ModuleLog
from vramscope.capture.undisturbed import is_of_a_signal_handler
from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind, Note, Phase

FORWARDS = frozenset({Phase.FORWARD, Phase.EVAL, Phase.RECOMPUTE, Phase.LOSS})
CHECKPOINT = "checkpoint"
"""The name of a recompute that torch.utils.checkpoint began."""

_graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)


class Listener(Protocol):
    """Told what the program does; may raise, ``failed`` then gets the error and training goes on."""

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """A fact about the program, now."""

    def forward_begins(self, module: Any) -> None:
        """An outermost call of a module."""

    def forward_ends(self, inputs: Any, result: Any) -> None:
        """It returned."""

    def backward_ends(self) -> None:
        """An outermost backward returned: gradients are there."""

    def step_begins(self, optimizer: Any) -> None:
        """``optimizer.step()`` was called."""

    def step_ends(self, optimizer: Any) -> None:
        """It returned: its state is there."""

    def failed(self, error: Exception) -> None:
        """Something of ours went wrong."""


class _Open(NamedTuple):
    """A phase that began on this thread."""

    phase: Phase
    value: int
    name: str
    position: int
    """Frames from the bottom of the thread up to the one whose return ends the phase; 0 = ends by itself."""
    frame: int
    """id() of that frame: a reference would keep its locals, so tensors, alive."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls = 0
        """Module calls under way, inside each other."""
        self.modules: list[int] = []
        """Of these calls the index of the module's path."""
        self.open: list[_Open] = []


class _State:
    """Of the process; an object, as the hooks that read it must stay the same functions for ever."""

    __slots__ = ("collections", "leave_root", "listener", "log", "n_too_deep", "threads", "undo_all")

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.log: ModuleLog | None = None
        self.undo_all: list[Callable[[], None]] = []
        self.leave_root: dict[int, Callable[[], None]] = {}
        """Of each thread that runs a root module, what undoes the changes made for that time."""
        self.threads: set[int] = set()
        """All that began a phase, but those that autograd made for itself."""
        self.n_too_deep = 0
        """Calls of hooks that found no room below Python's recursion limit."""
        self.collections = 0
        """Whole collections of garbage so far."""


state = _State()
thread = _Thread()


def begin(phase: Phase, value: int, name: str, owner: FrameType | None) -> None:
    """A phase begins on this thread; ``end`` ends it, or the loss of its frame *owner* (None = never)."""
    if state.listener is None:
        return
    if _graph_task is None or _graph_task() == -1:
        state.threads.add(get_ident())
    stack = _frame_ids(owner) if owner is not None else []
    if owner is not None:
        _drop_stale(state.listener, stack)
    thread.open.append(_Open(phase, value, name, len(stack), stack[0] if stack else 0))
    state.listener.mark(MarkKind.PHASE_BEGIN, phase, value, name)


def end(phase: Phase, value: int, name: str) -> None:
    """The innermost phase like this ends, with all that an exception left open above it."""
    if state.listener is None:
        return
    stack = thread.open
    for at in reversed(range(len(stack))):
        if stack[at][:3] == (phase, value, name):
            del stack[at:]
            state.listener.mark(MarkKind.PHASE_END, phase, value, name)
            return


def forget_thread() -> None:
    """The thread left the recorded block: nothing is open."""
    thread.open.clear()
    thread.calls = 0
    thread.modules.clear()


def module_now() -> int:
    """Index of the path of the module that the calling thread is in; 0 for none."""
    modules = thread.modules
    return modules[-1] if modules else 0


def _frame_ids(frame: FrameType | None) -> list[int]:
    found = []
    while frame is not None:
        found.append(id(frame))
        frame = frame.f_back
    return found


def _drop_stale(listener: Listener, stack: list[int]) -> None:
    """End the phases whose frames are gone: an exception passed that their hooks never saw."""
    opened = thread.open
    while opened and opened[-1].position:
        at = len(stack) - opened[-1].position
        # An owner begins one phase only, so one that begins a second is another frame at the same address.
        if at > 0 and stack[at] == opened[-1].frame:
            return
        lost = opened.pop()
        if lost.phase in FORWARDS:
            thread.calls = 0
            leave_root()
        listener.mark(MarkKind.PHASE_END, lost.phase, lost.value, lost.name)


def leave_root() -> None:
    """The root module that the calling thread ran is left."""
    leave = state.leave_root.pop(get_ident(), None)
    if leave is not None:
        leave()


def other_threads() -> bool:
    """Whether another thread that lives began a phase: it may be at work on its tensors now."""
    return bool((state.threads - {get_ident()}) & sys._current_frames().keys())


def has_collected() -> bool:
    """Whether Python's garbage collector went through the whole heap since this was last asked.

    Not by ``gc.callbacks``: Python discards what a callback raises, also the user's Ctrl-C. Not asked of
    the young generations: they are collected hundreds of times a second.
    """
    n = gc.get_stats()[-1]["collections"]
    if n == state.collections:
        return False
    state.collections = n
    return True


def too_deep(n_more: int) -> list[Note]:
    """A note where hooks, and *n_more* others, had no room below Python's recursion limit; told once."""
    n, state.n_too_deep = state.n_too_deep + n_more, 0
    text = (
        "the program was so near Python's recursion limit that what it did there was not recorded: blocks "
        "and phases may be missing. sys.setrecursionlimit() makes room"
    )
    return [Note(NoteCode.RECURSION_LIMIT, text, n)] if n else []


def in_backward() -> bool:
    if _graph_task is not None and _graph_task() != -1:
        return True
    return any(opened.phase == Phase.BACKWARD for opened in thread.open)


def is_open(phase: Phase, name: str) -> bool:
    return any(opened.phase == phase and opened.name == name for opened in thread.open)


def during(phase: Phase, owner: Any, frame: FrameType, run: Callable[[], Any]) -> Any:
    """Run it as a phase that is known by its *owner*, an optimizer or a loader."""
    if state.listener is None or is_compiling():
        return run()
    value, name = id(owner), type(owner).__name__
    guarded(_begin_of, phase, value, name, frame)
    try:
        return run()
    finally:
        guarded(_end_of, phase, value, name)


def _begin_of(_listener: Listener, phase: Phase, value: int, name: str, frame: FrameType) -> None:
    begin(phase, value, name, frame)


def _end_of(_listener: Listener, phase: Phase, value: int, name: str) -> None:
    end(phase, value, name)


def guarded(do: Callable[..., None], *args: Any) -> None:
    """Our own mistakes never reach the training: the listener is told instead."""
    listener = state.listener
    if listener is None:
        return
    try:
        do(listener, *args)
    except RecursionError:
        # Nothing may be called here: there is no room for that either.
        state.n_too_deep += 1
    except Exception as error:
        if is_of_a_signal_handler(error):
            raise
        listener.failed(error)


def replace(home: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put our wrapper round an attribute until it is undone; stays where somebody has wrapped ours since."""
    original = vars(home)[name]
    ours = wrap(getattr(home, name))
    setattr(home, name, staticmethod(ours) if isinstance(original, staticmethod) else ours)

    def undo() -> None:
        if getattr(home, name) is ours:
            setattr(home, name, original)

    state.undo_all.append(undo)
