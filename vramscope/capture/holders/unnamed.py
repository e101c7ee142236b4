"""Tells objects that something holds without a name, as a ``for`` statement does, from garbage."""

import gc
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from vramscope.capture.holders.code_places import is_ours
from vramscope.capture.holders.roots import Word

_ENDS = (type, types.ModuleType, types.CodeType, torch.Tensor)
_HOLD_NOTHING_APART = (types.FunctionType, types.CellType, torch._C._FunctionBase, dict, list, tuple, set)
"""Kinds that C++ refers to on its own, as to the hooks of a graph, or that are only parts of others."""
_AT_ONCE = 1024


@cache
def is_iterator(kind: Any) -> bool:
    """Whether a ``for`` statement may hold objects of the kind."""
    return any("__next__" in vars(base) for base in kind.__mro__)


def is_own(thing: Any) -> bool:
    """Whether an object is vramscope's: a frame or generator of its code, or an instance of its classes."""
    kind = type(thing)
    if kind is types.GeneratorType or kind is types.FrameType:
        return is_ours((thing.gi_code if kind is types.GeneratorType else thing.f_code).co_filename)
    return isinstance(kind.__module__, str) and kind.__module__.startswith("vramscope.")


def held_without_name(
    things: Sequence[Any], met: Mapping[int, int], is_over: Callable[[], bool]
) -> list[Any] | None:
    """Return the objects among *things* and their parts that more refers to than they do to one another.

    That is how Python's own collector decides. Among *met* is what names lead to; None if there is no time.
    """
    objects = list(things)
    counts = dict.fromkeys(map(id, objects), 0)
    for at, thing in enumerate(objects):  # it grows meanwhile
        if at % _AT_ONCE == 0 and is_over():
            return None
        for part in _parts(thing):
            if id(part) in counts:
                counts[id(part)] += 1
            elif id(part) in met or issubclass(type(part), _ENDS) or is_own(part):
                continue
            elif gc.is_tracked(part):
                counts[id(part)] = 1
                objects.append(part)
    own = _n_references([[]])[0]
    # The caller's list refers to each of its objects as well.
    own_of = [own + 1] * len(things) + [own] * (len(objects) - len(things))
    return [
        thing
        for thing, n, ours in zip(objects, _n_references(objects), own_of, strict=True)
        if n - ours > counts[id(thing)] and not issubclass(type(thing), _HOLD_NOTHING_APART)
    ]


def words_of(things: Sequence[Any]) -> list[tuple[Any, Word]]:
    """Return each object with its first step.

    The statement itself is not named: a look at the frames of the program would make objects that Python's
    collector counts, and it would run at other moments than without recording.
    """
    return [
        (thing, ("unnamed", thing.gi_code.co_name if kind is types.GeneratorType else kind.__name__))
        for thing, kind in zip(things, map(type, things), strict=True)
    ]


def _n_references(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(each) for each in objects]


def _parts(thing: Any) -> list[Any]:
    found = gc.get_referents(thing)
    if type(thing) is types.FunctionType:
        return [part for part in found if part is not thing.__globals__]
    return found
