"""Which operators does autocast run in which type on CUDA, and done on our own device.

The lists differ from version to version, so they are read from the C++ header that torch brings along; a
kernel for each operator in them then does what torch's own does on CUDA: cast, remember the casts of
weights until the outermost ``autocast`` is left, and go on without autocast.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vramscope.errors import CaptureError
from vramscope.package_data import words

_KEY = torch._C.DispatchKey.AutocastPrivateUse1
_HEADER = "include/ATen/autocast_mode.h"
_LISTS = words(__file__, "autocast.tsv", "list")
# The one list with signatures in it, of two operators since it exists.
_APPENDED = ("aten::norm.Scalar", "aten::norm.ScalarOpt_dim")


class Policy(NamedTuple):
    """What autocast does to one operator."""

    operator: str
    """``aten::pow.Tensor_Scalar``"""
    kind: str
    """``lower``, ``fp32``, ``fp32_dtype``, ``promote`` or ``norm``"""


@cache
def policies() -> tuple[Policy, ...]:
    """The policy of every operator that autocast changes on CUDA; raises CaptureError without its list."""
    header = Path(torch.__file__).parent / _HEADER
    try:
        text = header.read_text(encoding="utf-8").replace("\\\n", " ")
    except OSError:
        raise CaptureError(f"this torch has no {_HEADER}, which says what autocast does on CUDA") from None
    found = [
        Policy(f"aten::{name}" + (f".{overload}" if overload else ""), kind)
        for macro, kind in _LISTS.items()
        for name, overload in _entries(text, macro)
    ]
    if len(found) < 50:
        raise CaptureError(f"{_HEADER} of torch {torch.__version__} is written in another way than before")
    return (*found, *(Policy(name, "norm") for name in _APPENDED))


def _entries(text: str, macro: str) -> Iterator[tuple[str, str]]:
    found = re.search(rf"#define {macro}\(_\)(.*)", text)
    for entry in re.findall(r"_\(([^()]*)\)", found[1] if found else ""):
        name, _, overload = (part.strip() for part in entry.partition(","))
        yield name, overload


class _Casts:
    """The casts of weights that autocast remembers, by the identity of the weight."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, Any]] = {}

    def clear(self) -> None:
        self._of.clear()

    def cast(self, dtype: torch.dtype, value: Any) -> Any:
        """*value* with the tensors that autocast may change as *dtype*."""
        if isinstance(value, torch.Tensor):
            return self._tensor(dtype, value) if is_eligible(value) and value.dtype != dtype else value
        if type(value) in (list, tuple):
            return type(value)(self.cast(dtype, one) for one in value)
        return value

    def _tensor(self, dtype: torch.dtype, tensor: Any) -> Any:
        is_weight = (
            tensor.requires_grad
            and tensor.is_leaf
            and tensor.dtype == torch.float32
            and dtype == torch.get_autocast_dtype("cuda")
            and tensor._base is None
            and torch.is_autocast_cache_enabled()
        )
        if not is_weight:
            return tensor.to(dtype)
        known = self._of.get(id(tensor))
        if known is None or known[0] is not tensor:
            # Whoever asks first may run without gradients, and the next one with.
            with torch.enable_grad():
                known = self._of[id(tensor)] = (tensor, tensor.to(dtype))
        return known[1]


casts = _Casts()


def is_eligible(value: Any) -> bool:
    """Whether autocast may change this: a tensor on the device, floating, and no double."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_cuda
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def install(library: Any) -> None:
    """A kernel for every operator of the lists, as long as *library* lives."""
    for policy in policies():
        try:
            operator = _overload(policy.operator)
        except (AttributeError, RuntimeError):
            continue  # this version of torch has none
        library.impl(policy.operator, _kernel(operator, _KINDS[policy.kind]), "AutocastPrivateUse1")


def _overload(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


_Kernel = Callable[..., Any]


def _kernel(operator: Any, run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> _Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
            return run(operator, args, kwargs)

    return kernel


def _cast_all(dtype: torch.dtype, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # C++ as it is compiled casts the last argument first.
    named = {name: casts.cast(dtype, one) for name, one in reversed(kwargs.items())}
    return operator(*[casts.cast(dtype, one) for one in reversed(args)][::-1], **named)


def _lower(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _cast_all(torch.get_autocast_dtype("cuda"), operator, args, kwargs)


def _fp32_dtype(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Inputs stay as they are; the result is asked for as float32, unless the program asks for something."""
    if not is_eligible(args[0]):
        return operator(*args, **kwargs)
    names = [argument.name for argument in operator._schema.arguments]
    place = names.index("dtype")
    given = args[place] if place < len(args) else kwargs.get("dtype")
    if given is not None:
        return operator(*args, **kwargs)
    return operator(*args[:place], **(kwargs | {"dtype": torch.float32}))


def _promote(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All inputs in the widest type among them."""
    flat = [
        one for arg in (*args, *kwargs.values()) for one in (arg if type(arg) in (list, tuple) else (arg,))
    ]
    wide = any(is_eligible(one) and one.dtype == torch.float32 for one in flat)
    return _cast_all(torch.float32 if wide else torch.get_autocast_dtype("cuda"), operator, args, kwargs)


def _norm(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not is_eligible(args[0]):
        return operator(*args, **kwargs)
    with_dtype = _overload(
        "norm.ScalarOpt_dtype" if operator._overloadname == "Scalar" else "norm.ScalarOpt_dim_dtype"
    )
    return with_dtype(*args, **(kwargs | {"dtype": torch.float32}))


_KINDS: dict[str, Callable[..., Any]] = {
    "lower": _lower, "fp32": partial(_cast_all, torch.float32), "fp32_dtype": _fp32_dtype,
    "promote": _promote, "norm": _norm,
}  # fmt: skip
