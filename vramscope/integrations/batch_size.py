"""Which batch still fits? Found by trying, for those who prefer that to ``batch_fit``."""

import copy
import gc
import random
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from vramscope.errors import UsageError

_SIGNS = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "can't allocate memory",
)
"""What torch and its libraries say when memory is short; not all of them raise OutOfMemoryError."""


class Stateful(Protocol):
    """A module, an optimizer, a scaler, a scheduler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


def find_batch_size(
    step: Callable[[int], object], start: int = 1, *, limit: int = 1 << 20, restore: Iterable[Stateful] = ()
) -> int:
    """Find the largest batch size for which *step* runs twice in a row, by trying.

    Sizes are doubled from *start* until one fails or *limit* is reached, then halved in between. Each is
    tried twice, since an optimizer has its state only in the second step. ``Recording.batch_fit()`` answers
    from recordings instead, without running anything.

    Afterwards every module that *step* calls and every optimizer that it steps is as before the first try:
    weights, buffers, gradients, optimizer state; so are the random numbers of Python, NumPy and torch, of CPU
    and GPU. They are found while *step* runs, and copied to host memory before it changes them. What *step*
    keeps elsewhere (a list of losses, the position in a data set) stays there.

    torch itself logs a line to stderr for each allocation that the device refuses. Without a GPU it is the
    host's memory that is filled, and Linux ends a process rather than refuse it memory: give a *limit* there.

    Parameters
    ----------
    step
        ``step(size)`` makes a batch of that many samples and trains on it: forward, backward, optimizer.
    start
        The first size that is tried, in samples.
    limit
        The largest size that is tried, in samples.
    restore
        What else *step* changes and has a ``state_dict``: a gradient scaler, a scheduler, a second copy of
        the weights.

    Returns
    -------
    int
        The size, in samples; 0 where not even *start* and no smaller one fits.

    Raises
    ------
    UsageError
        *start* is not between 1 and *limit*.
    Exception
        Whatever *step* raises that is not a lack of memory.

    Examples
    --------
    >>> import torch, vramscope
    >>> model = torch.nn.Linear(8, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> def step(size):
    ...     model(torch.ones(size, 8)).sum().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> vramscope.find_batch_size(step, limit=64)
    64
    """
    if not 1 <= start <= limit:
        raise UsageError(f"start {start}: at least 1 and at most the limit, {limit}")
    kept = _Kept(tuple(restore))
    hooks = _hooks(kept)
    try:
        fits, fails = _doubled(step, kept, start, limit)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if _is_fitting(step, kept, middle) else (fits, middle)
        return fits
    finally:
        for hook in hooks:
            hook.remove()
        kept.put_back()


def _hooks(kept: "_Kept") -> list[Any]:
    """Tell *kept* of each module before it runs and each optimizer before it steps, until removed."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    return [
        register_module_forward_pre_hook(lambda module, _: kept.module(module)),
        register_optimizer_step_pre_hook(lambda optimizer, *_: kept.optimizer(optimizer)),
    ]


def _doubled(step: Callable[[int], object], kept: "_Kept", start: int, limit: int) -> tuple[int, int]:
    """A size that fits (0 for none), and a larger one that does not."""
    fits, size = 0, start
    while _is_fitting(step, kept, size):
        fits = size
        if fits == limit:
            return limit, limit + 1
        size = min(2 * size, limit)
    return fits, size


def _is_fitting(step: Callable[[int], object], kept: "_Kept", size: int) -> bool:
    try:
        for _ in range(2):
            step(size)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        _let_go(error)
        fits = False
    else:
        fits = True
    kept.put_back()
    gc.collect()
    return fits


def _let_go(error: BaseException) -> None:
    """The frames of a failed step hold its tensors for as long as a traceback does; that of what was being
    handled then, too."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        traceback.clear_frames(following.__traceback__)
        following = following.__cause__ or following.__context__


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    known = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    return isinstance(error, known | MemoryError) or any(sign in str(error) for sign in _SIGNS)


class _Kept:
    """States, gradients and random numbers as they were."""

    def __init__(self, objects: tuple[Stateful, ...]) -> None:
        import torch

        self._objects: dict[int, Any] = {}
        """By identity, all that is kept, with the parts of modules and the parameters of optimizers."""
        self._states: list[tuple[Stateful, Any]] = []
        self._gradients: list[tuple[Any, Any]] = []
        self._values: list[tuple[Any, Any]] = []
        """Tensors that no state tells: buffers that a state_dict leaves out, parameters of no module."""
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
        """It runs next; a part of one that is kept is kept already."""
        if id(module) in self._objects:
            return
        parts = list(module.modules())
        self._objects |= {id(each): each for each in (*parts, *module.parameters())}
        self._states.append((module, _on_cpu(module.state_dict())))
        self._gradients += [(p, None if p.grad is None else _on_cpu(p.grad)) for p in module.parameters()]
        self._values += [(buffer, _on_cpu(buffer)) for buffer in module.buffers()]

    def optimizer(self, optimizer: Any) -> None:
        """It steps next."""
        if id(optimizer) in self._objects:
            return
        self._objects[id(optimizer)] = optimizer
        self._states.append((optimizer, _on_cpu(optimizer.state_dict())))
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if id(parameter) not in self._objects:
                self._objects[id(parameter)] = parameter
                self._values.append((parameter, _on_cpu(parameter)))
                # What it is now was made by this very step.
                self._gradients.append((parameter, None))

    def put_back(self) -> None:
        import torch

        for each, state in self._states:
            # A copy: what is loaded may be kept, and changed by the next step.
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
    """A copy that takes nothing of the GPU."""
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
