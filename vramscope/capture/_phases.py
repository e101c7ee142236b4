"""What is the program doing? Marks out of torch's own hooks, with no change to the loop.

The hooks are functions of this module and stay the same objects for the life of the process: torch.compile
guards on their identity, and would compile again after every ``with record():`` otherwise. They return at
once while torch.compile traces them.
"""

import functools
import gc
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils.data
from torch.compiler import is_compiling
from torch.nn.modules import module as _modules
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import checkpoint as _checkpoint

from vramscope.capture._modules import ModuleLog
from vramscope.model.marks import BackwardKeeps, MarkKind, Phase


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


_listener: Listener | None = None
_log: ModuleLog | None = None
_thread = _Thread()
_undo: list[Callable[[], None]] = []
_graph_task: Callable[[], int] | None = getattr(torch._C, "_current_graph_task_id", None)
# The name that torch ≥ 2.4 runs every backward through, bound in two modules; torch 2.1 has neither.
_ENGINE = "_engine_run_backward"
_FORWARDS = frozenset({Phase.FORWARD, Phase.EVAL, Phase.RECOMPUTE, Phase.LOSS})


def install(listener: Listener) -> None:
    """Tell *listener* what happens, until ``uninstall``."""
    global _listener, _log  # noqa: PLW0603 -- the hooks must be module-level functions, see above
    _listener = listener
    _log = getattr(listener, "modules", None)
    _hook_modules()
    _hook_optimizers()
    _hook_backward()
    _hook_checkpoints()
    _hook_data()
    gc.callbacks.append(_after_gc)
    _undo.append(lambda: gc.callbacks.remove(_after_gc))
    _silence_compile()


def uninstall() -> None:
    """Take every hook out again; harmless when there is none."""
    global _listener, _log  # noqa: PLW0603
    _listener = _log = None
    while _undo:
        _undo.pop()()


def begin(phase: Phase, value: int, name: str, owner: FrameType | None) -> None:
    """A phase begins on this thread; ``end`` ends it, or the loss of its frame *owner* (None = never)."""
    if _listener is None:
        return
    stack = _frame_ids(owner) if owner is not None else []
    if owner is not None:
        _drop_stale(_listener, stack)
    _thread.open.append(_Open(phase, value, name, len(stack), stack[0] if stack else 0))
    _listener.mark(MarkKind.PHASE_BEGIN, phase, value, name)


def end(phase: Phase, value: int, name: str) -> None:
    """The innermost phase like this ends, with all that an exception left open above it."""
    if _listener is None:
        return
    stack = _thread.open
    for at in reversed(range(len(stack))):
        if stack[at][:3] == (phase, value, name):
            del stack[at:]
            _listener.mark(MarkKind.PHASE_END, phase, value, name)
            return


def forget_thread() -> None:
    """The thread left the recorded block: nothing is open."""
    _thread.open.clear()
    _thread.calls = 0
    _thread.modules.clear()


def module_now() -> int:
    """Index of the path of the module that the calling thread is in; 0 for none."""
    modules = _thread.modules
    return modules[-1] if modules else 0


def _frame_ids(frame: FrameType | None) -> list[int]:
    found = []
    while frame is not None:
        found.append(id(frame))
        frame = frame.f_back
    return found


def _drop_stale(listener: Listener, stack: list[int]) -> None:
    """End the phases whose frames are gone: an exception passed that their hooks never saw."""
    opened = _thread.open
    while opened and opened[-1].position:
        at = len(stack) - opened[-1].position
        # An owner begins one phase only, so one that begins a second is another frame at the same address.
        if at > 0 and stack[at] == opened[-1].frame:
            return
        lost = opened.pop()
        if lost.phase in _FORWARDS:
            _thread.calls = 0
        listener.mark(MarkKind.PHASE_END, lost.phase, lost.value, lost.name)


# ------------------------------------------------------------------------------------------ modules


def _hook_modules() -> None:
    after = _modules.register_module_forward_hook(_after_module, always_call=True, **_WITH_KWARGS)
    _keep_key(_modules.register_module_forward_pre_hook(_before_module), _before_module)
    _keep_key(after, _after_module)


_WITH_KWARGS = (
    {"with_kwargs": True}
    if "with_kwargs" in inspect.signature(_modules.register_module_forward_hook).parameters
    else {}
)
_keys: dict[Any, int] = {}


def _keep_key(handle: Any, hook: Any) -> None:
    """Register under the same key as the last time: torch.compile guards on the keys as well."""
    # torch forgets to take the last of these away with its handle.
    loose = getattr(_modules, "_global_forward_hooks_with_kwargs", {})
    homes = [reference() for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref)]
    key = _keys.setdefault(hook, handle.id)
    for home in (*homes, loose):
        if home is not None and handle.id in home:
            home[key] = home.pop(handle.id)
    handle.id = key

    def undo() -> None:
        handle.remove()
        loose.pop(key, None)

    _undo.append(undo)


def _before_module(module: Any, args: Any) -> None:  # noqa: ARG001
    if is_compiling():
        return
    thread = _thread
    thread.calls += 1
    if thread.calls == 1:
        _guarded(_begin_forward, module, sys._getframe(1))
    if _log is not None:
        _enter_module(_log, thread.modules, thread.calls, module)


def _after_module(module: Any, args: Any, *rest: Any) -> None:
    """*rest*: kwargs and result; without kwargs in old torch, and where forward raised."""
    if is_compiling() or not _thread.calls:
        return
    thread = _thread
    thread.calls -= 1
    if not thread.calls:
        _guarded(_end_forward, module, (args, *rest[:-1]), rest[-1])
    if _log is not None:
        _leave_module(_log, thread.modules, thread.calls)


def _enter_module(log: ModuleLog, modules: list[int], calls: int, module: Any) -> None:
    del modules[calls - 1 :]  # left there by an exception
    around = modules[-1] if modules else 0
    index = log.ids.get(id(module), around)
    modules.append(index)
    if index != around:
        log.changed(index)


def _leave_module(log: ModuleLog, modules: list[int], calls: int) -> None:
    left = modules[-1] if modules else 0
    del modules[calls:]
    around = modules[-1] if modules else 0
    if left != around:
        log.changed(around)


def _begin_forward(listener: Listener, module: Any, owner: FrameType) -> None:
    phase = _forward_phase(module)
    if phase == Phase.RECOMPUTE and _is_open(Phase.RECOMPUTE, _CHECKPOINT):
        return
    calls = _thread.calls
    if _log is not None and phase not in (Phase.RECOMPUTE, Phase.LOSS):
        _log.learn(module)
    begin(phase, 0, type(module).__name__, owner)
    _thread.calls = calls
    # A part of a model that is run again has its names, inputs and outputs from the first run.
    if phase != Phase.RECOMPUTE:
        listener.forward_begins(module)


def _end_forward(listener: Listener, module: Any, inputs: Any, result: Any) -> None:
    name = type(module).__name__
    for opened in reversed(_thread.open):
        if opened.name == name and opened.phase in _FORWARDS:
            if opened.phase != Phase.RECOMPUTE:
                listener.forward_ends(inputs, result)
            end(opened.phase, 0, name)
            return


def _forward_phase(module: Any) -> Phase:
    if _in_backward():
        return Phase.RECOMPUTE
    if not torch.is_grad_enabled():
        return Phase.EVAL
    return Phase.LOSS if isinstance(module, torch.nn.modules.loss._Loss) else Phase.FORWARD


def _in_backward() -> bool:
    if _graph_task is not None and _graph_task() != -1:
        return True
    return any(opened.phase == Phase.BACKWARD for opened in _thread.open)


# ----------------------------------------------------------------------------------------- backward


def _hook_backward() -> None:
    if hasattr(torch.autograd.graph, _ENGINE):
        places: list[tuple[Any, str]] = [(torch.autograd.graph, _ENGINE), (torch.autograd, _ENGINE)]
    else:
        places = [(torch.autograd, "backward"), (torch.autograd, "grad")]
    for home, name in places:
        _replace(home, name, _watched_backward)


def _watched_backward(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if _listener is None or is_compiling():
            return run(*args, **kwargs)
        if _in_backward():
            # A reentrant checkpoint has run its forward again and goes backward through it.
            _guarded(_end_recompute)
            return run(*args, **kwargs)
        keeps = _what_it_keeps(run, args, kwargs)
        _guarded(_begin_backward, keeps, sys._getframe())
        # Module calls inside of backward count from nothing: they are recomputations.
        calls, modules = _thread.calls, _thread.modules
        _thread.calls, _thread.modules = 0, []
        try:
            return run(*args, **kwargs)
        finally:
            _thread.calls, _thread.modules = calls, modules
            _guarded(_end_backward, keeps)

    return run_backward


def _what_it_keeps(run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The mark's value: whether the program asked to retain the graph, or to create one of the gradients."""
    # autograd.grad, wrapped where torch has no engine by that name, takes the inputs before them.
    at = 3 if run.__name__ == "grad" else 2
    retains, creates = (
        bool(kwargs.get(name, args[i] if len(args) > i else False))
        for i, name in ((at, "retain_graph"), (at + 1, "create_graph"))
    )
    # Without a word about it, creating a graph retains the old one.
    return BackwardKeeps.A_NEW_GRAPH if creates else BackwardKeeps.ITS_GRAPH if retains else 0


def _begin_backward(_listener: Listener, keeps: int, owner: FrameType) -> None:
    begin(Phase.BACKWARD, keeps, "", owner)


def _end_backward(listener: Listener, keeps: int) -> None:
    end(Phase.BACKWARD, keeps, "")
    listener.backward_ends()


# -------------------------------------------------------------------------------------- checkpoints


def _hook_checkpoints() -> None:
    """torch.utils.checkpoint runs any function again inside backward, a module or not."""
    if hasattr(_checkpoint, "_recomputation_hook"):
        _replace(_checkpoint, "_recomputation_hook", _watched_recomputation)
    _replace(_checkpoint.CheckpointFunction, "backward", _watched_reentrant)


def _watched_recomputation(original: Any) -> Any:
    class Recomputation(original):
        """What torch enters around the second run."""

        def __enter__(self) -> Any:
            _guarded(_begin_recompute)
            return super().__enter__()

        def __exit__(self, *error: object) -> Any:
            try:
                return super().__exit__(*error)
            finally:
                _guarded(_end_recompute)

    return Recomputation


def _watched_reentrant(run: Callable[..., Any]) -> Callable[..., Any]:
    """The second run lasts from here to the backward through it, which ``_watched_backward`` sees."""

    @functools.wraps(run)
    def backward(*args: Any) -> Any:
        _guarded(_begin_recompute)
        try:
            return run(*args)
        finally:
            _guarded(_end_recompute)

    return backward


_CHECKPOINT = "checkpoint"


def _begin_recompute(_listener: Listener) -> None:
    if not is_compiling():
        begin(Phase.RECOMPUTE, 0, _CHECKPOINT, None)


def _end_recompute(_listener: Listener) -> None:
    end(Phase.RECOMPUTE, 0, _CHECKPOINT)


def _is_open(phase: Phase, name: str) -> bool:
    return any(opened.phase == phase and opened.name == name for opened in _thread.open)


# ---------------------------------------------------------------------------------------- optimizer


def _hook_optimizers() -> None:
    handles = [
        register_optimizer_step_pre_hook(_before_step),
        register_optimizer_step_post_hook(_after_step),
    ]
    _undo.extend(handle.remove for handle in handles)
    for home in (torch.optim.Optimizer, torch.nn.Module):
        _replace(home, "zero_grad", _watched_zero_grad)
    # A step that it skips calls no optimizer: only here is it seen.
    _replace(_GRAD_SCALER, "step", _watched_scaler)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
    if not is_compiling():
        _guarded(_begin_step, optimizer, sys._getframe(1))


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
    if not is_compiling():
        _guarded(_end_step, optimizer)


def _begin_step(listener: Listener, optimizer: Any, owner: FrameType) -> None:
    begin(Phase.OPTIMIZER, id(optimizer), type(optimizer).__name__, owner)
    listener.step_begins(optimizer)


def _end_step(listener: Listener, optimizer: Any) -> None:
    listener.step_ends(optimizer)
    end(Phase.OPTIMIZER, id(optimizer), type(optimizer).__name__)


def _watched_zero_grad(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
        return _during(Phase.ZERO_GRAD, owner, sys._getframe(), lambda: run(owner, *args, **kwargs))

    return zero_grad


def _watched_scaler(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return _during(
            Phase.OPTIMIZER, optimizer, sys._getframe(), lambda: run(scaler, optimizer, *args, **kwargs)
        )

    return step


def _during(phase: Phase, owner: Any, frame: FrameType, run: Callable[[], Any]) -> Any:
    """Run it as a phase that is known by its *owner*, an optimizer or a loader."""
    if _listener is None or is_compiling():
        return run()
    value, name = id(owner), type(owner).__name__
    _guarded(_begin_of, phase, value, name, frame)
    try:
        return run()
    finally:
        _guarded(_end_of, phase, value, name)


def _begin_of(_listener: Listener, phase: Phase, value: int, name: str, frame: FrameType) -> None:
    begin(phase, value, name, frame)


def _end_of(_listener: Listener, phase: Phase, value: int, name: str) -> None:
    end(phase, value, name)


def _grad_scaler() -> Any:
    """The class that defines ``GradScaler.step``: torch.amp's since 2.3, torch.cuda.amp's before."""
    return next(kind for kind in torch.cuda.amp.GradScaler.__mro__ if "step" in kind.__dict__)


_GRAD_SCALER = _grad_scaler()


# --------------------------------------------------------------------------------------------- data


def _hook_data() -> None:
    """torch annotates it as well, on CUDA and since 2.5; ours is there always."""
    _replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", _watched_next)


def _watched_next(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def next_batch(loader: Any) -> Any:
        return _during(Phase.DATA, loader, sys._getframe(), lambda: run(loader))

    return next_batch


# -------------------------------------------------------------------------------------- other hooks


def _after_gc(stage: str, info: dict[str, int]) -> None:
    # Only whole collections: the young generations are collected hundreds of times a second.
    if stage == "stop" and info.get("generation") == 2:
        _guarded(_mark_gc)


def _mark_gc(listener: Listener) -> None:
    listener.mark(MarkKind.GC, value=2)


def _silence_compile() -> None:
    """torch warns that global hooks fire once more for a compiled module; with ours nobody need care."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    entry = warnings.filters[0]

    def undo() -> None:
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]

    _undo.append(undo)


def _replace(home: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put our wrapper round an attribute until it is undone; stays where somebody has wrapped ours since."""
    original = vars(home)[name]
    ours = wrap(getattr(home, name))
    setattr(home, name, staticmethod(ours) if isinstance(original, staticmethod) else ours)

    def undo() -> None:
        if getattr(home, name) is ours:
            setattr(home, name, original)

    _undo.append(undo)


def _guarded(do: Callable[..., None], *args: Any) -> None:
    """Our own mistakes never reach the training: the listener is told instead."""
    listener = _listener
    if listener is None:
        return
    try:
        do(listener, *args)
    except Exception as error:  # noqa: BLE001 -- the recorder's boundary
        listener.failed(error)
