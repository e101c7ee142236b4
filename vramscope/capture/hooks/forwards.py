"""Hooks on forward calls: of every module, or of the outermost modules alone."""

import inspect
import sys
from _thread import get_ident
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.nn.modules import module as _modules

from vramscope.capture.hooks.modules import ModuleLog, tensors_of
from vramscope.capture.hooks.open_phases import (
    CHECKPOINT,
    FORWARDS,
    Listener,
    begin,
    end,
    guarded,
    in_backward,
    is_open,
    leave_root,
    loads_data,
    other_threads,
    state,
    thread,
)
from vramscope.model.marks import Phase


def hook_modules() -> None:
    """Hook every call of a module until ``uninstall``: 2.4 µs a call, most of it torch's own."""
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
    """Register the hook under the same key as last time: torch.compile guards on the keys as well."""
    # torch does not remove this last entry together with the handle.
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

    state.undo_all.append(undo)


def _before_module(module: Any, args: Any) -> None:  # noqa: ARG001
    if is_compiling():
        return
    # What is the thread's own is looked up at each access, so each is read once.
    thread.calls = calls = thread.calls + 1
    if calls == thread.root:
        guarded(_begin_forward, module, sys._getframe(1))
    log = state.log
    if log is not None:
        _enter_module(log, thread.modules, calls, module)


def _after_module(module: Any, args: Any, *rest: Any) -> None:
    """End a forward; *rest* is kwargs and result, without kwargs in old torch and if forward raised."""
    calls = 0 if is_compiling() else thread.calls
    if not calls:
        return
    thread.calls = calls = calls - 1
    if calls < thread.root and _is_root_left(calls):
        guarded(_end_forward, module, (args, *rest[:-1]), rest[-1])
    log = state.log
    if log is not None:
        _leave_module(log, thread.modules, calls)


def _is_root_left(calls: int) -> bool:
    """Whether a module returned whose forward is reported; the loop in a module ends with it."""
    if calls < thread.root - 1:
        thread.root = 1
    return calls == thread.root - 1


def _enter_module(log: ModuleLog, modules: list[int], calls: int, module: Any) -> None:
    if log.dead:
        log.forget()
    del modules[calls - 1 :]  # an exception left them
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


def hook_roots() -> None:
    """Hook the outermost calls alone, for a listener without a module log.

    A global hook sends every call of every module through torch's slow path. So the hook is removed while a
    root runs, and a hook on that root reports its return. If several threads run modules it stays installed.
    """
    _keep_key(_modules.register_module_forward_pre_hook(_before_root), _before_root)
    hooks = _modules._global_forward_pre_hooks
    state.hook_roots = partial(hooks.__setitem__, _keys[_before_root], _before_root)


def _before_root(module: Any, args: Any) -> None:  # noqa: ARG001
    if is_compiling() or thread.calls >= thread.root:
        return
    thread.calls += 1
    guarded(_begin_forward, module, sys._getframe(1))
    guarded(_step_aside, module)


def _step_aside(_listener: Listener, root: Any) -> None:
    handle = root.register_forward_hook(_after_root, always_call=True, **_WITH_KWARGS)

    def leave() -> None:
        handle.remove()
        # torch does not remove the hook from these.
        for name in ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
            getattr(root, name, {}).pop(handle.id, None)
        if state.listener is not None:
            state.hook_roots()

    state.leave_root[get_ident(), thread.calls] = leave
    if not other_threads():
        _modules._global_forward_pre_hooks.pop(_keys[_before_root], None)


def _after_root(module: Any, args: Any, *rest: Any) -> None:
    if is_compiling() or not thread.calls:
        return
    leave_root()
    thread.calls = calls = thread.calls - 1
    if _is_root_left(calls):
        guarded(_end_forward, module, (args, *rest[:-1]), rest[-1])


def _begin_forward(listener: Listener, module: Any, owner: FrameType) -> None:
    phase = _forward_phase(module)
    if phase == Phase.RECOMPUTE and is_open(Phase.RECOMPUTE, CHECKPOINT):
        return
    # DataParallel runs its replicas on threads of its own, within the forward of the thread that called it.
    if getattr(module, "_is_replica", False):
        return
    # Transforms of a data set are modules too: that they are called is loading, and no forward.
    if loads_data() and not tensors_of(module, "_parameters"):
        return
    calls, root = thread.calls, thread.root
    if state.log is not None and phase not in (Phase.RECOMPUTE, Phase.LOSS):
        state.log.learn(module)
    begin(listener, phase, _identity(module, phase), type(module).__name__, owner)
    thread.calls, thread.root = calls, root
    # A recomputed part of a model has its names, inputs and outputs from the first run.
    if phase != Phase.RECOMPUTE:
        listener.forward_begins(module)


def _end_forward(listener: Listener, module: Any, inputs: Any, result: Any) -> None:
    name = type(module).__name__
    for opened in reversed(thread.open):
        if opened.phase == Phase.DATA:
            return
        if opened.name == name and opened.phase in FORWARDS:
            if opened.phase != Phase.RECOMPUTE:
                listener.forward_ends(inputs, result)
            end(listener, opened.phase, opened.value, name)
            return


def _identity(module: Any, phase: Phase) -> int:
    """Identity of the module, negative where a forward with gradients runs in evaluation mode."""
    return -id(module) if phase == Phase.FORWARD and not module.training else id(module)


def _forward_phase(module: Any) -> Phase:
    if in_backward():
        return Phase.RECOMPUTE
    if not torch.is_grad_enabled():
        return Phase.EVAL
    return Phase.LOSS if isinstance(module, torch.nn.modules.loss._Loss) else Phase.FORWARD
