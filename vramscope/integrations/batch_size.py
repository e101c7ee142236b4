"""Finds the largest batch that fits by trying; ``batch_fit`` answers it from a recording instead."""

import copy
import gc
import random
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from vramscope.errors import UsageError

_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "can't allocate memory",
)
"""Texts of errors for a lack of memory; not all libraries raise OutOfMemoryError."""


class Stateful(Protocol):
    """Any object with a state dict: a module, an optimizer, a scaler, a scheduler."""

    def state_dict(self) -> Any:
        """Return the state, as torch's objects do."""

    def load_state_dict(self, state: Any) -> Any:
        """Load a state that ``state_dict`` returned."""


def find_batch_size(
    step: Callable[[int], object], start: int = 1, *, limit: int = 1 << 20, restore: Iterable[Stateful] = ()
) -> int:
    """Find the largest batch for which *step* runs twice in a row in the available memory.

    The size starts at *start*, is doubled until *step* fails or *limit* is reached, and is then bisected.
    Each size is tried twice, since an optimizer has its state only in the second step.

    Afterwards every module that *step* calls and every optimizer that it steps is as before the first try:
    weights, buffers, gradients, optimizer state; so are the random states of Python, NumPy and torch, on CPU
    and GPU. These objects are found while *step* runs, and copied to host memory before it changes them.
    Whatever *step* stores elsewhere (a list of losses, the position in a data set) is not restored.

    torch itself logs a line to stderr for each allocation that the device refuses. Without a GPU the host's
    memory is filled, and Linux ends a process rather than refuse it memory: give a *limit* there.

    Parameters
    ----------
    step
        ``step(batch)`` makes a batch of that size and trains on it: forward, backward, optimizer.
    start
        The first size to try, at least 1.
    limit
        The largest size to try.
    restore
        Other objects that *step* changes: a gradient scaler, a scheduler, a second copy of the weights.

    Returns
    -------
    int
        The largest size that fits; 0 if none does.

    Raises
    ------
    UsageError
        If *start* is below 1 or above *limit*.
    Exception
        Any error of *step* other than a lack of memory.
    """
    if not 1 <= start <= limit:
        raise UsageError(f"start {start}: at least 1 and at most the limit, {limit}")
    saved = _SavedState(tuple(restore))
    hooks = _hooks(saved)
    try:
        fits, fails = _doubled(step, saved, start, limit)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if _is_fitting(step, saved, middle) else (fits, middle)
        return fits
    finally:
        for hook in hooks:
            hook.remove()
        saved.restore_all()


def _hooks(saved: "_SavedState") -> list[Any]:
    """Hooks that save each module before it runs and each optimizer before it steps."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    return [
        register_module_forward_pre_hook(lambda module, _: saved.module(module)),
        register_optimizer_step_pre_hook(lambda optimizer, *_: saved.optimizer(optimizer)),
    ]


def _doubled(step: Callable[[int], object], saved: "_SavedState", start: int, limit: int) -> tuple[int, int]:
    """Return a size that fits (0 for none), and a larger one that does not."""
    fits, size = 0, start
    while _is_fitting(step, saved, size):
        fits = size
        if fits == limit:
            return limit, limit + 1
        size = min(2 * size, limit)
    return fits, size


def _is_fitting(step: Callable[[int], object], saved: "_SavedState", size: int) -> bool:
    try:
        for _ in range(2):
            step(size)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        _release_frames(error)
        fits = False
    else:
        fits = True
    saved.restore_all()
    gc.collect()
    return fits


def _release_frames(error: BaseException) -> None:
    """Clear the frames of a failed step, whose traceback keeps its tensors alive.

    The same goes for the exceptions that were being handled when it was raised.
    """
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        traceback.clear_frames(following.__traceback__)
        following = following.__cause__ or following.__context__


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    known = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    return isinstance(error, known | MemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY_TEXTS)


class _SavedState:
    def __init__(self, objects: tuple[Stateful, ...]) -> None:
        import torch

        self._objects: dict[int, Any] = {}
        """Every saved object by id, including the parts of modules and the parameters of optimizers."""
        self._states: list[tuple[Stateful, Any]] = []
        self._gradients: list[tuple[Any, Any]] = []
        self._values: list[tuple[Any, Any]] = []
        """Tensors that no state dict contains: non-persistent buffers, parameters of no module."""
        for each in objects:
            if isinstance(each, torch.nn.Module):
                self.module(each)
            elif isinstance(each, torch.optim.Optimizer):
                self.optimizer(each)
            else:
                self._states.append((each, _on_cpu(each.state_dict())))
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the program's
        self._random = torch.get_rng_state()
        self._random_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def module(self, module: Any) -> None:
        """Save a module before it runs, unless it is part of a saved one."""
        if id(module) in self._objects:
            return
        parts = list(module.modules())
        self._objects |= {id(each): each for each in (*parts, *module.parameters())}
        self._states.append((module, _on_cpu(module.state_dict())))
        self._gradients += [(p, None if p.grad is None else _on_cpu(p.grad)) for p in module.parameters()]
        self._values += [(buffer, _on_cpu(buffer)) for buffer in module.buffers()]

    def optimizer(self, optimizer: Any) -> None:
        """Save an optimizer and its parameters before it steps."""
        if id(optimizer) in self._objects:
            return
        self._objects[id(optimizer)] = optimizer
        self._states.append((optimizer, _on_cpu(optimizer.state_dict())))
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if id(parameter) not in self._objects:
                self._objects[id(parameter)] = parameter
                self._values.append((parameter, _on_cpu(parameter)))
                # Its current gradient was made by this very step.
                self._gradients.append((parameter, None))

    def restore_all(self) -> None:
        import torch

        for each, state in self._states:
            # A copy: an object may keep the state that it loads, and change it in the next step.
            each.load_state_dict(copy.deepcopy(state))
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        for tensor, value in self._values:
            tensor.data.copy_(value)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        torch.set_rng_state(self._random)
        if self._random_cuda is not None:
            torch.cuda.set_rng_state_all(self._random_cuda)


def _on_cpu(state: Any) -> Any:
    import torch

    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        copied = copy.copy(state)  # keeps an OrderedDict with its _metadata
        copied.update((key, _on_cpu(value)) for key, value in state.items())
        return copied
    if isinstance(state, list | tuple):
        return type(state)([_on_cpu(value) for value in state])
    return copy.deepcopy(state)
