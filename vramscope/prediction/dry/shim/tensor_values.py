"""What the program is given when it asks a tensor of the device for its values."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from vramscope.prediction.dry.values import known
from vramscope.prediction.dry.values.unknown import assume, count_as, decide, unknown


def item(tensor: Any) -> Any:
    """A number of Python; an unknown one leaves a trace."""
    value = known.value_of(tensor)
    if value is not None:
        return value.item()
    return unknown(known.zero(tensor)) if tensor.numel() == 1 else torch.zeros(tensor.shape).item()


def _listed(shape: Any, number: Any) -> Any:
    return [_listed(shape[1:], number) for _ in range(shape[0])] if shape else number


def listed(tensor: Any) -> Any:
    """Nested lists of such numbers."""
    value = known.value_of(tensor)
    return _listed(tuple(tensor.shape), unknown(known.zero(tensor))) if value is None else value.tolist()


def _asked(kind: type, what: str, taken: Callable[..., Any]) -> Any:
    def ask(tensor: Any) -> Any:
        value = known.value_of(tensor)
        if value is not None:
            return kind(value)
        # The number of a truth is 0 or 1, so that two runs have all answers.
        is_truth = tensor.dtype == torch.bool and taken is _assumed
        return kind((decide if is_truth else taken)(what, kind(0), sys._getframe(2)))

    return ask


def _assumed(what: str, value: int, frame: FrameType) -> int:
    assume(what, value, frame)
    return value


def array(tensor: Any, *_: Any, **__: Any) -> Any:
    """An array of NumPy, in which unknown values are not followed."""
    value = known.value_of(tensor)
    if value is not None:
        return value.numpy()
    assume("numpy()", "zeros", sys._getframe(2))
    return torch.zeros(tensor.shape, dtype=tensor.dtype).numpy()


def _formatted(tensor: Any, form: str) -> str:
    value = known.value_of(tensor)
    if tensor.dim():
        return object.__format__(tensor, form)
    return format(known.zero(tensor) if value is None else value.item(), form)


READING = {
    "item": item,
    "tolist": listed,
    "numpy": array,
    "__array__": array,
    "__bool__": _asked(bool, "a branch", decide),
    "__float__": _asked(float, "float()", count_as),
    "__int__": _asked(int, "int()", _assumed),
    "__index__": _asked(int, "a size or an index", _assumed),
    "__format__": _formatted,
    "__repr__": lambda each, **_: f"tensor(size={(*each.shape,)}, dtype={each.dtype}, device='cuda:0')",
}
"""By the name of the method of a tensor."""
