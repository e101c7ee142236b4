"""Finds the containers that hooks put values into, and reads attributes without running code."""

import dis
import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as _modules

from vramscope.capture.holders.code_places import is_ours
from vramscope.capture.holders.roots import Word

KEEPING = frozenset({"append", "appendleft", "extend", "add", "update", "setdefault", "insert"})

_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
_HOOKS_OF_TENSORS = [
    vars(torch._C.TensorBase)[name]
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
    if name in vars(torch._C.TensorBase)
]


def global_hooks() -> list[Any]:
    """The hooks that apply to all modules, which torch keeps outside of them."""
    return [hook for name in _GLOBAL_HOOKS for hook in dict(getattr(_modules, name, {})).values()]


def hooks_of_tensor(tensor: Any) -> list[Any]:
    """The hooks that are registered on a tensor, read without running the code of a subclass."""
    found = [slot.__get__(tensor) for slot in _HOOKS_OF_TENSORS]
    return [hook for hooks in found if isinstance(hooks, dict) for hook in dict.values(hooks)]


def kept_by_hooks(hooks: Iterable[Any]) -> dict[int, Word]:
    """The hook that puts values into a container, by the id of the container."""
    found: dict[int, Word] = {}
    for hook in hooks:
        function = hook
        while isinstance(function, functools.partial):
            function = function.func
        owner = getattr(function, "__self__", None) if isinstance(function, types.MethodType) else None
        function = getattr(function, "__func__", function)
        if isinstance(function, types.FunctionType) and not is_ours(function.__code__.co_filename):
            code = function.__code__
            word = ("hook", code.co_name, code.co_filename, code.co_firstlineno)
            if _puts(code):
                for container in _containers(hook, function, owner):
                    found[id(container)] = word
    return found


def _puts(code: types.CodeType) -> bool:
    """Whether the code appends, adds or assigns items."""
    names = KEEPING.intersection(code.co_names)
    return bool(names) or any(op.opname == "STORE_SUBSCR" for op in dis.get_instructions(code))


def _containers(hook: Any, function: Any, owner: Any) -> Iterator[Any]:
    """The lists, dicts, sets and deques that the function refers to."""
    names = function.__code__.co_names
    values = [contents_of(cell) for cell in function.__closure__ or ()]
    owners = [dict_of(thing) or {} for thing in (*values, owner) if not isinstance(thing, type)]
    values += [function.__globals__.get(name) for name in names]
    values += [own.get(name) for own in owners for name in names]
    values += list(function.__defaults__ or ())
    if isinstance(hook, functools.partial):
        values += [*hook.args, *hook.keywords.values()]
    for value in values:
        if isinstance(value, list | dict | set | deque):
            yield value
            # A dict of lists by layer is common.
            if isinstance(value, dict):
                yield from (item for item in value.values() if isinstance(item, list | dict | set | deque))


def contents_of(cell: Any) -> Any:
    """The value of a closure's cell; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def dict_of(thing: Any) -> dict[str, Any] | None:
    """The object's ``__dict__``, read without running its code; None if it has none."""
    try:
        own = object.__getattribute__(thing, "__dict__")
    except (AttributeError, TypeError):
        return None
    return own if isinstance(own, dict) else None


def slots_of(kind: type) -> tuple[tuple[str, Any], ...]:
    """The names and descriptors of a Python class's ``__slots__``."""
    return tuple(
        (name, value)
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, value in vars(base).items()
        if type(value) is types.MemberDescriptorType
    )


def slot_of(thing: Any, slot: Any) -> Any:
    """The value of a slot; None if it is empty."""
    try:
        return slot.__get__(thing)
    except AttributeError:  # empty
        return None
