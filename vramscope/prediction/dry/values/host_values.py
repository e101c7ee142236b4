"""Values that operators bring from the device to the host, where nobody has computed them."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from vramscope.prediction.dry.operators import RunSoFar
from vramscope.prediction.dry.shim.own_device import is_own
from vramscope.prediction.dry.values import known
from vramscope.prediction.dry.values.unknown import assume, count_as, decide, of_initialization

_LARGEST_ANSWER = 1 << 20

#  The first change what they are given and have no formula for their shapes; nested tensors are not run dry.
_SETTLED = {"aten::_fused_sgd_": None, "aten::_fused_adagrad_": None,
            "aten::_nested_tensor_from_mask_left_aligned": False}  # fmt: skip
_COMPARING = frozenset({"aten::is_nonzero", "aten::equal", "aten::allclose"})
_ANSWERED = _COMPARING | _SETTLED.keys() | {"aten::_local_scalar_dense", "aten::_to_copy", "aten::copy_"}
"""Operators that may be answered without torch."""


class HostValues:
    """What operators return to the host in one dry run: known values, or zeros that count as unknown."""

    def __init__(self, so_far: RunSoFar, gathers: Callable[[int], None]) -> None:
        self._so_far = so_far
        self._gathers = gathers
        """Receives the bytes that a copy to the host takes on the device."""
        self.has_unknown = False
        """Some tensor of the host has values that come from the device."""

    def answer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return what the operator returns, in a tuple; None where torch has to run it."""
        name = func._schema.name
        if name not in _ANSWERED:
            return None
        if name in _SETTLED:
            self._so_far.operators[name] = self._so_far.operators.get(name, 0) + 1
            return (_SETTLED[name],)
        if name == "aten::_local_scalar_dense":
            return (self._value(args[0]),)
        if name == "aten::_to_copy" and kwargs.get("device") is not None:
            source, target = args[0], kwargs["device"]
            if target.type == "cpu" and is_own(source) and source.numel() <= _LARGEST_ANSWER:
                self._copied_out(source)
                return (self.host_copy(source, kwargs.get("dtype") or source.dtype),)
        if name == "aten::copy_" and type(args[0]) is not FakeTensor:
            self._copied_out(args[1])
            args[0].copy_(self.host_copy(args[1], args[0].dtype).expand(args[1].shape))
            if known.value_of(args[1]) is None:
                known.taint(args[0])
            return (args[0],)
        return self._compared(func, args, kwargs) if name in _COMPARING else None

    def _compared(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[bool]:
        found = known.computed(func, args, kwargs)
        if found is not None:
            return (found,)
        return (decide(func._schema.name.replace("::", "."), False, sys._getframe(4)),)

    def host_copy(self, tensor: Any, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of the host with the values of one on the device, or with zeros that count as unknown."""
        value = known.value_of(tensor)
        if value is not None:
            return value.to(dtype, copy=True)
        zeros = torch.zeros(tensor.shape, dtype=dtype)
        known.taint(zeros)
        self.has_unknown = True
        return zeros

    def _value(self, tensor: Any) -> Any:
        """A number that torch's own code asks for; 0 where it is unknown, which is an assumption."""
        value = known.value_of(tensor)
        if value is not None:
            return value.item()
        zero = known.zero(tensor)
        frame = sys._getframe(4)
        if not is_own(tensor) and of_initialization(frame) is not None:
            return zero
        if tensor.is_complex() or not (tensor.is_floating_point() or tensor.dtype == torch.bool):
            assume("a value", zero, frame)
            return zero
        if tensor.dtype == torch.bool:
            return decide("a value", False, frame)
        return count_as("a value", 0.0, frame)

    def _copied_out(self, tensor: Any) -> None:
        """A copy to the host of what is not contiguous is gathered on the device first."""
        if is_own(tensor) and not tensor.is_contiguous():
            self._gathers(tensor.numel() * tensor.element_size())
