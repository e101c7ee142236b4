"""The values of small tensors on the device, wherever they follow from what the host gave.

Tokens, lengths, masks and counters are computed for real beside the fake tensor, so that code that depends
on them runs as on the card. What follows from parameters or random numbers of the device is unknown. Loss
scaling and checks for NaN are answered as in a training that goes well.
"""

import copy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten
_CPU = torch.device("cpu")
# A batch of tokens is known, a layer's output is not worth it: 50 µs each.
_LARGEST = 1 << 16
# One value that a whole tensor shares, as "nothing is NaN": 10 ms to look through.
_LARGEST_UNIFORM = 1 << 26
_FILLED = {
    "aten::zeros": 0, "aten::zeros_like": 0, "aten::new_zeros": 0, "aten::zero_": 0,
    "aten::ones": 1, "aten::ones_like": 1, "aten::new_ones": 1,
}  # fmt: skip
_MADE = frozenset(
    {"aten::arange", "aten::full", "aten::scalar_tensor", "aten::eye", "aten::linspace",
     "aten::tril_indices", "aten::triu_indices"}
)  # fmt: skip
_UNFILLED = frozenset(
    {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided"}
)
_OVERWRITTEN = frozenset({"aten::copy_", "aten::fill_", "aten::zero_"})
_FILLING = _FILLED.keys() | {"aten::full_like", "aten::new_full", "aten::fill_", "aten::copy_"}
# The value of one operand that decides, whatever the others are: generate() ends by its length so.
_DECIDES = {"aten::bitwise_or": 1, "aten::logical_or": 1, "aten::bitwise_and": 0, "aten::logical_and": 0}
# It looks for infinities, of which a training that goes well has none.
_FINITE = "aten::_amp_foreach_non_finite_check_and_unscale_"
_ATTRIBUTE = "_vramscope_known"
_NOT_YET = 0


class _Cell:
    """What tensors on one storage have in common."""

    __slots__ = ("is_valid",)

    def __init__(self) -> None:
        self.is_valid = True


class Known:
    """A real tensor of the host with the values of one on the device."""

    __slots__ = ("cell", "real", "storage")

    def __init__(self, real: torch.Tensor, cell: _Cell, storage: int) -> None:
        self.real = real
        self.cell = cell
        self.storage = storage

    def __deepcopy__(self, memo: dict[int, Any]) -> "Known":
        """A copied tensor has the same values, on a storage that the copy does not know yet."""
        # Under the fake mode the copy of a real tensor made torch import its compiler (2 s) to convert it.
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return Known(copy.deepcopy(self.real, memo), copy.deepcopy(self.cell, memo), _NOT_YET)


def zero(tensor: Any) -> Any:
    """The zero of Python that a number of this tensor is taken for."""
    return False if tensor.dtype == torch.bool else 0.0 if tensor.is_floating_point() else 0


def value_of(tensor: Any) -> torch.Tensor | None:
    """The real tensor with the values of this one; None where they are unknown."""
    if type(tensor) is not FakeTensor:
        return tensor if type(tensor) is torch.Tensor and not is_tainted(tensor) else None
    known = tensor.__dict__.get(_ATTRIBUTE)
    if known is None or not known.cell.is_valid:
        return None
    if known.storage == _NOT_YET:
        known.storage = tensor.untyped_storage()._cdata
    if known.storage != tensor.untyped_storage()._cdata:
        return None
    return known.real


def know(tensor: Any, real: torch.Tensor, cell: _Cell | None = None) -> None:
    """Remember the values of a tensor on the device."""
    if real.shape == tensor.shape and real.dtype == tensor.dtype and tensor.layout is torch.strided:
        known = Known(real, cell or _Cell(), tensor.untyped_storage()._cdata)
        tensor.__dict__[_ATTRIBUTE] = known


def forget(tensor: Any) -> None:
    """Declare the values of a tensor, and of all others on its storage, unknown."""
    known = tensor.__dict__.get(_ATTRIBUTE) if type(tensor) is FakeTensor else None
    if known is not None:
        known.cell.is_valid = False


def count(mask: torch.Tensor, shape: torch.Size) -> int:
    """How many places of a mask are true, once it has that shape."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return int(mask.expand(shape).count_nonzero())


_TAINT = "_vramscope_unknown"


def taint(tensor: Any) -> None:
    """Declare the values of a tensor of the host unknown; it holds zeros or what was assumed."""
    if type(tensor) is torch.Tensor:
        setattr(tensor, _TAINT, True)


def is_tainted(tensor: Any) -> bool:
    """Whether a tensor of the host has values that come from the device."""
    return type(tensor) is torch.Tensor and _TAINT in tensor.__dict__


def spread(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    """Taint what an operator of the host made of tainted tensors; whether it met one."""
    given = tensors((*args, *kwargs.values()))
    if not any(map(is_tainted, given)):
        return False
    for one in (*tensors((out,)), *written(func, args)):
        taint(one)
    return True


def follow(func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
    """Work out the values of what an operator made or changed, or forget them."""
    name = func._schema.name
    given = tensors((*args, *kwargs.values()))
    if given and name not in _FILLING and not _may_be_known(given):
        return
    if not given:
        if type(out) is FakeTensor and out.numel() <= _LARGEST and name not in _UNFILLED:
            _made(name, func, args, kwargs, out)
        return
    changed = written(func, args)
    if name == _FINITE or _is_settled(name, args, given, out):
        return
    values = [value_of(one) for one in given]
    is_small = func.is_view or all(one.numel() <= _LARGEST for one in tensors((out,)))
    if not is_small or any(map(_is_unusable, values)) or torch.Tag.nondeterministic_seeded in func.tags:
        for one in changed:
            forget(one)
        return
    try:
        real = _computed(func, args, kwargs)
    except (RuntimeError, TypeError, IndexError, ValueError):
        # A kernel that the host lacks: "unknown" is always true.
        for one in changed:
            forget(one)
        return
    _learn(func, given, changed, out, real)


def _may_be_known(given: list[Any]) -> bool:
    for tensor in given:  # noqa: SIM110 -- any() costs more than the loop
        if type(tensor) is not FakeTensor or _ATTRIBUTE in tensor.__dict__:
            return True
    return False


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operator returns for known values; None where one of them is unknown or too large."""
    given = tensors((*args, *kwargs.values()))
    values = [value_of(one) for one in given]
    if not given or any(value is None or value.numel() > _LARGEST for value in values):
        return None
    return _computed(func, args, kwargs)


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return func(*map(_real, args), **{name: _real(one) for name, one in kwargs.items()})


def _real(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value_of(value)
    if type(value) in (list, tuple):
        return type(value)(map(_real, value))
    return _CPU if isinstance(value, torch.device) else value


def _is_unusable(value: torch.Tensor | None) -> bool:
    return (
        value is None or value.untyped_storage().nbytes() > 8 * _LARGEST or value.numel() > _LARGEST_UNIFORM
    )


def _learn(func: Any, given: list[Any], changed: list[Any], out: Any, real: Any) -> None:
    cell = None
    if func.is_view:
        known = given[0].__dict__.get(_ATTRIBUTE) if type(given[0]) is FakeTensor else None
        cell = None if known is None else known.cell
    kept = set(map(id, changed))
    for one, value in zip(tensors((out,)), tensors((real,)), strict=False):
        if type(one) is FakeTensor and id(one) not in kept:
            know(one, value, cell)


def _made(name: str, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
    if name in _FILLED:
        know(out, torch.full(out.shape, _FILLED[name], dtype=out.dtype))
    elif name in _MADE:
        know(out, func(*args, **(kwargs | {"device": _CPU})))


def _is_filled(name: str, args: Any, out: Any) -> bool:
    """Whether a tensor has known values whatever it was made from; they are remembered."""
    real = None
    if name in _FILLED:
        real = torch.full(out.shape, _FILLED[name], dtype=out.dtype)
    elif name in ("aten::full_like", "aten::new_full", "aten::fill_") and type(args[-1]) in (
        int,
        float,
        bool,
    ):
        real = torch.full(out.shape, args[-1], dtype=out.dtype)
    elif name == "aten::copy_" and out.untyped_storage().nbytes() == out.numel() * out.element_size():
        source = value_of(args[1])
        real = None if source is None else source.to(out.dtype).expand(out.shape).clone()
    if real is None:
        return False
    if name in _OVERWRITTEN:
        known = value_of(out)
        if known is not None:
            known.copy_(real)
            return True
        if out.untyped_storage().nbytes() != out.numel() * out.element_size():
            return False
        forget(out)
    know(out, real)
    return True


def _is_settled(name: str, args: Any, given: list[Any], out: Any) -> bool:
    """Whether a result is known although not all operands are; it is remembered."""
    if type(out) is not FakeTensor or out.numel() > _LARGEST:
        return False
    return _is_filled(name, args, out) or _is_decided(name.rstrip("_"), given, out)


def _is_decided(name: str, given: list[Any], out: Any) -> bool:
    """Whether one operand alone says what the result is; it is remembered."""
    decides = _DECIDES.get(name)
    if decides is None or (decides and out.dtype is not torch.bool):
        return False
    for one in given:
        value = value_of(one)
        if value is not None and value.shape == out.shape and bool((value == decides).all()):
            forget(out)
            know(out, torch.full(out.shape, decides, dtype=out.dtype))
            return True
    return False


def written(func: Any, args: Any) -> list[Any]:
    """The tensors among the arguments that an operator changes."""
    found: list[Any] = []
    for value, argument in zip(args, func._schema.arguments, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += tensors((value,))
    return found


def tensors(values: Any) -> list[Any]:
    """Every tensor among values and lists of them."""
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            found.append(value)
        elif kind is list or kind is tuple:
            found += tensors(value)
        elif isinstance(value, torch.Tensor):
            found.append(value)
    return found
