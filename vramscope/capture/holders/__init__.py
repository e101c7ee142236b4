"""Who keeps these tensors alive? A walk from the program's names to every storage that they lead to.

Breadth first from the locals of live frames and the globals of the program's modules, through Python's
objects and through autograd's graph. It asks strangers nothing (no ``getattr`` on them, no unpacking of
saved tensors), ends at its deadline, and lets go of everything before it returns.
"""

import gc
import json
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import torch

from vramscope.capture.gradients import backwards
from vramscope.capture.holders.autograd_nodes import (
    node_name,
    saved,
    saved_names,
    variable,
)
from vramscope.capture.holders.code_places import is_ours, is_program
from vramscope.capture.holders.container_ends import (
    ends_of_dict,
    ends_of_sequence,
    some_of_set,
)
from vramscope.capture.holders.containers import (
    contents_of,
    dict_of,
    global_hooks,
    kept_by_hooks,
    slot_of,
    slots_of,
)
from vramscope.capture.holders.roots import (
    Word,
    locals_of,
    named,
    of_modules,
)
from vramscope.capture.holders.statement import carried
from vramscope.capture.storages import storages_of

_ATOMS = frozenset(
    {str, int, float, bool, bytes, complex, type(None), type(Ellipsis), bytearray, range, slice}
    | {types.CodeType, types.BuiltinFunctionType, types.ModuleType, types.WrapperDescriptorType}
    | {types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.Generator}
)
_FIRST = (torch.Tensor, torch.nn.Module)
_WORDS = (str, int, float, bool, type(None))
# By the type's own descriptor: a stranger's exception may have made a property of it.
_TRACEBACK: Any = BaseException.__dict__["__traceback__"]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Way(NamedTuple):
    """How a storage is reached, from a name of the program."""

    storage: Any
    words: tuple[Word, ...]


class Search(NamedTuple):
    """What a walk found."""

    ways: list[Way]
    is_complete: bool
    """Whether it came to its end: before its deadline, and before another thread began a backward pass."""


def search(seconds: float, frame: types.FrameType | None = None) -> Search:
    """The shortest way to every storage that the program's names lead to.

    Within so many *seconds* of this thread's own time, and no more than four times as many by the clock.

    *frame*: the innermost of the calling thread that may be looked into.
    """
    # What a walk makes would set off collections, each of which goes through the whole heap.
    collects = gc.isenabled()
    try:
        gc.disable()
        return _search(_Walk(seconds), frame)
    finally:
        if collects:
            gc.enable()


def _search(walk: "_Walk", frame: types.FrameType | None) -> Search:
    try:
        with torch._C.DisableTorchFunction():
            walk.run(named(frame))
            walk.run(of_modules(are_program=False))
            if not walk.is_late:
                for roots in walk.unreached():
                    walk.run(roots)
            return Search(walk.ways(), not walk.is_late)
    finally:
        walk.forget()


def as_text(words: Iterable[Word]) -> str:
    """For the file."""
    return json.dumps([list(word) for word in words], separators=(",", ":"), ensure_ascii=False)


class _Walk:
    """Objects met so far, each with the way to it: the one before, and a word."""

    def __init__(self, seconds: float) -> None:
        self.is_late = False
        self._ends_s = thread_time() + seconds
        self._deadline = perf_counter() + 4 * seconds
        self._met: dict[int, int] = {}
        self._objects: list[Any] = []
        self._before: list[int] = []
        self._words: list[Word] = []
        # Tensors do not wait for what else was met: a data set in memory may take all the time there is. Nor
        # do modules, whose hooks say what put a tensor into a list: a trainer may take all of it too.
        self._first: deque[int] = deque()
        self._queue: deque[int] = deque()
        self._found: dict[int, tuple[Any, int]] = {}
        self._hooks: list[Any] = global_hooks()
        self._later: list[tuple[Any, int, Word]] = []
        self._defers = True
        self._kinds: dict[type, Callable[[Any, int], None]] = {}
        self._backwards = set(backwards)

    def run(self, roots: Iterable[tuple[Any, Word]]) -> None:
        """From *roots* as far as it goes."""
        for thing, word in roots:
            self._meet(thing, -1, word)
        self._work_off()
        # A local variable may be the step's own, and hold the graph of earlier steps by the way only: what an
        # attribute or a container holds too is theirs.
        later, self._later = self._later, []
        # What a loop carries on is gone through to the end before what it makes again in each turn.
        for is_own in (False, True):
            for node, before, word in later:
                if self._is_the_step_s_own(before) == is_own:
                    self._meet(node, before, word)
            self._work_off(defer=False)

    def _work_off(self, *, defer: bool = True) -> None:
        self._defers = defer
        first, queue, objects = self._first, self._queue, self._objects
        count = 0
        while (first or queue) and not self.is_late:
            if backwards.keys() != self._backwards:
                # A thread that has just come; its tensors are its own.
                self.is_late = True
                return
            at = first.popleft() if first else queue.popleft()
            thing = objects[at]
            expand = self._kinds.get(type(thing))
            if expand is None:
                expand = self._kinds[type(thing)] = self._expander(type(thing))
            expand(thing, at)
            count += 1
            if count % 64 == 0:
                self._is_over()

    def _is_over(self) -> bool:
        self.is_late = thread_time() > self._ends_s or perf_counter() > self._deadline
        return self.is_late

    def unreached(self) -> Iterator[list[tuple[Any, Word]]]:
        """What no name leads to, and is alive nevertheless: cycles, of Python and of autograd.

        The program's own objects first, then parameters (they lead to their gradients), then other tensors.
        """
        wanted: dict[type, bool] = {}
        ranks: tuple[list[tuple[Any, Word]], ...] = ([], [], [])
        for count, thing in enumerate(gc.get_objects()):
            if count % 4096 == 0 and self._is_over():
                return
            kind = type(thing)
            if kind not in wanted:
                wanted[kind] = _may_be_in_cycle(kind)
            if wanted[kind] and id(thing) not in self._met:
                is_tensor = issubclass(kind, torch.Tensor)
                rank = is_tensor + (is_tensor and not issubclass(kind, torch.nn.Parameter))
                ranks[rank].append((thing, ("unreachable", kind.__name__)))
        yield from ranks

    def ways(self) -> list[Way]:
        """The way to every storage met."""
        hooks = kept_by_hooks(self._hooks)
        return [Way(storage, self._way(at, hooks)) for storage, at in self._found.values()]

    def forget(self) -> None:
        """Let go of everything; the newest first, as a stack would."""
        self._found.clear()
        self._hooks.clear()
        self._later.clear()
        self._queue.clear()
        self._first.clear()
        self._kinds.clear()
        while self._objects:
            self._objects.pop()

    # ------------------------------------------------------------------------------------ one step

    def _meet(self, thing: Any, before: int, word: Word) -> None:
        if type(thing) in _ATOMS or id(thing) in self._met:
            return
        self._met[id(thing)] = at = len(self._objects)
        self._objects.append(thing)
        self._before.append(before)
        self._words.append(word)
        # Not isinstance: it asks a stranger for its __class__.
        (self._first if issubclass(type(thing), _FIRST) else self._queue).append(at)

    def _expander(self, kind: type) -> Callable[[Any, int], None]:
        for base, expand in (
            (torch.Tensor, self._tensor),
            (dict, self._dict),
            ((list, tuple, deque), self._items),
            ((set, frozenset), self._set),
            (types.FunctionType, self._function),
            (types.MethodType, self._method),
            (types.CellType, self._cell),
            (types.FrameType, self._frame),
            ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), self._generator),
            (BaseException, self._exception),
            (types.TracebackType, self._traceback),
            (type, self._class),
            (torch.UntypedStorage, self._storage),
            (torch.nn.Module, self._module),
            (torch.optim.Optimizer, self._optimizer),
        ):
            if issubclass(kind, base):
                return expand
        if issubclass(kind, torch._C._FunctionBase) or hasattr(kind, "next_functions"):
            return self._node
        module = getattr(kind, "__module__", "")
        if str(module).startswith("vramscope.") or kind.__name__ in ("ReferenceType", "weakref"):
            return _pass_by
        slots = slots_of(kind)
        return partial(self._slotted, slots) if slots else self._anything

    def _slotted(self, slots: tuple[tuple[str, Any], ...], thing: Any, at: int) -> None:
        for name, slot in slots:
            self._meet(slot_of(thing, slot), at, ("attribute", name, type(thing).__name__))
        self._anything(thing, at)

    def _anything(self, thing: Any, at: int) -> None:
        own = dict_of(thing)
        if own is not None:
            self._attributes(own, at, type(thing).__name__)
        for part in gc.get_referents(thing):
            if part is not own and not issubclass(type(part), type):
                self._meet(part, at, ("part", type(thing).__name__))

    def _attributes(self, own: dict[str, Any], at: int, owner: str, kind: str = "attribute") -> None:
        # Once as a whole: the dict itself must not become another way.
        self._met.setdefault(id(own), at)
        for name, value in list(own.items()):
            self._meet(value, at, (kind, str(name), owner))

    def _module(self, module: Any, at: int) -> None:
        own = dict_of(module) or {}
        for name in _HOOKS:
            hooks = own.get(name)
            if isinstance(hooks, dict):
                self._hooks.extend(hooks.values())
        # What the module has is nearer than the dict torch keeps it in.
        for held in ("_parameters", "_buffers", "_modules"):
            if isinstance(own.get(held), dict):
                self._attributes(own[held], at, type(module).__name__)
        self._attributes(own, at, type(module).__name__)

    def _optimizer(self, optimizer: Any, at: int) -> None:
        self._attributes(dict_of(optimizer) or {}, at, type(optimizer).__name__, "optimizer")

    def _dict(self, items: dict[Any, Any], at: int) -> None:
        for key, value in ends_of_dict(items):
            word = ("key", _key(key), type(items).__name__)
            # What cannot be told by its words is told apart by its identity.
            self._meet(value, at, (*word, id(key)) if word[1].startswith("<") else word)

    def _items(self, items: Any, at: int) -> None:
        kind = type(items).__name__
        limit = getattr(items, "maxlen", None) if isinstance(items, deque) else None
        names = getattr(type(items), "_fields", None) if isinstance(items, tuple) else None
        for number, value in ends_of_sequence(items):
            if names is not None and number < len(names):
                self._meet(value, at, ("attribute", str(names[number]), kind))
            else:
                self._meet(value, at, ("item", number, kind if limit is None else f"{kind} of {limit}"))

    def _set(self, items: Any, at: int) -> None:
        for value in some_of_set(items):
            self._meet(value, at, ("item", "…", type(items).__name__, id(value)))

    def _function(self, function: Any, at: int) -> None:
        name = function.__qualname__
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self._met.setdefault(id(cell), at)
            self._meet(contents_of(cell), at, ("closure", free, name))
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._meet(value, at, ("default", "", name))
        self._attributes(function.__dict__, at, name)

    def _method(self, method: Any, at: int) -> None:
        self._meet(method.__self__, at, ("bound", "", method.__func__.__name__))

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

    def _exception(self, error: Any, at: int) -> None:
        self._meet(_TRACEBACK.__get__(error), at, ("traceback", type(error).__name__))
        for part in gc.get_referents(error):
            self._meet(part, at, ("part", type(error).__name__))

    def _traceback(self, traceback: Any, at: int) -> None:
        while traceback is not None:
            self._meet(traceback.tb_frame, at, ("traceback", ""))
            traceback = traceback.tb_next

    def _class(self, kind: Any, at: int) -> None:
        module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
        if module is not None and is_program(getattr(module, "__file__", None)):
            for name, value in list(type.__dict__["__dict__"].__get__(kind).items()):
                self._meet(value, at, ("attribute", name, kind.__name__))

    def _storage(self, storage: Any, at: int) -> None:
        self._found.setdefault(storage._cdata, (storage, at))

    def _tensor(self, tensor: Any, at: int) -> None:
        for storage in storages_of(tensor):
            self._found.setdefault(storage._cdata, (storage, at))
        if tensor.grad_fn is not None:
            word = ("graph", "", tensor.numel())
            if self._defers and self._words[self._variable_of(at)][0] in ("local", "global"):
                self._later.append((tensor.grad_fn, at, word))
            else:
                self._meet(tensor.grad_fn, at, word)
        if tensor.is_leaf or tensor.retains_grad:  # torch warns where there can be none
            self._meet(tensor.grad, at, ("grad", "grad"))
        self._meet(tensor._base, at, ("part", "view"))
        own = dict_of(tensor)
        if own:
            self._attributes(own, at, type(tensor).__name__)

    def _variable_of(self, at: int) -> int:
        """The variable that a tensor is the value of: also of a view of it, or of one of a tuple."""
        while self._words[at][:2] == ("part", "view") or self._words[at][::2] == ("item", "tuple"):
            at = self._before[at]
        return at

    def _is_the_step_s_own(self, at: int) -> bool:
        """Whether the variable is made again in each turn of its loop, not carried from one to the next."""
        kind, name, *place = self._words[self._variable_of(at)]
        function, file = place[:2] if kind == "local" else ("<module>", place[0])
        return name not in carried(str(file), str(function))

    def _node(self, node: Any, at: int) -> None:
        """Of autograd's graph."""
        name = node_name(node)
        for following, _ in node.next_functions:
            self._meet(following, at, ("node", name))
        own = dict_of(node)
        if own:
            self._attributes(own, at, name, "ctx")
        kind: Any = type(node)
        for attribute in saved_names(kind):
            for tensor in saved(node, attribute):
                self._meet(tensor, at, ("saved", attribute.removeprefix("_raw_saved_"), name))
        self._meet(variable(node), at, ("variable", "", name))

    def _way(self, at: int, hooks: dict[int, Word]) -> tuple[Word, ...]:
        words: list[Word] = []
        hook: Word | None = None
        while at >= 0:
            words.append(self._words[at])
            hook = hook or hooks.get(id(self._objects[at]))
            at = self._before[at]
        words.reverse()
        return (*_short(words), *([hook] if hook else []))


def _pass_by(thing: Any, at: int) -> None:
    """Weak references, and what is ours."""


def _key(key: Any) -> str:
    """Strangers' keys are not asked for their words."""
    if type(key) is tuple and all(type(part) in _WORDS for part in key[:8]):
        return repr(key[:8])[:60]
    return repr(key)[:60] if type(key) in _WORDS else f"<{type(key).__name__}>"


def _may_be_in_cycle(kind: type) -> bool:
    """Exceptions, tensors, and instances of the program's own classes."""
    if issubclass(kind, torch.Tensor | BaseException):
        return True
    if issubclass(kind, type) or kind.__module__ in ("builtins", "types"):
        return False
    module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
    return module is not None and is_program(getattr(module, "__file__", None))


def _short(words: list[Word]) -> list[Word]:
    """Steps from node to node become one: their names, each with how often it comes in a row."""
    found: list[Word] = []
    for word in words:
        if word[0] != "node":
            found.append(word)
        elif found and found[-1][0] == "nodes":
            _count(found[-1][1], word[1])
        else:
            found.append(("nodes", [[word[1], 1]]))
    return [("nodes", word[1][:8]) if word[0] == "nodes" else word for word in found]


def _count(names: list[list[Any]], name: str) -> None:
    if names[-1][0] == name:
        names[-1][1] += 1
    else:
        names.append([name, 1])
