"""What is the program doing? Marks out of torch's own hooks, with no change to the loop.

The hooks are functions of this module and stay the same objects for the life of the process: torch.compile
guards on their identity, and would compile again after every ``with record():`` otherwise. They return at
once while torch.compile traces them.
"""

import gc
import inspect
import sys
import warnings
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.nn.modules import module as _modules

from vramscope.capture._calls import hook_calls
from vramscope.capture._modules import ModuleLog
from vramscope.capture._open_phases import (
    CHECKPOINT,
    FORWARDS,
    Listener,
    begin,
    end,
    forget_thread,
    guarded,
    in_backward,
    is_open,
    module_now,
    state,
    thread,
)
from vramscope.model.marks import MarkKind, Phase

__all__ = ["Listener", "forget_thread", "install", "module_now", "uninstall"]


def install(listener: Listener) -> None:
    """Tell *listener* what happens, until ``uninstall``; its ``modules``, if any, learn which module runs."""
    state.listener = listener
    state.log = getattr(listener, "modules", None)
    _hook_modules()
    hook_calls()
    gc.callbacks.append(_after_gc)
    state.undo_all.append(lambda: gc.callbacks.remove(_after_gc))
    _silence_compile()


def uninstall() -> None:
    """Take every hook out again; harmless when there is none."""
    state.listener = state.log = None
    while state.undo_all:
        state.undo_all.pop()()


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

    state.undo_all.append(undo)


def _before_module(module: Any, args: Any) -> None:  # noqa: ARG001
    if is_compiling():
        return
    thread.calls += 1
    if thread.calls == 1:
        guarded(_begin_forward, module, sys._getframe(1))
    if state.log is not None:
        _enter_module(state.log, thread.modules, thread.calls, module)


def _after_module(module: Any, args: Any, *rest: Any) -> None:
    """*rest*: kwargs and result; without kwargs in old torch, and where forward raised."""
    if is_compiling() or not thread.calls:
        return
    thread.calls -= 1
    if not thread.calls:
        guarded(_end_forward, module, (args, *rest[:-1]), rest[-1])
    if state.log is not None:
        _leave_module(state.log, thread.modules, thread.calls)


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
    if phase == Phase.RECOMPUTE and is_open(Phase.RECOMPUTE, CHECKPOINT):
        return
    calls = thread.calls
    if state.log is not None and phase not in (Phase.RECOMPUTE, Phase.LOSS):
        state.log.learn(module)
    begin(phase, 0, type(module).__name__, owner)
    thread.calls = calls
    # A part of a model that is run again has its names, inputs and outputs from the first run.
    if phase != Phase.RECOMPUTE:
        listener.forward_begins(module)


def _end_forward(listener: Listener, module: Any, inputs: Any, result: Any) -> None:
    name = type(module).__name__
    for opened in reversed(thread.open):
        if opened.name == name and opened.phase in FORWARDS:
            if opened.phase != Phase.RECOMPUTE:
                listener.forward_ends(inputs, result)
            end(opened.phase, 0, name)
            return


def _forward_phase(module: Any) -> Phase:
    if in_backward():
        return Phase.RECOMPUTE
    if not torch.is_grad_enabled():
        return Phase.EVAL
    return Phase.LOSS if isinstance(module, torch.nn.modules.loss._Loss) else Phase.FORWARD


# -------------------------------------------------------------------------------------- other hooks


def _after_gc(stage: str, info: dict[str, int]) -> None:
    # Only whole collections: the young generations are collected hundreds of times a second.
    if stage == "stop" and info.get("generation") == 2:
        guarded(_mark_gc)


def _mark_gc(listener: Listener) -> None:
    listener.mark(MarkKind.GC, value=2)


def _silence_compile() -> None:
    """torch warns that global hooks fire once more for a compiled module; with ours nobody need care."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    entry = warnings.filters[0]

    def undo() -> None:
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]

    state.undo_all.append(undo)
