"""Labels storages with category and name at the moments when the program itself knows them.

Parameters, buffers, inputs and outputs are known when a root module is called, gradients at the end of a
backward pass, optimizer state at the end of a step.
"""

import weakref
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, TypeAlias

import torch

from vramscope.capture.hooks.gradients import gradients_now, is_leaf
from vramscope.capture.hooks.modules import ModuleLog, tensors_of
from vramscope.capture.ranks.mesh import mesh_of_parameters
from vramscope.capture.ranks.shards import category_of, flat_shards
from vramscope.capture.storages import PLAIN, storage_id, storage_of
from vramscope.model.marks import Category

AddLabels: TypeAlias = Callable[[Sequence[Any], Category, Sequence[str], Sequence[int]], Sequence[bool]]
"""``add_labels(storages, category, names, element_bytes)``, the last two one for each storage. It returns
False for each storage that is not recorded (yet), which the labeler then offers again later."""

Named: TypeAlias = list[tuple[str, "weakref.ref[Any]"]]

_FEWEST_SEEN = 1 << 12
"""Number of labeled storages below which it does not matter that some are gone, 200 bytes each."""
_SECOND = itemgetter(1)
_CDATA = attrgetter("_cdata")
_call = methodcaller("__call__")


class _RootModule:
    __slots__ = ("buffers", "calls", "parameters", "reference", "threads")

    def __init__(self, reference: "weakref.ref[Any]") -> None:
        self.reference = reference
        self.calls = 0
        self.parameters: Named = []
        self.buffers: Named = []
        self.threads: set[int] = set()
        """The ids of the threads that ran its forward."""


class Labeler:
    """Finds names for storages; each storage is labeled once, with the first name found for it.

    Several threads that train at once may use it: it looks only at tensors that belong to the calling thread.
    A root module belongs to the threads that ran its forward.

    A tensor whose storage is labeled already takes 0.2 µs. Gradients, which are new in each step, are labeled
    together.
    """

    __slots__ = (
        "_add_labels", "_dead_roots", "_log", "_most_seen", "_names", "_roots", "_seen",
        "_shard_numels", "mesh", "storage_of",
    )  # fmt: skip

    def __init__(self, add_labels: AddLabels, log: ModuleLog | None = None) -> None:
        self._add_labels = add_labels
        self._log = log
        self.storage_of: Callable[[Any], Any] = storage_of
        """The storage of a recorded tensor; None for any other tensor."""
        self.mesh: Mapping[str, int] = {}
        """The coordinates of this process in the mesh of the first parameters that have one."""
        self._seen: dict[int, weakref.ref[Any]] = {}
        """The labeled storages by the address of their C++ objects; some may be gone."""
        self._most_seen = _FEWEST_SEEN
        # Not weak dictionaries: a Ctrl-C is lost if it arrives in Python code of a weak reference's callback.
        self._roots: dict[int, _RootModule] = {}
        self._dead_roots: deque[weakref.ref[Any]] = deque()
        # Keyed by id(): a tensor's hash is its id, but == compares values.
        self._names: dict[int, str] = {}
        self._shard_numels: dict[int, int] = {}
        """Elements of the flat shard of FSDP1 by the id of each parameter in it."""

    def module(self, module: Any) -> None:
        """Label the parameters and buffers of a root module."""
        root = self._learned(module)
        for named, category in ((root.parameters, Category.PARAMETER), (root.buffers, Category.BUFFER)):
            tensors = [reference() for _, reference in named]
            new = self._unlabeled(tensors)
            found = [tensors[i] for i in new]
            self._label_new(found, category, [named[i][0] for i in new], found)

    def inputs(self, inputs: Any) -> None:
        """Label the tensors among the arguments of a root module, except outputs of another root module."""
        for tensor in tensors_in(inputs, depth=3):
            if not tensor.requires_grad:
                self._label(tensor, Category.INPUT, _shape(tensor))

    def outputs(self, result: Any) -> None:
        """Label what a root module returned as activations, so that it is no input of the next module.

        A generator's image that a discriminator receives is such a tensor.
        """
        for tensor in tensors_in(result, depth=3):
            shape = _shape(tensor)
            name = f"output of a module, {shape}" if shape else "output of a module"
            self._label(tensor, Category.ACTIVATION, name)

    def gradients(self) -> None:
        """Label the gradients of every parameter that the calling thread ran forward, after a backward pass.

        While another thread runs a backward pass, nothing is labeled here; the optimizer's step does it
        later.
        """
        own = get_ident()
        roots = [root for root in list(self._roots.values()) if own in root.threads]
        pairs = chain.from_iterable(root.parameters for root in roots)
        named = [(name, parameter) for name, reference in pairs if (parameter := reference()) is not None]
        parameters = list(map(_SECOND, named))
        gradients = gradients_now(parameters)
        new = self._unlabeled(gradients)
        self._label_gradients(gradients, new, [named[i][0] for i in new], parameters)

    def parameters(self, optimizer: Any) -> None:
        """Label an optimizer's parameters and their gradients when a step begins.

        Some of these parameters may belong to no module.
        """
        groups = getattr(optimizer, "param_groups", ())
        parameters = list(chain.from_iterable(group.get("params", ()) for group in groups))
        new = self._unlabeled(parameters)
        found = [parameters[i] for i in new]
        self._label_new(found, Category.PARAMETER, self._names_of(parameters, new), found)
        # The step reads these gradients next, so usually no other thread can be writing them. Threads that
        # share a model without a lock (Hogwild) can: their gradients are read only while no backward runs.
        if any(len(root.threads) > 1 for root in list(self._roots.values())):
            gradients = gradients_now(parameters)
        else:
            gradients = [parameter.grad for parameter in parameters]
        new = self._unlabeled(gradients)
        self._label_gradients(gradients, new, self._names_of(parameters, new), parameters)

    def optimizer_state(self, optimizer: Any) -> None:
        """Label the tensors in ``optimizer.state``."""
        states = list(getattr(optimizer, "state", {}).items())
        if {dict}.issuperset(map(type, map(_SECOND, states))):
            # Nearly always all of it is labeled already: then its names are not needed either.
            values = list(chain.from_iterable(map(dict.values, map(_SECOND, states))))
            if PLAIN.issuperset(map(type, values)) and not self._unlabeled(values):
                return
        entries = [
            (parameter, key, value)
            for parameter, state in states
            if isinstance(state, Mapping)
            for key, value in list(state.items())
        ]
        for i in self._unlabeled([value for _, _, value in entries]):
            parameter, key, value = entries[i]
            owner = self._names.get(id(parameter), "")
            for tensor in tensors_in(value, depth=2):
                self._label(tensor, Category.OPTIMIZER_STATE, f"{key} of {owner}" if owner else str(key))

    def _label_gradients(
        self, gradients: Sequence[Any], new: Sequence[int], names: Sequence[str], parameters: Sequence[Any]
    ) -> None:
        whole_names = [f"gradient of {name}" if name else "" for name in names]
        owners = [parameters[i] for i in new]
        self._label_new([gradients[i] for i in new], Category.GRADIENT, whole_names, owners)

    def _names_of(self, parameters: Sequence[Any], rows: Sequence[int]) -> list[str]:
        return [self._names.get(id(parameters[i]), "") for i in rows]

    def _learned(self, module: Any) -> _RootModule:
        """The root module with the names of its parameters and buffers.

        They are collected again at the 1st, 2nd, 4th, 8th … call, as modules may grow (lazy layers,
        adapters).
        """
        root = self._root(module)
        root.threads.add(get_ident())
        root.calls += 1
        if root.calls & (root.calls - 1) == 0 or not (root.parameters or root.buffers):
            prefix = "" if self._log is None else self._log.prefix(module)
            parameters = _walk(prefix, tensors_of(module, "_parameters"))
            root.parameters, root.buffers = parameters, _walk(prefix, tensors_of(module, "_buffers"))
            if not self.mesh:
                self.mesh = mesh_of_parameters(reference() for _, reference in parameters + root.buffers)
            self._shard_numels |= flat_shards(module)
            for name, reference in parameters:
                self._names[id(reference())] = name
        return root

    def _root(self, module: Any) -> _RootModule:
        while self._dead_roots:
            dead = self._dead_roots.popleft()
            for key, gone in list(self._roots.items()):
                if gone.reference is dead:
                    self._roots.pop(key, None)
        known = self._roots.get(id(module))
        if known is not None and known.reference() is module:
            return known
        root = self._roots[id(module)] = _RootModule(weakref.ref(module, self._dead_roots.append))
        return root

    def _unlabeled(self, values: Sequence[Any]) -> list[int]:
        """The places of the values that may hold a storage without a label.

        Nearly all parameters and optimizer states have their label since the first step: 0.2 µs each.
        """
        if not PLAIN.issuperset(map(type, values)):
            plain = [i for i, value in enumerate(values) if type(value) in PLAIN]
            others = [i for i, value in enumerate(values) if value is not None and type(value) not in PLAIN]
            return sorted([*(plain[i] for i in self._unlabeled([values[i] for i in plain])), *others])
        try:
            known = list(map(self._seen.get, map(storage_id, values), repeat(_nothing)))
        except (NotImplementedError, RuntimeError):  # a sparse tensor is among them
            return list(range(len(values)))
        storages = list(map(_call, known))
        if None not in storages:
            return []
        return [i for i, storage in enumerate(storages) if storage is None]

    def _label_new(
        self, tensors: Sequence[Any], category: Category, names: Sequence[str], owners: Sequence[Any]
    ) -> None:
        """Label tensors whose storages have no label yet; plain ones all at once, in a third of the time.

        *owners* are the parameters that they are, or are gradients of.
        """
        if not tensors:
            return
        storages = [] if self._shard_numels else self._plain_storages(tensors)
        if len(set(map(_CDATA, storages))) == len(tensors):
            with torch._C.DisableTorchFunction():
                element_bytes = list(map(torch.Tensor.element_size, tensors))
            self._add(storages, category, names, element_bytes)
            return
        # Some share a storage, as gradients in one bucket do: the first name counts.
        for tensor, name, owner in zip(tensors, names, owners, strict=True):
            self._label(tensor, category, name, self._shard_numels.get(id(owner), 0))

    def _plain_storages(self, tensors: Sequence[Any]) -> list[Any]:
        """The storages of the tensors; empty if one of them needs a closer look."""
        if self.storage_of is not storage_of or not PLAIN.issuperset(map(type, tensors)):
            return []
        try:
            with torch._C.DisableTorchFunction():
                return list(map(torch.Tensor.untyped_storage, tensors))
        except (NotImplementedError, RuntimeError):  # a sparse tensor is among them
            return []

    def _label(self, tensor: Any, category: Category, name: str, shard_numel: int = 0) -> None:
        storage = self.storage_of(tensor)
        if storage is None:
            return
        seen = self._seen.get(storage._cdata)
        if seen is not None and seen() is not None:
            return
        known = category_of(category, tensor, storage, shard_numel)
        self._add([storage], known, [name], [_element_bytes(tensor)])

    def _add(
        self, storages: Sequence[Any], category: Category, names: Sequence[str], element_bytes: Sequence[int]
    ) -> None:
        added = list(compress(storages, self._add_labels(storages, category, names, element_bytes)))
        self._seen.update(zip(map(_CDATA, added), map(weakref.ref, added), strict=True))
        if len(self._seen) > self._most_seen:
            self._forget_gone()

    def _forget_gone(self) -> None:
        """Drop the references to storages that are gone, once there are as many as of living ones.

        Nothing is wrong with one that is gone: it counts as none, and a new storage at the same address
        replaces it, as the gradients of each step do. So none calls back, which took 7 % of a label's time.
        """
        known = self._seen
        for cdata, reference in list(known.items()):
            # Another thread may have replaced it meanwhile.
            if reference() is None and known.get(cdata) is reference:
                known.pop(cdata, None)
        self._most_seen = max(_FEWEST_SEEN, 2 * len(known))


def _nothing() -> None:
    """Stand in for the reference to a storage that has no label."""


def _element_bytes(tensor: Any) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.element_size())


def _shape(tensor: Any) -> str:
    """Return the shape in words, such as ``8 × 1024``; '' for a number, and where the tensor has none."""
    try:
        with torch._C.DisableTorchFunction():
            return " × ".join(map(str, tensor.shape))
    except (RuntimeError, NotImplementedError):  # a nested tensor of the strided layout raises
        return ""


def _walk(prefix: str, found: Iterable[tuple[str, Any]]) -> Named:
    before = f"{prefix}." if prefix else ""
    # What functional_call puts in place of a parameter may be a result: reading its .grad warns.
    return [(before + name, weakref.ref(tensor)) for name, tensor in found if is_leaf(tensor) is not False]


def tensors_in(value: Any, depth: int) -> Iterator[Any]:
    """The tensors in tuples, lists and dicts nested up to *depth*; other objects are not opened."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and type(value) in (tuple, list):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in list(value.values()):
            yield from tensors_in(item, depth - 1)
