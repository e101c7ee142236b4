"""The phases open on each thread, and the listener that their beginnings and ends are reported to."""

import gc
import sys
import threading
from _thread import get_ident
from collections.abc import Callable
from concurrent.futures import thread as thread_pool
from tracemalloc import is_tracing
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from vramscope.capture.hooks.modules import ModuleLog
from vramscope.capture.undisturbed import is_of_the_program
from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind, Note, Phase

FORWARDS = frozenset({Phase.FORWARD, Phase.EVAL, Phase.RECOMPUTE, Phase.LOSS})
_OF_A_LOOP = frozenset({Phase.DATA, Phase.ZERO_GRAD, Phase.OPTIMIZER})
CHECKPOINT = "checkpoint"
"""Name of the recompute phases that torch.utils.checkpoint begins."""

_TRACED_PHASES = 8
"""Number of phases after which the collections are asked for while tracemalloc makes that slow."""
_graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)
_IDLE = thread_pool._worker.__code__
"""Code of the innermost frame of a ThreadPoolExecutor's thread that waits; a task has frames of its own."""


class Listener:
    """Receives what the program does; what a source overrides is what it looks at.

    Its methods may raise: ``failed`` then receives the error and the training goes on.
    """

    failed: Callable[[BaseException], None]
    """Receives an error of vramscope itself."""

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """An event of the program at this moment."""

    def forward_begins(self, module: Any) -> None:
        """An outermost call of a module begins."""

    def forward_ends(self, inputs: Any, result: Any) -> None:
        """The outermost call of a module returned."""

    def backward_ends(self) -> None:
        """An outermost backward returned, so the gradients exist."""

    def step_begins(self, optimizer: Any) -> None:
        """A call of ``optimizer.step()`` begins."""

    def step_ends(self, optimizer: Any) -> None:
        """A call of ``optimizer.step()`` returned, so the optimizer's state exists."""


class _OpenPhase(NamedTuple):
    phase: Phase
    value: int
    name: str
    position: int
    """Depth of the frame whose return ends the phase, from the thread's bottom; 0 if no frame ends it."""
    frame: int
    """The id() of that frame; a reference would keep its locals and so tensors alive."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls = 0
        """Number of nested module calls in progress."""
        self.root = 1
        """Which of these are forwards: the outermost, and the next where the calls before run a loop."""
        self.modules: list[int] = []
        """The index of the module's path for each of these calls."""
        self.open: list[_OpenPhase] = []
        self.answers: dict[Any, Any] = {}
        """What ``once_a_hook`` was asked in the hook that is running."""
        self.is_in_hook = False


class _HookState:
    """State of the hooks, one for the process.

    It is an object because the hooks that read it must stay the same functions for the life of the process.
    """

    __slots__ = (
        "collections", "hook_roots", "leave_root", "listener", "log", "n_begun", "n_too_deep", "threads",
        "undo_all",
    )  # fmt: skip

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.log: ModuleLog | None = None
        self.undo_all: list[Callable[[], None]] = []
        self.leave_root: dict[tuple[int, int], Callable[[], None]] = {}
        """Functions that undo the changes made for a root module, by thread and number of calls."""
        self.hook_roots: Callable[[], None] = lambda: None
        """Hooks root modules again, which ends while one runs."""
        self.threads: set[int] = set()
        """The threads that began a phase, except autograd's own threads."""
        self.n_begun = 0
        """Number of phases that these threads have begun so far."""
        self.n_too_deep = 0
        """Number of hook calls that failed at Python's recursion limit."""
        self.collections = 0
        """Number of full garbage collections so far."""


state = _HookState()
thread = _Thread()


def listen(listener: Listener) -> None:
    """Report to *listener* from now on; the running module where it has a module log (``modules``)."""
    state.listener, state.log = listener, getattr(listener, "modules", None)


def begin(listener: Listener, phase: Phase, value: int, name: str, owner: FrameType | None) -> None:
    """Begin a phase on this thread; ``end`` ends it, or the return of the frame *owner* if one is given."""
    if _graph_task is None or _graph_task() == -1:
        state.threads.add(get_ident())
        state.n_begun += 1
    opened, depth = thread.open, _depth(owner)
    if owner is not None and opened:
        _drop_stale(listener, opened, (owner, depth))
    if phase in _OF_A_LOOP and thread.calls and thread.root == 1 and opened and opened[-1].phase in FORWARDS:
        # A trainer is a module whose forward is a loop: the forwards within it are reported, too.
        thread.root = thread.calls + 1
        if state.log is None:
            state.hook_roots()
    opened.append(_OpenPhase(phase, value, name, depth, 0 if owner is None else id(owner)))
    listener.mark(MarkKind.PHASE_BEGIN, phase, value, name)


def end(listener: Listener, phase: Phase, value: int, name: str) -> None:
    """End the innermost such phase, and every phase that an exception left open inside it."""
    stack = thread.open
    at = len(stack) - 1
    while at >= 0 and not (stack[at].phase == phase and stack[at].value == value and stack[at].name == name):
        at -= 1
    if at >= 0:
        del stack[at:]
        listener.mark(MarkKind.PHASE_END, phase, value, name)


def forget_thread() -> None:
    """Forget the open phases of the calling thread, which left the recorded block."""
    thread.open.clear()
    thread.calls, thread.root = 0, 1
    thread.modules.clear()


def module_now() -> int:
    """Index of the path of the module that the calling thread runs; 0 for none."""
    modules = thread.modules
    return modules[-1] if modules else 0


def _depth(frame: FrameType | None) -> int:
    """Number of frames from this one outwards; walked like this, no object is made but of frames."""
    depth = 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def _drop_stale(listener: Listener, opened: list[_OpenPhase], now: tuple[FrameType, int]) -> None:
    """End the phases whose frames are gone because an exception left them without a hook."""
    while opened and opened[-1].position:
        frame: FrameType | None = now[0]
        for _ in range(now[1] - opened[-1].position):
            frame = frame and frame.f_back
        # A frame owns at most one phase, so the innermost one is a new frame at the same address.
        if now[1] > opened[-1].position and id(frame) == opened[-1].frame:
            return
        lost = opened.pop()
        if lost.phase in FORWARDS:
            leave_root()
            thread.calls, thread.root = 0, 1
        listener.mark(MarkKind.PHASE_END, lost.phase, lost.value, lost.name)


def leave_root() -> None:
    """Undo what was changed for the root module that the calling thread has left."""
    leave = state.leave_root.pop((get_ident(), thread.calls), None)
    if leave is not None:
        leave()


def other_threads() -> bool:
    """Whether another living thread began a phase, so that it may be using its tensors now."""
    own, threads = get_ident(), state.threads
    if not (len(threads) < 2 and own in threads):  # rarely
        # A new thread, such as one of our own, may get the number of one that ended.
        threads.difference_update((threads - {own}) - sys._current_frames().keys())
    return not threads <= {own}


def threads_at_work() -> bool:
    """Whether another living thread began a phase and may be using its tensors now.

    The threads of a pool that wait for work use none.
    """
    frames = sys._current_frames()
    # With the own frame in it, this local variable would keep the locals of every caller until a collection.
    del frames[get_ident()]
    return any(frame.f_code is not _IDLE for other, frame in frames.items() if other in state.threads)


def has_collected() -> bool:
    """Whether Python's garbage collector ran a full collection since the last call.

    ``gc.callbacks`` is not used: Python discards what a callback raises, including the user's Ctrl-C. Young
    generations are not counted: they are collected hundreds of times a second.
    """
    if is_tracing() and state.n_begun % _TRACED_PHASES:
        return False
    n = gc.get_stats()[-1]["collections"]
    if n == state.collections:
        return False
    state.collections = n
    return True


def recursion_notes(n_more: int) -> list[Note]:
    """A note on the hook calls, and *n_more* others, that failed at Python's recursion limit.

    The count starts again from zero.
    """
    n, state.n_too_deep = state.n_too_deep + n_more, 0
    text = (
        "the program was so near Python's recursion limit that its actions there were not recorded: blocks "
        "and phases may be missing. sys.setrecursionlimit() makes room"
    )
    return [Note(NoteCode.RECURSION_LIMIT, text, n)] if n else []


def works_for_another() -> bool:
    """Whether the calling thread is one of autograd's and runs the backward of another thread."""
    if _graph_task is None or _graph_task() == -1:
        return False
    return all(opened.phase != Phase.BACKWARD for opened in thread.open)


def in_backward() -> bool:
    """Whether the calling thread runs a backward pass."""
    if _graph_task is not None and _graph_task() != -1:
        return True
    return any(opened.phase == Phase.BACKWARD for opened in thread.open)


def loads_data() -> bool:
    """Whether a data loader is the innermost thing that the calling thread runs."""
    opened = thread.open
    return bool(opened) and opened[-1].phase == Phase.DATA


def is_open(phase: Phase, name: str) -> bool:
    """Whether such a phase is open on the calling thread."""
    return any(opened.phase == phase and opened.name == name for opened in thread.open)


def during(phase: Phase, owner: Any, frame: FrameType, run: Callable[[], Any]) -> Any:
    """Run *run* as a phase identified by its *owner*, an optimizer or a data loader."""
    if state.listener is None or is_compiling():
        return run()
    value, name = id(owner), type(owner).__name__
    guarded(begin, phase, value, name, frame)
    try:
        return run()
    finally:
        guarded(end, phase, value, name)


def guarded(do: Callable[..., None], *args: Any) -> None:
    """Call *do* so that an error of vramscope goes to the listener and never into the training."""
    listener = state.listener
    if listener is None:
        return
    thread.is_in_hook = True
    try:
        do(listener, *args)
    except RecursionError:
        # No call here: it could exceed the recursion limit again.
        state.n_too_deep += 1
    except BaseException as error:
        if is_of_the_program(error):
            raise
        listener.failed(error)
    finally:
        thread.is_in_hook = False
        if thread.answers:
            thread.answers.clear()


def once_a_hook(ask: Callable[[], Any]) -> Any:
    """Return ``ask()``, or within one call of a hook what its first call returned.

    A hook puts a mark and labels at the same place of the trace, and the program waits for it meanwhile.
    """
    if not thread.is_in_hook:
        return ask()
    answers = thread.answers
    if ask not in answers:
        answers[ask] = ask()
    return answers[ask]


def replace(home: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap an attribute until ``uninstall``; the wrapper stays if someone else has wrapped it since."""
    original = vars(home)[name]
    ours = wrap(getattr(home, name))

    def undo() -> None:
        if getattr(home, name) is ours:
            setattr(home, name, original)

    # First, because a Ctrl-C may come in between: what nothing undoes writes every phase twice later.
    state.undo_all.append(undo)
    setattr(home, name, staticmethod(ours) if isinstance(original, staticmethod) else ours)
