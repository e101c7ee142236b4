"""Remembers what an operator returns for given shapes and types, so that torch works it out only once.

A training repeats the same few hundred calls in every layer and step. torch's own cache of fake tensors takes
some 300 µs a call, most of it for the key; a model of 7 B parameters makes 30,000 calls in three steps.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from vramscope.prediction.dry.shim.own_device import device_of

_NO_KEY = object()
# A number is a key only together with its type: 1, 1.0 and True are equal.
_PLAIN = frozenset(
    {int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
)
_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view})
# torch's own parser of arguments takes 2 µs, that of torch.ops 8 µs.
_empty: Any = torch._C._VariableFunctions.empty_strided


class ShapeMemo:
    """The results of one run, by operator and what it was given."""

    def __init__(self, run: Callable[[Any, Any, Any], Any]) -> None:
        self._run = run
        """Calls an operator on fake tensors, the slow way."""
        self._known: dict[Any, Any] = {}
        self._is_regular: dict[int, tuple[bool, Any]] = {}
        """Whether an operator is regular, and the operator, by its identity: its hash is slow."""
        self._attributes: dict[torch.device, dict[str, Any]] = {}
        """The attributes of a new fake tensor, by its device."""

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return what *func* returns for these arguments, as fake tensors."""
        found = self._is_regular.get(id(func))
        if found is None:
            found = self._is_regular[id(func)] = _is_regular(func), func
        if not found[0] or torch.is_inference_mode_enabled():
            return self._run(func, args, kwargs)
        key: list[Any] = [id(func), torch.get_default_dtype()]
        given: list[Any] = []
        if not (_add(key, given, args) and (not kwargs or _add_named(key, given, kwargs))):
            return self._run(func, args, kwargs)
        full = tuple(key)
        known = self._known.get(full, _NO_KEY)
        if known is None:
            return self._run(func, args, kwargs)
        if known is not _NO_KEY:
            # Another fake mode below, as DTensor has one, would remember the storage for good.
            with torch._C._DisableTorchDispatch():
                return known(given)
        out = self._run(func, args, kwargs)
        self._known[full] = self._maker(out, given)
        return out

    def _maker(self, out: Any, given: list[Any]) -> Callable[[list[Any]], Any] | None:
        """A function of the given tensors that makes such a result; None where there is none."""
        if type(out) in (tuple, list):
            makers = [self._maker(one, given) for one in out]
            if any(make is None for make in makers):
                return None
            kind = type(out)
            return lambda tensors: kind([make(tensors) for make in makers])  # type: ignore[misc]
        if out is None or type(out) in (int, float, bool):
            return lambda _: out
        if type(out) is not FakeTensor:
            return None
        same = next((place for place, one in enumerate(given) if one is out), None)
        return self._new(out, given) if same is None else lambda tensors: tensors[same]

    def _new(self, out: Any, given: list[Any]) -> Callable[[list[Any]], Any] | None:
        is_odd = out.layout is not torch.strided or out.is_conj() or out.is_neg()
        if is_odd or out.requires_grad or getattr(out, "constant", None) is not None:
            return None
        storage = out.untyped_storage()
        size, stride, offset, dtype = tuple(out.shape), out.stride(), out.storage_offset(), out.dtype
        self._learn_attributes(out)
        wrap, device = self._wrap, out.fake_device
        owners = [type(one) is FakeTensor and one.untyped_storage()._cdata for one in given]
        base = owners.index(storage._cdata) if storage._cdata in owners else None
        if base is not None:

            def view(tensors: list[Any]) -> Any:
                elem = _empty((0,), (1,), dtype=dtype, device=_META)
                elem.set_(tensors[base].untyped_storage(), offset, size, stride)
                return wrap(elem, device)

            return view
        if (
            offset
            or storage.nbytes() != _empty(size, stride, dtype=dtype, device=_META).untyped_storage().nbytes()
        ):
            return None
        return lambda _: wrap(_empty(size, stride, dtype=dtype, device=_META), device)

    def _learn_attributes(self, tensor: Any) -> None:
        if tensor.fake_device not in self._attributes:
            made = FakeTensor(tensor.fake_mode, _empty((0,), (1,), device=_META), tensor.fake_device)
            self._attributes[tensor.fake_device] = dict(vars(made))

    def _wrap(self, elem: Any, device: torch.device) -> Any:
        made = _subclass(FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=device)
        _protect(made)
        made.__dict__.update(self._attributes[device])
        return made


_META = torch.device("meta")
_subclass: Any = torch.Tensor._make_subclass
_protect = torch._C._set_throw_on_mutable_data_ptr


def _is_regular(func: Any) -> bool:
    """Whether results depend on shapes and types of the arguments alone."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    name = func._schema.name
    return not (_TAGS & set(func.tags)) and "lift" not in name and "resize" not in name and "set_" not in name


def _add(key: list[Any], given: list[Any], values: Any) -> bool:
    """Put arguments into *key* and their tensors into *given*; whether all of them can be a key."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if value.layout is not torch.strided:
                return False
            key += (value.shape, value.stride(), value.dtype, value.storage_offset(), device_of(value))
            if value.is_conj() or value.is_neg():
                return False
            given.append(value)
        elif kind in _PLAIN:
            key.append(value)
        elif kind in (float, bool, complex):
            key += (kind, value)
        elif kind is list or kind is tuple:
            key.append(len(value))
            key.append(kind)
            if not _add(key, given, value):
                return False
        elif kind is torch.Tensor:
            key += (value.shape, value.stride(), value.dtype, "host")
            given.append(value)
        else:
            return False
    return True


def _add_named(key: list[Any], given: list[Any], kwargs: dict[str, Any]) -> bool:
    for name, value in kwargs.items():
        key.append(name)
        if not _add(key, given, (value,)):
            return False
    return True
