"""Where a program says ``cuda``, torch's C++ is given our own device: it would refuse the other.

``vramscope predict --as-cuda`` runs a program that never asks for the card as if it did: tensors that it
makes without a device lie on the card, and so do arrays of NumPy that become tensors and the batches of data
loaders. What it puts on ``cpu`` itself stays there.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only
from torch.utils.data import dataloader, get_worker_info

from vramscope.prediction.dry.doubts import Certainty, Doubt, Doubts
from vramscope.prediction.dry.mode import DryMode
from vramscope.prediction.dry.shim.own_device import is_own
from vramscope.prediction.dry.shim.patches import Patches
from vramscope.prediction.dry.shim.tensor_values import READING, item
from vramscope.prediction.dry.values import known
from vramscope.prediction.dry.values.unknown import assume, is_unknown, plain, plain_within

_WHY = "what it makes without a device lies on the card, with the batches of its data loaders"


class AsCuda:
    """Decides what lies on the card although nobody says so."""

    def __init__(self, own: torch.device) -> None:
        self._own = own
        self._is_loading = False

    def begin(self, patches: Patches, doubts: Doubts) -> None:
        """Begin until the patches are undone."""
        doubts.put(Doubt(Certainty.ESTIMATE, "--as-cuda", _WHY, where=""))
        kind = dataloader._BaseDataLoaderIter
        patches.set(kind, "__next__", self._moving(kind.__next__))
        patches.set(torch, "from_numpy", self._moving(torch.from_numpy))

    def is_meant(self, func: Any) -> bool:
        """Whether a function that is called now makes a tensor of the card: samplers work on the host."""
        asks = sys._getframe(2).f_globals.get("__name__", "")
        is_of_host = self._is_loading or get_worker_info() is not None or asks.startswith("torch.utils.data")
        return not is_of_host and func in _device_constructors()

    def _moving(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def moved(*values: Any) -> Any:
            was_loading, self._is_loading = self._is_loading, True
            try:
                found = run(*values)
            finally:
                self._is_loading = was_loading
            if was_loading or get_worker_info() is not None:
                return found
            return tree_map_only(torch.Tensor, lambda one: one.to(self._own), found)

        return moved


def _is_read(name: str, tensor: Any) -> bool:
    """Return whether what reads a tensor is answered here; a model on the host answers all but its text."""
    is_fake_text = name == "__format__" and type(tensor) is FakeTensor
    return is_fake_text or is_own(tensor) or known.is_tainted(tensor)


class OwnDevices(TorchFunctionMode):
    """Rewrites the devices among the arguments of every function of torch that the program calls."""

    def __init__(self, own: torch.device, mode: DryMode, as_cuda: AsCuda | None) -> None:
        super().__init__()
        self._as_cuda = as_cuda
        self._mode = mode
        self._own = own

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READING and _is_read(name, args[0]):
            return READING[name](*args, **(kwargs or {}))
        if name in _FINITE:
            return _finite(func(*args, **(kwargs or {})), _FINITE[name])
        if func in _FROM_DATA:
            args, kwargs = _with_numbers(func, args, kwargs or {})
        if kwargs and kwargs.get("device") is not None:
            kwargs = kwargs | {"device": self._of(kwargs["device"])}
        elif self._as_cuda is not None and self._as_cuda.is_meant(func):
            kwargs = (kwargs or {}) | {"device": self._own}
        if func in _MOVES:
            func, args, kwargs = self._move(func, args, kwargs)
        if not (is_unknown(args) or (kwargs and is_unknown(tuple(kwargs.values())))):
            return func(*args, **kwargs) if kwargs else func(*args)
        return self._of_unknown(func, name, args, kwargs or {})

    def _move(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the call that moves a tensor to our own device where it would go to the card."""
        if isinstance(args[0], UninitializedTensorMixin):
            # A lazy module's parameter has no size yet: it is on the card as soon as it has one.
            device = (kwargs or {}).get("device", args[1] if len(args) > 1 else "cuda")
            if func is torch.Tensor.cuda or self._of(device) == self._own:
                args[0].lies_later_on = self._own
            return (lambda tensor: tensor), args[:1], None
        if func is torch.Tensor.cuda:
            # ``cuda(device, non_blocking, memory_format)`` without its device.
            names = ("device", "non_blocking", "memory_format")
            given = dict(zip(names, args[1:], strict=False)) | (kwargs or {})
            given.pop("device", None)
            return torch.Tensor.to, (args[0], self._own), given
        if func is torch.Tensor.to and len(args) > 1:
            return func, (args[0], self._of(args[1]), *args[2:]), kwargs
        if func is torch.Tensor.type and len(args) > 1 and ".cuda." in str(args[1]):
            kind = getattr(torch, str(args[1]).rpartition(".")[2], None)
            return torch.Tensor.to, (args[0], self._own, getattr(kind, "dtype", None)), None
        return func, args, kwargs

    def _of_unknown(self, func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function with an unknown number: as a size it says so itself, else it needs a plain one."""
        if name in _SIZED_BY_NUMBERS:
            assume(f"torch.{name}", f"{name}{plain_within(args)}", sys._getframe(2))
        if func in _FROM_DATA:
            args, kwargs = plain_within(args), {key: plain_within(one) for key, one in kwargs.items()}
        try:
            out = func(*args, **kwargs)
        except (TypeError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "infer dtype" not in str(error):
                raise
            out = func(*plain_within(args), **{key: plain_within(one) for key, one in kwargs.items()})
        self._mode.knows_of_unknown()
        for one in (out, args[0] if name.endswith("_") else None):
            known.forget(one)
            known.taint(one)
        return out

    def _of(self, device: Any) -> Any:
        if isinstance(device, torch.device):
            return self._own if device.type == "cuda" else device
        if isinstance(device, str):
            return self._own if device.startswith("cuda") else device
        # A bare number is the number of a card.
        return self._own if type(device) is int else device


_MOVES = frozenset({torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.type})
_FROM_DATA = {torch.tensor: True, torch.as_tensor: True, torch.asarray: True,
              torch.Tensor.new_tensor: False, torch.Tensor.new: False}  # fmt: skip
"""What makes a tensor of nested lists, and whether its type follows from what lies in them."""
_SIZED_BY_NUMBERS = frozenset({"arange", "range"})
# Whether all of it is so in a training that goes well.
_FINITE = {"isnan": False, "isinf": False, "isposinf": False, "isneginf": False, "isfinite": True}


def _with_numbers(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the arguments with numbers for tensors within lists, which torch's C++ reads past every mode."""
    leaves = list(_leaves(one for one in (*args, *kwargs.values()) if type(one) in (list, tuple)))
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return args, kwargs
    if _FROM_DATA[func] and kwargs.get("dtype") is None:
        kinds = [(one if isinstance(one, torch.Tensor) else torch.tensor(plain(one))).dtype for one in leaves]
        kwargs = kwargs | {"dtype": functools.reduce(torch.promote_types, kinds)}
    return tuple(map(_numbers, args)), {name: _numbers(one) for name, one in kwargs.items()}


def _leaves(value: Any) -> Iterator[Any]:
    for one in value:
        yield from _leaves(one) if type(one) in (list, tuple) else (one,)


def _numbers(value: Any) -> Any:
    if type(value) not in (list, tuple):
        return value
    return [item(one) if isinstance(one, torch.Tensor) else _numbers(one) for one in value]


def _finite(out: Any, answer: bool) -> Any:
    if is_own(out) and known.value_of(out) is None:
        known.know(out, torch.full((), answer).expand(out.shape))
    return out
