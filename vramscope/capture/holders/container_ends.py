"""Reads the items of a container, or for a large one those at its ends: leaked items are at the new end.

It uses the methods of the built-in types, so that no code of a subclass runs and a million items are not
copied.
"""

from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Any

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
