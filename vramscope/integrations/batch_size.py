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
    """The largest batch for which *step* runs twice in a row with the memory there is; 0 where none does.

    ``step(batch)`` makes a batch of that size and trains on it: forward, backward, optimizer. It is tried
    from *start*, doubled until it fails or *limit* is reached, then halved in between. Twice, since an
    optimizer has its state only in the second step. Errors other than a lack of memory come through.

    Afterwards everything in *restore* (module, optimizer, scaler, …) is as it was before, with gradients and
    the random numbers of Python, NumPy and torch, of CPU and GPU: an optimizer steps while the size is
    sought. The copies are in host memory. What *step* keeps elsewhere stays there. Without a GPU it is the
    host's memory that is filled, and Linux ends a process rather than refuse it memory: give a *limit* there.
    """
    if not 1 <= start <= limit:
        raise UsageError(f"start {start}: at least 1 and at most the limit, {limit}")
    kept = _Kept(tuple(restore))
    try:
        fits, fails = _doubled(step, kept, start, limit)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if _is_fitting(step, kept, middle) else (fits, middle)
        return fits
    finally:
        kept.put_back()


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

        self._states = [(each, _on_cpu(each.state_dict())) for each in objects]
        modules = [each for each in objects if isinstance(each, torch.nn.Module)]
        parameters = [p for each in modules for p in each.parameters()]
        self._gradients = [(p, None if p.grad is None else _on_cpu(p.grad)) for p in parameters]
        # Those too that a state_dict leaves out.
        self._buffers = [(b, _on_cpu(b)) for each in modules for b in each.buffers()]
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the program's
        self._random = torch.get_rng_state()
        self._random_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def put_back(self) -> None:
        import torch

        for each, state in self._states:
            # A copy: what is loaded may be kept, and changed by the next step.
            each.load_state_dict(copy.deepcopy(state))
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        for buffer, value in self._buffers:
            buffer.data.copy_(value)
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
