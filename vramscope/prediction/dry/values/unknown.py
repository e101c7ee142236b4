"""Numbers that nobody computed: they can be printed and summed, and note when the program decides by one.

``loss.item()`` in a dry run is such a number. What is only logged leaves a prediction as certain as it is; a
comparison that a branch of the program takes, or a conversion that loses the trace, becomes an assumption.
"""

import builtins
import dis
import functools
import math
import numbers
import operator
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch

from vramscope.prediction.dry import state
from vramscope.prediction.dry.doubts import Certainty, is_ours
from vramscope.prediction.dry.shim.patches import Patches
from vramscope.prediction.dry.values import known
from vramscope.prediction.dry.values.choices import Choices

if TYPE_CHECKING:
    from vramscope.prediction.dry.shim.fake_cuda import FakeCuda

# Between ``if not mask.any()`` and its operator lies what answers for torch's functions.
_FRAMES_OF_A_TRUTH = 4
_WHY = "the program depends on a value that a dry run does not compute"


def assume(what: str, taken_as: Any, frame: FrameType | None = None) -> None:
    """Note that the program used an unknown value, and as what; nothing bounds what follows from it."""
    world = state.running()
    if world is not None:
        _note(world, what, taken_as, frame or sys._getframe(1), is_bounded=False)


def decide(what: str, assumed: bool, frame: FrameType) -> bool:
    """Return which branch a program takes by an unknown value; other dry runs take the other one."""
    world, of_init = state.running(), of_initialization(frame)
    if world is not None and of_init is not None:
        return world.choices.draws_again(of_init)
    passes = passes_check(frame)
    if passes is not None:
        return passes
    return bool(_chosen(what, assumed, frame, Choices.truth))


def count_as(what: str, assumed: float, frame: FrameType) -> float:
    """Return the number that an unknown value counts as; it is another one in other dry runs."""
    return float(_chosen(what, assumed, frame, Choices.number))


def of_initialization(frame: FrameType | None) -> FrameType | None:
    """The frame of ``torch.nn.init`` that asks; None where something else does."""
    for _ in range(_FRAMES_OF_A_TRUTH):
        if frame is None:
            return None
        if frame.f_globals.get("__name__") == "torch.nn.init":
            return frame
        frame = frame.f_back
    return None


def _chosen(what: str, assumed: Any, frame: FrameType, choose: Callable[..., Any]) -> Any:
    world = state.running()
    if world is None:
        return assumed
    _note(world, what, assumed, frame)
    found = choose(world.choices, what, assumed, frame)
    world.end_if_endless()
    return found


def _note(world: "FakeCuda", what: str, taken_as: Any, frame: FrameType, *, is_bounded: bool = True) -> None:
    why = f"{_WHY}: taken as {taken_as}"
    world.doubts.add(Certainty.ESTIMATE, what, why, frame, is_bounded=is_bounded)


def plain(value: Any) -> Any:
    """The number inside of an unknown one; any other value as it is."""
    if type(value) is UnknownFloat:
        return float.__pos__(value)
    return value.assumed if type(value) is UnknownInteger else value


def unknown(value: Any) -> Any:
    """*value* as an unknown number."""
    if type(value) is float:
        return UnknownFloat(value)
    return UnknownInteger(value) if type(value) in (int, bool) else value


def is_unknown(value: Any) -> bool:
    """Whether it is an unknown number, or a list or tuple that has one."""
    kind = type(value)
    if kind is list or kind is tuple:
        return any(is_unknown(one) for one in value)
    return kind is UnknownFloat or kind is UnknownInteger


class UnknownTruth:
    """The result of a comparison, which is an assumption as soon as somebody asks whether it is true."""

    __slots__ = ("_assumed",)

    def __init__(self, assumed: bool) -> None:
        self._assumed = assumed

    def __bool__(self) -> bool:
        return decide("a comparison", self._assumed, sys._getframe(1))

    def __repr__(self) -> str:
        return repr(self._assumed)


def _counted(kind: Callable[..., Any]) -> Callable[..., Any]:
    def method(*values: Any) -> Any:
        if any(isinstance(value, torch.Tensor) for value in values):
            out = kind(*map(plain, values))
            known.forget(out)
            known.taint(out)
            return out
        if not all(isinstance(value, numbers.Number | UnknownInteger) or value is None for value in values):
            return NotImplemented
        try:
            return unknown(kind(*map(plain, values)))
        except (ZeroDivisionError, OverflowError, ValueError):
            return UnknownFloat(0.0)

    return method


def _compared(kind: Callable[..., Any]) -> Callable[..., Any]:
    def method(one: Any, other: Any) -> Any:
        if not isinstance(other, numbers.Number | UnknownInteger):
            return NotImplemented
        return UnknownTruth(kind(plain(one), plain(other)))

    return method


def _arithmetic() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        run = getattr(operator, name)
        found[f"__{name}__"] = _counted(run)
        found[f"__r{name}__"] = _counted(lambda one, other, run=run: run(other, one))
    for name in ("neg", "pos", "abs"):
        found[f"__{name}__"] = _counted(getattr(operator, name))
    found["__round__"] = _counted(round)
    found["__divmod__"] = lambda one, other: (one // other, one % other)
    found["__rdivmod__"] = lambda one, other: (other // one, other % one)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        found[f"__{name}__"] = _compared(getattr(operator, name))
    return found


def _whole(value: Any) -> int:
    assume("int()", int(plain(value)), sys._getframe(1))
    return int(plain(value))


def _hashed(value: Any) -> int:
    assume("a key of a set or a dict", plain(value), sys._getframe(1))
    return hash(plain(value))


class UnknownText(str):
    """An unknown number as text: what the program finds in it is an assumption."""

    __slots__ = ()
    __hash__ = str.__hash__


def _read(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    @functools.wraps(method)
    def read(text: str, *arguments: Any) -> Any:
        assume("the text of a value", repr(str.__str__(text)), sys._getframe(1))
        return method(text, *arguments)

    return read


_READINGS = """__eq__ __ne__ __lt__ __gt__ __le__ __ge__ __contains__ __getitem__ split partition rpartition
startswith endswith find index count"""
for _name in _READINGS.split():
    setattr(UnknownText, _name, _read(_name))


_CONVERTED = {
    "__hash__": _hashed,
    "__str__": lambda value: UnknownText(repr(plain(value))),
    "__format__": lambda value, form: UnknownText(format(plain(value), form)),
    "__bool__": lambda value: decide("a branch", bool(plain(value)), sys._getframe(1)),
    "__int__": _whole,
    "__trunc__": _whole,
    "__float__": lambda value: count_as("float()", float(plain(value)), sys._getframe(1)),
}


class UnknownFloat(float):
    """What ``.item()`` of a floating tensor gives."""

    locals().update(_arithmetic() | _CONVERTED)


class UnknownInteger:
    """What ``.item()`` of a whole number or a truth gives; no ``int``, whose subclasses are read past it."""

    locals().update(_arithmetic() | _CONVERTED)

    def __init__(self, assumed: int) -> None:
        self.assumed = assumed

    def __index__(self) -> int:
        assume("a size or an index", int(self.assumed), sys._getframe(1))
        return int(self.assumed)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        assume("an array of NumPy", int(self.assumed), sys._getframe(1))
        return np.asarray(self.assumed, dtype)

    def __repr__(self) -> str:
        return repr(self.assumed)


_MATH = ("exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "pow", "floor", "ceil", "fabs", "fsum",
         "hypot", "dist", "prod")  # fmt: skip
_NUMPY = ("mean", "average", "median", "sum", "std", "var", "round", "exp", "log", "sqrt")


def trace_mathematics(patches: Patches) -> None:
    """Make functions of ``math`` and NumPy, which call no method of it, return an unknown number for one."""
    for home, names in (("math", _MATH), ("numpy", _NUMPY)):
        module = sys.modules.get(home)
        for name in names if module is not None else ():
            patches.set(module, name, _traced(getattr(module, name)))
    patches.set(math, "isclose", _close)
    patches.set(torch, "_check_with", _held(torch._check_with))
    for name in ("min", "max"):
        patches.set(builtins, name, _least(getattr(builtins, name)))


_isclose = math.isclose


def _close(one: Any, other: Any, **options: Any) -> Any:
    found = _isclose(plain(one), plain(other), **options)
    return UnknownTruth(found) if is_unknown((one, other)) else found


def _held(check: Callable[..., Any]) -> Callable[..., Any]:
    """``torch._check`` and its like, which take plain truths alone: an unknown one holds."""

    def checked(kind: Any, truth: Any, message: Any) -> None:
        if not (is_unknown(truth) or type(truth) is UnknownTruth):
            check(kind, truth, message)

    return checked


def _least(function: Callable[..., Any]) -> Callable[..., Any]:
    """``min`` and ``max``: of unknown numbers another unknown one, else an assumption which is taken."""

    @functools.wraps(function)
    def least(*values: Any, **options: Any) -> Any:
        one = values[0] if len(values) == 1 else None
        kind = type(one)
        if one is not None and kind not in (list, tuple, set, dict):
            values = (list(one),)
        items = values[0] if len(values) == 1 else values
        key = options.get("key")
        if key is None:
            if not is_unknown(list(items)):
                return function(*values, **options)
            if all(isinstance(each, numbers.Number | UnknownInteger) for each in items):
                return unknown(function(map(plain, items)))
            keys = list(items)
        else:
            keys = [key(each) for each in items]
        if not keys or not is_unknown(keys):
            return function(*values, **options)
        assume(function.__name__, "the first", sys._getframe(1))
        return next(iter(items))

    return least


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def traced(*values: Any, **options: Any) -> Any:
        if not is_unknown(values):
            return function(*values, **options)
        try:
            return UnknownFloat(function(*map(plain_within, values), **options))
        except (ArithmeticError, ValueError, TypeError):
            return UnknownFloat(0.0)

    return traced


def plain_within(value: Any) -> Any:
    """Return the value with plain numbers in place of unknown ones, also within lists and tuples."""
    return type(value)(map(plain_within, value)) if type(value) in (list, tuple) else plain(value)


_MOST_INSTRUCTIONS = 400
# What may stand between the question and the jump that it decides.
_BETWEEN = frozenset({"TO_BOOL", "EXTENDED_ARG", "NOP", "COPY", "PRECALL"})
_WITHOUT_CONDITION = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_NO_INTERRUPT")


def passes_check(frame: FrameType | None) -> bool | None:
    """Return the truth with which the program goes on, if the other one leads to ``raise`` and nowhere else.

    *frame* is asking: by ``if``, ``assert`` or ``not``, by ``bool()`` or a function that returns what it is.
    """
    is_inverted = False
    while frame is not None:
        if not is_ours(frame):
            truth, is_returned = _wanted(frame.f_code, frame.f_lasti)
            if truth is None or not is_returned:
                return None if truth is None else truth != is_inverted
            is_inverted = is_inverted == truth
        frame = frame.f_back
    return None


@cache
def _wanted(code: CodeType, asks_at: int) -> tuple[bool | None, bool]:
    """Which truth an instruction wants, and whether a caller has to say so, of what is returned."""
    steps, places = _instructions(code)
    # A call that goes on stands at the end of the cache behind its instruction.
    at, wants = places[max(offset for offset in places if offset <= asks_at)], True
    if steps[at].opname.startswith(("CALL", "CONTAINS_OP")):
        wants = not (steps[at].opname == "CONTAINS_OP" and steps[at].arg)
        at += 1
    while steps[at].opname in _BETWEEN or steps[at].opname == "UNARY_NOT":
        wants = wants != (steps[at].opname == "UNARY_NOT")
        at += 1
    name = steps[at].opname
    if name == "RETURN_VALUE":
        return wants, True
    if "_IF_" not in name or "NONE" in name:
        return None, False
    jumped, passed = _only_raises(code, places[steps[at].argval]), _only_raises(code, at + 1)
    return (None if jumped == passed else wants == (passed == ("TRUE" in name))), False


@cache
def _instructions(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    found = list(dis.get_instructions(code))
    return found, {one.offset: place for place, one in enumerate(found)}


def _only_raises(code: CodeType, place: int) -> bool:
    """Whether every way from an instruction ends with ``raise``."""
    steps, places = _instructions(code)
    waiting: list[int] = [place]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_INSTRUCTIONS:
        at = waiting.pop()
        name = steps[at].opname
        if at in seen or name == "RAISE_VARARGS":
            continue
        seen.add(at)
        if name.startswith(("RETURN", "RERAISE", "YIELD")):
            return False
        if steps[at].opcode in _JUMPS:
            if steps[at].argval <= steps[at].offset:
                return False
            waiting.append(places[steps[at].argval])
        if name not in _WITHOUT_CONDITION:
            waiting.append(at + 1)
    return not waiting


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
