"""What is this storage? Named by identity at the few moments when the program itself knows."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

from vramscope.capture._modules import ModuleLog
from vramscope.capture._storages import storage_of
from vramscope.model.marks import Category

Tell: TypeAlias = Callable[[Any, Category, str, int], bool]
"""``tell(storage, category, name, bytes of an element)``: False where the storage is not ours, so that it may
be asked again."""

Named: TypeAlias = list[tuple[str, "weakref.ref[Any]", Category]]


class _Seen(weakref.ref):  # type: ignore[type-arg]
    """A storage that has its label, by the address of its C++ half."""

    __slots__ = ("cdata",)
    cdata: int


class Labeller:
    """Finds names for storages; each storage is told once, by the first name found for it.

    Measured: 0.3 µs for a tensor whose storage has its label, so 1,000 parameters under Adam cost about
    1.5 ms a step.
    """

    __slots__ = ("_calls", "_log", "_modules", "_names", "_seen", "_tell")

    def __init__(self, tell: Tell, log: ModuleLog | None = None) -> None:
        self._tell = tell
        self._log = log
        self._seen: dict[int, _Seen] = {}
        self._modules: weakref.WeakKeyDictionary[Any, Named] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # By id(): a tensor's own hash is its id, but == compares values.
        self._names: dict[int, str] = {}

    def module(self, module: Any) -> None:
        """Parameters and buffers of a root module."""
        for name, reference, category in self._named(module):
            tensor = reference()
            if tensor is not None:
                self._label(tensor, category, name)

    def inputs(self, inputs: Any) -> None:
        """Tensors among the arguments of a root module, but what another root module made."""
        for tensor in tensors_in(inputs, depth=3):
            if tensor.grad_fn is None and not tensor.requires_grad:
                self._label(tensor, Category.INPUT, "")

    def outputs(self, result: Any) -> None:
        """What a root module returned: an activation, and no input of the next (a generator's picture)."""
        for tensor in tensors_in(result, depth=3):
            self._label(tensor, Category.ACTIVATION, "output of a module")

    def gradients(self, optimizer: Any = None) -> None:
        """Of an optimizer's parameters, which belong to no module perhaps; else of every parameter known.

        Not of both: with an optimizer per parameter each would look at all of them.
        """
        if optimizer is not None:
            for parameter in _parameters(optimizer):
                self._label(parameter, Category.PARAMETER, self._names.get(id(parameter), ""))
                self._gradient(parameter, self._names.get(id(parameter), ""))
            return
        for named in list(self._modules.values()):
            for name, reference, category in named:
                if category == Category.PARAMETER:
                    self._gradient(reference(), name)

    def optimizer_state(self, optimizer: Any) -> None:
        """Tensors in ``optimizer.state``."""
        for parameter, state in list(getattr(optimizer, "state", {}).items()):
            owner = self._names.get(id(parameter), "")
            if isinstance(state, Mapping):
                for key, value in list(state.items()):
                    for tensor in tensors_in(value, depth=2):
                        self._label(
                            tensor, Category.OPTIMIZER_STATE, f"{key} of {owner}" if owner else str(key)
                        )

    def _gradient(self, parameter: Any, name: str) -> None:
        gradient = None if parameter is None else parameter.grad
        if gradient is not None:
            self._label(gradient, Category.GRADIENT, f"gradient of {name}" if name else "")

    def _named(self, module: Any) -> Named:
        """Walked again at the 1st, 2nd, 4th, 8th … call: modules grow late (lazy layers, adapters)."""
        calls = self._calls[module] = self._calls.get(module, 0) + 1
        if calls & (calls - 1) == 0:
            prefix = "" if self._log is None else self._log.prefix(module)
            named = [
                *_walk(prefix, module.named_parameters(), Category.PARAMETER),
                *_walk(prefix, module.named_buffers(), Category.BUFFER),
            ]
            self._modules[module] = named
            for name, reference, category in named:
                if category == Category.PARAMETER:
                    self._names[id(reference())] = name
        return self._modules[module]

    def _label(self, tensor: Any, category: Category, name: str) -> None:
        storage = storage_of(tensor)
        if storage is None or storage._cdata in self._seen:
            return
        if self._tell(storage, category, name, _element_bytes(tensor)):
            self._remember(storage)

    def _remember(self, storage: Any) -> None:
        seen = _Seen(storage, self._forget)
        seen.cdata = storage._cdata
        self._seen[seen.cdata] = seen

    def _forget(self, seen: _Seen) -> None:
        self._seen.pop(seen.cdata, None)


def _element_bytes(tensor: Any) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.element_size())


def _walk(prefix: str, found: Iterable[tuple[str, Any]], category: Category) -> Named:
    before = f"{prefix}." if prefix else ""
    return [(before + name, weakref.ref(tensor), category) for name, tensor in found]


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group.get("params", ())


def tensors_in(value: Any, depth: int) -> Iterator[Any]:
    """Tensors in plain containers; strangers are not looked into."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and type(value) in (tuple, list):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in list(value.values()):
            yield from tensors_in(item, depth - 1)
