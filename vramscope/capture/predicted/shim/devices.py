"""Where a program says ``cuda``, torch's C++ is given our own device: it would refuse the other."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vramscope.capture.predicted.doubts import Certainty, Doubts

# Taken apart into many operators before they could be seen.
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


class OwnDevices(TorchFunctionMode):
    """Rewrites the devices among the arguments of every function of torch that the program calls."""

    def __init__(self, own: torch.device, doubts: Doubts) -> None:
        super().__init__()
        self._own = own
        self._doubts = doubts

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _RECURRENT:
            self._doubts.add(Certainty.CANNOT_TELL, func.__name__, "cuDNN keeps buffers of its own for it")
        if kwargs and kwargs.get("device") is not None:
            kwargs = kwargs | {"device": self._of(kwargs["device"])}
        if func is torch.Tensor.cuda:
            return torch.Tensor.to(args[0], self._own, **_without_device(args, kwargs))
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], self._of(args[1]), *args[2:])
        elif func is torch.Tensor.type and len(args) > 1 and ".cuda." in str(args[1]):
            return torch.Tensor.to(args[0], self._own, _TYPES.get(str(args[1]).rpartition(".")[2]))
        return func(*args, **kwargs) if kwargs else func(*args)

    def _of(self, device: Any) -> Any:
        if isinstance(device, torch.device):
            return self._own if device.type == "cuda" else device
        if isinstance(device, str):
            return self._own if device.startswith("cuda") else device
        # A bare number is the number of a card.
        return self._own if type(device) is int else device


def _without_device(args: Any, kwargs: Any) -> dict[str, Any]:
    """``cuda(device, non_blocking, memory_format)`` without its device."""
    names = ("device", "non_blocking", "memory_format")
    given = dict(zip(names, args[1:], strict=False)) | (kwargs or {})
    given.pop("device", None)
    return given


_TYPES = {
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "DoubleTensor": torch.float64,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
}
