"""SymPy and torch's symbolic shapes without their import, as long as every size is a number.

torch imports both with the first operator on fake tensors (0.8 s, a tenth of the dry run of a model of 7 B
parameters), only to compare numbers by a few functions. These answer for numbers here. Everything else is
left to the real modules, which are imported for it.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._ordered_set import OrderedSet

from vramscope.prediction.dry.shim.patches import Patches

_SHAPES = "torch.fx.experimental.symbolic_shapes"
_FUNCTIONS = "torch.utils._sympy.functions"
_SYMPY = "sympy"
_DTENSOR = "torch.distributed.tensor"
_STRATEGIES = f"{_DTENSOR}._ops"
_PACKAGES = (_SYMPY, _DTENSOR)
_NUMBERS = frozenset({bool, int, float})


class _Nothing:
    """A class without instances: torch asks whether numbers are symbols, tensors DTensors."""


class _NeverRaisedError(Exception):
    """What torch catches where a size is a symbol."""


_NEVER_MET = {
    "Basic": ("torch._prims", _Nothing),
    "GuardOnDataDependentSymNode": (_DTENSOR, _NeverRaisedError),
}
"""Classes that torch's own modules import, by name: the modules, and a class without instances."""


class _Light(ModuleType):
    """A module that is imported as soon as somebody asks for what it does not answer itself."""

    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(name)
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if name in _NEVER_MET and asking.startswith(_NEVER_MET[name][0]):
            return _NEVER_MET[name][1]
        is_asked_as_package = name == "__path__" and self.__name__ in _PACKAGES
        if name.startswith("__") and not is_asked_as_package:
            raise AttributeError(name)  # whoever looks through all modules needs none of them
        return getattr(_real(self.__name__), name)


def _real(name: str) -> ModuleType:
    """Import a module in the place of the light one; symbolic shapes are made of SymPy, so both go."""
    if name == _DTENSOR:
        # Import DTensor without SymPy, and without how it shards each operator, which takes a third of a
        # second. Many programs import it for its names alone (transformers does). None can shard a tensor,
        # as a dry run without ranks refuses process groups.
        _remove(_DTENSOR)
        if _STRATEGIES not in sys.modules:
            strategies = ModuleType(_STRATEGIES)
            strategies.__path__ = [str(Path(next(iter(torch.__path__)), *_STRATEGIES.split(".")[1:]))]
            sys.modules[_STRATEGIES] = strategies
        return importlib.import_module(_DTENSOR)
    _remove()
    return importlib.import_module(name)


def _remove(*names: str) -> None:
    for name in names or (_SHAPES, _FUNCTIONS, _SYMPY, _DTENSOR):
        if type(sys.modules.get(name)) is _Light:
            del sys.modules[name]
        home, _, own_name = name.rpartition(".")
        if home in sys.modules and type(vars(sys.modules[home]).get(own_name)) is _Light:
            delattr(sys.modules[home], own_name)


def install(patches: Patches, *, is_last: bool) -> None:
    """Stand in for them until the patches are undone, where none is imported yet.

    torch's C++ asks for the class DTensor once in a process and keeps it, and its import needs symbolic
    shapes. So only a process that does nothing after its dry run (*is_last*) can go without.
    """
    if {_SHAPES, _FUNCTIONS, _SYMPY} & sys.modules.keys():
        return
    _put(_Light(_SHAPES, _answers()))
    _put(_Light(_SYMPY, {}))
    _put(_Light(_FUNCTIONS, {"Max": _left_to_torch("Max", _FUNCTIONS)}))
    if is_last and _DTENSOR not in sys.modules:
        _put(_Light(_DTENSOR, {"DTensor": _Nothing}))
    patches.then(_remove)


def _put(light: ModuleType) -> None:
    home, _, own_name = light.__name__.rpartition(".")
    sys.modules[light.__name__] = light
    if home in sys.modules:
        setattr(sys.modules[home], own_name, light)


_TRUTHS = ("expect_true", "guard_or_false", "guard_or_true", "statically_known_true")
"""Functions that return a truth as it is, unless it is symbolic."""
_UNUSED = ("compute_unbacked_bindings", "guard_size_oblivious")
"""Functions that are imported for every operator and called for symbols alone."""


def _answers() -> dict[str, Any]:
    return {
        **{name: _of_number(name, bool) for name in _TRUTHS},
        **{name: _left_to_torch(name) for name in _UNUSED},
        "free_unbacked_symbols": _of_sizes("free_unbacked_symbols", OrderedSet),
        "has_free_unbacked_symbols": _of_sizes("has_free_unbacked_symbols", bool),
        "is_nested_int": _of_number("is_nested_int", lambda _: False),
        "has_guarding_hint": _of_number("has_guarding_hint", lambda _: True),
        "guard_int": _of_number("guard_int", lambda number: number),
        "guarding_hint_or_throw": _of_number("guarding_hint_or_throw", lambda number: number),
        "sym_eq": _are_equal,
        "sym_and": _of_truths("sym_and", all),
        "sym_or": _of_truths("sym_or", any),
    }


def _left_to_torch(name: str, home: str = _SHAPES) -> Callable[..., Any]:
    """A function that imports the real module when it is called, not when its name is imported."""

    def ask(*values: Any, **options: Any) -> Any:
        return getattr(_real(home), name)(*values, **options)

    return ask


def _of_number(name: str, answer: Callable[[Any], Any]) -> Callable[..., Any]:
    ask = _left_to_torch(name)

    def answered(value: Any, **options: Any) -> Any:
        return ask(value, **options) if options or type(value) not in _NUMBERS else answer(value)

    return answered


def _of_truths(name: str, answer: Callable[[Any], bool]) -> Callable[..., Any]:
    ask = _left_to_torch(name)

    def answered(*values: Any) -> Any:
        return answer(values) if all(type(value) is bool for value in values) else ask(*values)

    return answered


def _of_sizes(name: str, empty: Callable[[], Any]) -> Callable[..., Any]:
    """A function that looks for symbols in tensors and sizes: there are none among numbers."""
    ask = _left_to_torch(name)

    def answered(value: Any) -> Any:
        return empty() if _is_of_numbers(value) else ask(value)

    return answered


def _is_of_numbers(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_of_numbers, value))
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return False
        return _is_of_numbers((*value.shape, *value.stride(), value.storage_offset()))
    return value is None or type(value) in _NUMBERS


def _are_equal(one: Any, other: Any) -> Any:
    """Compare sizes, which are numbers, or tuples and lists alike."""
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if type(one) in _NUMBERS and type(other) in _NUMBERS:
        return one == other
    return _left_to_torch("sym_eq")(one, other)
