"""Selects objects of the program from those that the garbage collector tracks, without harm to other threads.

``gc.get_objects()`` also returns tuples that another thread is filling. While anybody else has a reference
to such a tuple, ``tuple(generator)`` fails in that thread with ``SystemError: bad argument to internal
function`` (CPython 3.10 to 3.13): two threads that build tuples failed 18 times within 12 calls. Here the
references to all objects exist only within one call of C code, in which no other thread runs; tuples are
never returned.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, compress, starmap
from typing import Any


def tracked_objects(is_wanted: Callable[[type], bool], generation: int | None = None) -> list[Any]:
    """Return the tracked objects of the wanted types; it runs no code of the objects.

    Takes 0.2 s per million tracked objects, during two halves of which no other thread runs.

    *is_wanted* decides by the exact type and is called once for each, never for ``tuple``; *generation* is
    one of the garbage collector, None for all.
    """
    kinds = _Kinds()
    _once(kinds.take, generation)
    wanted = {_mark(kind) for kind in kinds.found.values() if kind is not tuple and is_wanted(kind)}
    selected = _ObjectsOfTypes(wanted)
    _once(selected.take, generation)
    # The iterators of _once may be among the objects, and refer to the list: with them it would be a cycle.
    found = selected.found.copy()
    selected.found.clear()
    return found


Each = Callable[[], Iterator[Any]]
"""Iterates over all objects once they are held."""


_mark = object.__hash__
"""A number for each object, out of its address. ``id`` calls the hooks of ``sys.addaudithook``, such as
filelock's: code in Python that runs between two objects, while all of them are held.
"""


class _Kinds:
    """The types of all objects, by their marks: the hash of a type may be code of the program."""

    def __init__(self) -> None:
        self.found: dict[int, type] = {}

    def take(self, each: Each) -> Callable[[], None]:
        return partial(self.found.update, zip(map(_mark, map(type, each())), map(type, each()), strict=False))


class _ObjectsOfTypes:
    def __init__(self, marks_of_types: set[int]) -> None:
        self._marks = marks_of_types
        self.found: list[Any] = []

    def take(self, each: Each) -> Callable[[], None]:
        is_wanted = map(self._marks.__contains__, map(_mark, map(type, each())))
        return partial(self.found.extend, compress(each(), is_wanted))


def _once(take: Callable[[Each], Callable[[], None]], generation: int | None) -> None:
    """Hold all objects, let the step of *take* see them, and release them, in one call of C code.

    The collector is off meanwhile: until Python 3.11 an allocation may run it, and so code of the program.
    """
    held: list[list[Any]] = []
    was_on: list[bool] = []
    nothing: deque[Any] = deque(maxlen=0)
    steps: tuple[Callable[[], object], ...] = (
        partial(was_on.extend, starmap(gc.isenabled, [()])),
        gc.disable,
        partial(held.extend, starmap(gc.get_objects, [(generation,)])),
        take(lambda: chain.from_iterable(iter(held))),
        partial(nothing.extend, map(list.clear, iter(held))),
        partial(nothing.extend, starmap(gc.enable, compress([()], iter(was_on)))),
    )
    try:
        # zip asks its iterators one after the other, and each of them calls a step: no instruction of Python,
        # between two of which another thread may run.
        next(zip(*(iter(step, steps) for step in steps), strict=False))
    except BaseException:
        if any(was_on):
            gc.enable()
        raise
