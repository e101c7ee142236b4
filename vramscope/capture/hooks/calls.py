"""Hooks on torch's own calls that are phases: backward, checkpoints, optimizers, data loaders."""

import sys
from _thread import get_ident
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import FrameType
from typing import Any

import torch
import torch.utils.data
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import checkpoint as _checkpoint

from vramscope.capture.hooks.gradients import backwards
from vramscope.capture.hooks.open_phases import (
    CHECKPOINT,
    FORWARDS,
    Listener,
    begin,
    during,
    end,
    guarded,
    in_backward,
    replace,
    state,
    thread,
)
from vramscope.model.marks import BackwardKeeps, Phase

# torch ≥ 2.4 runs every backward through this function, bound in two modules; torch 2.1 does not have it.
_ENGINE = "_engine_run_backward"


def hook_calls() -> None:
    """Hook backward, checkpoints, optimizers and data loaders until ``uninstall``."""
    _hook_backward()
    _hook_checkpoints()
    _hook_optimizers()
    # torch's own annotation of data loaders exists only on CUDA since 2.5.
    replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", partial(_watched, Phase.DATA))


def _hook_backward() -> None:
    if hasattr(torch.autograd.graph, _ENGINE):
        places: list[tuple[Any, str]] = [(torch.autograd.graph, _ENGINE), (torch.autograd, _ENGINE)]
    else:
        places = [(torch.autograd, "backward"), (torch.autograd, "grad")]
    for home, name in places:
        replace(home, name, _watched_backward)


def _watched_backward(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if state.listener is None or is_compiling():
            return _run_registered(run, args, kwargs)
        if in_backward():
            # A reentrant checkpoint has repeated its forward and now runs backward through it.
            guarded(end, Phase.RECOMPUTE, 0, CHECKPOINT)
            return _run_registered(run, args, kwargs)
        keeps = _graph_kept(run, args, kwargs)
        guarded(_begin_backward, keeps, sys._getframe())
        # Module calls inside backward are counted from zero: they are recomputations.
        calls, root, modules = thread.calls, thread.root, thread.modules
        thread.calls, thread.root, thread.modules = 0, 1, []
        try:
            return _run_registered(run, args, kwargs)
        finally:
            thread.calls, thread.root, thread.modules = calls, root, modules
            guarded(_end_backward, keeps)

    return run_backward


def _run_registered(run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run backward with this thread registered, so that no other thread reads gradients meanwhile."""
    own = get_ident()
    if own in backwards:
        return run(*args, **kwargs)
    try:
        backwards[own] = 1
        return run(*args, **kwargs)
    finally:
        backwards.pop(own, None)


def _graph_kept(run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The mark's value: whether this backward retains its graph, or creates one of the gradients."""
    # autograd.grad, wrapped in a torch without that engine function, takes the inputs before these two.
    at = 3 if run.__name__ == "grad" else 2
    retains, creates = (
        bool(kwargs.get(name, args[i] if len(args) > i else False))
        for i, name in ((at, "retain_graph"), (at + 1, "create_graph"))
    )
    # If retain_graph is not given, creating a graph retains the old one.
    keeps = BackwardKeeps.A_NEW_GRAPH if creates else BackwardKeeps.ITS_GRAPH if retains else 0
    # torch.autograd.grad asks the engine for the gradients, which are not accumulated.
    returns = run.__name__ == "grad" or not kwargs.get("accumulate_grad", True)
    return keeps + BackwardKeeps.RETURNS if returns else keeps


def _begin_backward(listener: Listener, keeps: int, owner: FrameType) -> None:
    begin(listener, Phase.BACKWARD, keeps, "", owner)
    if not any(opened.phase in FORWARDS for opened in thread.open):
        # A Ctrl-C interrupted a forward before its phase had begun.
        thread.calls, thread.root = 0, 1


def _end_backward(listener: Listener, keeps: int) -> None:
    end(listener, Phase.BACKWARD, keeps, "")
    listener.backward_ends()


def _hook_checkpoints() -> None:
    """Hook torch.utils.checkpoint, which repeats any function inside backward, not only modules."""
    if hasattr(_checkpoint, "_recomputation_hook"):
        replace(_checkpoint, "_recomputation_hook", _watched_recomputation)
    replace(_checkpoint.CheckpointFunction, "backward", _watched_reentrant)


def _watched_recomputation(original: Any) -> Any:
    class Recomputation(original):
        """The context that torch enters around the repeated run."""

        def __enter__(self) -> Any:
            guarded(_begin_recompute)
            return super().__enter__()

        def __exit__(self, *error: object) -> Any:
            try:
                return super().__exit__(*error)
            finally:
                guarded(end, Phase.RECOMPUTE, 0, CHECKPOINT)

    return Recomputation


def _watched_reentrant(run: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the repeated run, which ends at the backward through it that ``_watched_backward`` sees."""

    @wraps(run)
    def backward(*args: Any) -> Any:
        guarded(_begin_recompute)
        try:
            return run(*args)
        finally:
            guarded(end, Phase.RECOMPUTE, 0, CHECKPOINT)

    return backward


def _begin_recompute(listener: Listener) -> None:
    if not is_compiling():
        begin(listener, Phase.RECOMPUTE, 0, CHECKPOINT, None)


def _hook_optimizers() -> None:
    handles = [register_optimizer_step_pre_hook(_before_step), register_optimizer_step_post_hook(_after_step)]
    state.undo_all.extend(handle.remove for handle in handles)
    for home in (torch.optim.Optimizer, torch.nn.Module):
        replace(home, "zero_grad", partial(_watched, Phase.ZERO_GRAD))
    # A step that the scaler skips calls no optimizer, so it is seen only here.
    replace(_GRAD_SCALER, "step", _watched_scaler)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
    if not is_compiling():
        guarded(_begin_step, optimizer, sys._getframe(1))


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
    if not is_compiling():
        guarded(_end_step, optimizer)


def _begin_step(listener: Listener, optimizer: Any, owner: FrameType) -> None:
    begin(listener, Phase.OPTIMIZER, id(optimizer), type(optimizer).__name__, owner)
    listener.step_begins(optimizer)


def _end_step(listener: Listener, optimizer: Any) -> None:
    listener.step_ends(optimizer)
    end(listener, Phase.OPTIMIZER, id(optimizer), type(optimizer).__name__)


def _watched(phase: Phase, run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
        return during(phase, owner, sys._getframe(), lambda: run(owner, *args, **kwargs))

    return call


def _watched_scaler(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return during(
            Phase.OPTIMIZER, optimizer, sys._getframe(), lambda: run(scaler, optimizer, *args, **kwargs)
        )

    return step


# In torch.amp since 2.3, in torch.cuda.amp before.
_GRAD_SCALER: Any = next(kind for kind in torch.cuda.amp.GradScaler.__mro__ if "step" in kind.__dict__)
