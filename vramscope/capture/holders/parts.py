"""What an object of Python refers to, and what a node of autograd's graph does.

No code of other objects runs: no ``getattr`` on them, no unpacking of saved tensors. Items of containers are
read by the methods of the built-in types, of a large one those at its ends: leaked items are at the new end.
"""

import functools
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from typing import Any

import torch

from vramscope.capture.holders.code_places import is_ours, is_program
from vramscope.capture.holders.containers import contents_of, dict_of, slot_of, slots_of
from vramscope.capture.holders.roots import Word, locals_of

_MOST, _FIRST = 4000, 200


def ends_of_dict(items: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The keys and values of a dict, at most 4,000 of them."""
    if dict.__len__(items) <= _MOST:
        return list(dict.items(items))
    found: list[tuple[Any, Any]] = []
    with suppress(RuntimeError):  # another thread changed it meanwhile
        found = list(islice(dict.items(items), _FIRST))
        found += reversed(list(islice(reversed(dict.items(items)), _MOST - _FIRST)))
    return found


def ends_of_sequence(items: Any) -> list[tuple[int, Any]]:
    """The indices and values of a list, tuple or deque, at most 4,000 of them."""
    base: Any = next(kind for kind in (list, tuple, deque) if isinstance(items, kind))
    n = base.__len__(items)
    with suppress(RuntimeError):  # another thread changed it meanwhile: a deque says so
        if n <= _MOST:
            return list(enumerate(base.__iter__(items)))
        first = list(enumerate(islice(base.__iter__(items), _FIRST)))
        return first + list(enumerate(_last(items, base, n), n - (_MOST - _FIRST)))
    return []


def _last(items: Any, base: Any, n: int) -> list[Any]:
    if base is deque:
        return list(islice(deque.__reversed__(items), _MOST - _FIRST))[::-1]
    return base.__getitem__(items, slice(n - (_MOST - _FIRST), n))


def some_of_set(items: Any) -> list[Any]:
    """Any 4,000 values of a set, which has no order."""
    base: Any = set if isinstance(items, set) else frozenset
    with suppress(RuntimeError):
        return list(islice(base.__iter__(items), _MOST))
    return []


@cache
def saved_names(kind: type) -> tuple[str, ...]:
    """The attributes in which nodes of this class hold raw saved tensors."""
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def saved(node: Any, attribute: str) -> Iterator[Any]:
    """The tensors a node saved, not unpacked: unpacking would run hooks and create tensors."""
    try:
        raw = getattr(node, attribute)
    except RuntimeError:  # backward freed it
        return
    for each in raw if isinstance(raw, tuple | list) else (raw,):
        data = getattr(each, "data", None)  # not in every version of torch
        if data is not None:
            yield data


def variable(node: Any) -> Any:
    """The tensor that an AccumulateGrad node accumulates into; None for other nodes."""
    try:
        return getattr(node, "variable", None)
    except RuntimeError:
        return None


ATOMS = frozenset(
    {str, int, float, bool, bytes, complex, type(None), type(Ellipsis), bytearray, range, slice}
    | {types.CodeType, types.BuiltinFunctionType, types.ModuleType, types.WrapperDescriptorType}
    | {types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.Generator}
    # Some 30,000 objects are behind the first, which hold no tensors.
    | {type(torch.ops), torch._ops._OpNamespace, torch._ops.OpOverloadPacket, torch._ops.OpOverload}
)
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset, deque})


class PlainData:
    """Tells containers that hold only atoms, as data read from JSON do, in a tenth of the time of a walk."""

    AT_ONCE, MOST, MOST_IN_VAIN = 1 << 10, 1 << 16, 1 << 19

    def __init__(
        self, is_over: Callable[[], bool] = bool, opens: Callable[[type], bool] = frozenset().__contains__
    ) -> None:
        """Look for longer only while *is_over* does not hold, and into objects of a kind that it *opens*."""
        self._n_in_vain, self._is_over, self._opens = 0, is_over, opens

    def __contains__(self, container: Any) -> bool:
        """Whether it and all in it is plain; of many, or where many looks were in vain, no."""
        if type(container) not in _CONTAINERS:  # a subclass may have a length of its own
            return False
        most = self.MOST if self._n_in_vain < self.MOST_IN_VAIN else 2
        things, kinds, seen = [container], {type(container)}, {id(container)}
        while things and len(seen) < most:
            n_items = sum(len(thing) for thing in things if type(thing) in _CONTAINERS)
            if n_items >= self.MOST or (len(seen) > self.AT_ONCE and self._is_over()):
                break
            seen.update(map(id, kinds))  # an object's class is none of its parts
            parts = gc.get_referents(*things)
            others = set(map(type, parts)) - ATOMS
            things = [part for part in parts if type(part) in others and id(part) not in seen]
            kinds = others if others <= _CONTAINERS else set(map(type, things))
            if not all(map(self._opens, kinds - _CONTAINERS)):
                break
            seen.update(map(id, things))
        self._n_in_vain = max(self._n_in_vain + (len(seen) if things else -len(seen)), 0)
        return not things


_WORDS = (str, int, float, bool, type(None))
# The type's own descriptor: a subclass of an exception may define a property of that name.
_TRACEBACK: Any = BaseException.__dict__["__traceback__"]


class ObjectParts:
    """Meets the parts of objects, each with the word that leads to it."""

    def __init__(self, meet: Callable[[Any, int, Word], None], met: dict[int, int], plain: PlainData) -> None:
        """Call *meet* with each part, the place of its object and the word; *met* are the objects' places."""
        self._meet, self._met, self._plain = meet, met, plain
        self.limits: dict[int, int] = {}
        """Most items of sequences that do not say it themselves, by their id."""

    def expander(self, kind: type) -> Callable[[Any, int], None]:
        """The method that meets the parts of objects of a kind."""
        for base, expand in (
            (dict, self._dict),
            ((list, tuple, deque), self._items),
            ((set, frozenset), self._set),
            (types.FunctionType, self._function),
            (types.MethodType, self._method),
            (functools._lru_cache_wrapper, self._cached),
            (types.CellType, self._cell),
            (types.FrameType, self._frame),
            ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), self._generator),
            (BaseException, self._exception),
            (types.TracebackType, self._traceback),
            (type, self._class),
        ):
            if issubclass(kind, base):
                return expand
        if issubclass(kind, torch._C._FunctionBase) or hasattr(kind, "next_functions"):
            return self._node
        module = getattr(kind, "__module__", "")
        if str(module).startswith("vramscope.") or kind.__name__ in ("ReferenceType", "weakref"):
            return _skip
        slots = slots_of(kind)
        return partial(self._slotted, slots) if slots else self.anything

    def _slotted(self, slots: tuple[tuple[str, Any], ...], thing: Any, at: int) -> None:
        for name, slot in slots:
            self._meet(slot_of(thing, slot), at, ("attribute", name, type(thing).__name__))
        self.anything(thing, at)

    def anything(self, thing: Any, at: int) -> None:
        """Meet all that the collector sees of an object."""
        namespace = dict_of(thing)
        if namespace is not None:
            self.attributes(namespace, at, type(thing).__name__)
        for part in gc.get_referents(thing):
            if part is not namespace and not issubclass(type(part), type):
                self._meet(part, at, ("part", type(thing).__name__))

    def attributes(self, namespace: dict[str, Any], at: int, owner: str, kind: str = "attribute") -> None:
        """Meet the values of an object's dict."""
        # The dict itself counts as met, so that it does not become another way.
        self._met.setdefault(id(namespace), at)
        for name, value in list(namespace.items()):
            self._meet(value, at, (kind, str(name), owner))

    def _dict(self, items: dict[Any, Any], at: int) -> None:
        for key, value in () if items in self._plain else ends_of_dict(items):
            word = ("key", _key(key), type(items).__name__)
            # A key whose text is only its type is distinguished by its identity.
            self._meet(value, at, (*word, id(key)) if word[1].startswith("<") else word)

    def _items(self, items: Any, at: int) -> None:
        kind = type(items).__name__
        limit = items.maxlen if isinstance(items, deque) else self.limits.get(id(items))
        names = getattr(type(items), "_fields", None) if isinstance(items, tuple) else None
        for number, value in () if items in self._plain else ends_of_sequence(items):
            if names is not None and number < len(names):
                self._meet(value, at, ("attribute", str(names[number]), kind))
            else:
                self._meet(value, at, ("item", number, kind if limit is None else f"{kind} of {limit}"))

    def _set(self, items: Any, at: int) -> None:
        for value in () if items in self._plain else some_of_set(items):
            self._meet(value, at, ("item", "…", type(items).__name__, id(value)))

    def _function(self, function: Any, at: int) -> None:
        name = function.__qualname__
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self._met.setdefault(id(cell), at)
            self._meet(contents_of(cell), at, ("closure", free, name))
        defaults, code = function.__defaults__ or (), function.__code__
        given = zip(reversed(code.co_varnames[: code.co_argcount]), reversed(defaults), strict=False)
        for argument, value in (*given, *(function.__kwdefaults__ or {}).items()):
            self._meet(value, at, ("default", argument, name))
        self.attributes(function.__dict__, at, name)

    def _method(self, method: Any, at: int) -> None:
        self._meet(method.__self__, at, ("bound", "", method.__func__.__name__))

    def _cached(self, cache: Any, at: int) -> None:
        """Meet what a bounded ``lru_cache`` keeps: its own referents are the keys and results."""
        asks = (dict_of(cache) or {}).get("cache_parameters")
        free = dict(zip(asks.__code__.co_freevars, asks.__closure__, strict=True)) if asks is not None else {}
        limit = contents_of(free["maxsize"]) if "maxsize" in free else None
        for number, part in enumerate(gc.get_referents(cache) if type(limit) is int else ()):
            if type(part) is not dict:
                self._meet(part, at, ("item", number, f"lru_cache of {limit}"))
        self.anything(cache, at)

    def _cell(self, cell: Any, at: int) -> None:
        self._meet(contents_of(cell), at, ("part", "cell"))

    def _frame(self, frame: Any, at: int) -> None:
        code = frame.f_code
        if not is_ours(code.co_filename):
            for name, value in locals_of(frame).items():
                self._meet(value, at, ("frame", name, code.co_name, code.co_filename, frame.f_lineno))

    def _generator(self, generator: Any, at: int) -> None:
        frame = next(
            (part for part in gc.get_referents(generator) if isinstance(part, types.FrameType)), None
        )
        frame = frame or getattr(generator, "gi_frame", None) or getattr(generator, "cr_frame", None)
        if frame is not None:
            self._frame(frame, at)
        # What its own ``for`` statements hold.
        for part in gc.get_referents(generator):
            for held in gc.get_referents(part) if isinstance(part, types.FrameType) else (part,):
                self._meet(held, at, ("part", "generator"))

    def _exception(self, error: Any, at: int) -> None:
        self._meet(_TRACEBACK.__get__(error), at, ("traceback", type(error).__name__))
        for part in gc.get_referents(error):
            self._meet(part, at, ("part", type(error).__name__))

    def _traceback(self, traceback: Any, at: int) -> None:
        # The first frame is the one that caught the exception, and may have gone on.
        word: Word = ("traceback", "", "caught")
        while traceback is not None:
            self._meet(traceback.tb_frame, at, word)
            traceback, word = traceback.tb_next, ("traceback", "")

    def _class(self, kind: Any, at: int) -> None:
        module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
        if module is not None and is_program(getattr(module, "__file__", None)):
            for name, value in list(type.__dict__["__dict__"].__get__(kind).items()):
                self._meet(value, at, ("attribute", name, kind.__name__))

    def _node(self, node: Any, at: int) -> None:
        name = type(node).__name__
        for following, _ in node.next_functions:
            self._meet(following, at, ("node", name))
        namespace = dict_of(node)
        if namespace:
            self.attributes(namespace, at, name, "ctx")
        kind: Any = type(node)
        for attribute in saved_names(kind):
            for tensor in saved(node, attribute):
                self._meet(tensor, at, ("saved", attribute.removeprefix("_raw_saved_"), name))
        self._meet(variable(node), at, ("variable", "", name))


def _skip(thing: Any, at: int) -> None:
    """Skip weak references and objects of vramscope."""


def _key(key: Any) -> str:
    """The text of a dict's key; for objects of other types only the type, as their repr may run code."""
    if type(key) is tuple and all(type(part) in _WORDS for part in key[:8]):
        return repr(key[:8])[:60]
    return repr(key)[:60] if type(key) in _WORDS else f"<{type(key).__name__}>"
