"""Shares intermediate results between several analyses of one recording."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Found = TypeVar("Found")
Asked = ParamSpec("Asked")

_KNOWN: ContextVar[dict[Any, tuple[Any, Any]] | None] = ContextVar("known", default=None)
"""Results by function and arguments. The arguments are kept as well: no other object gets the same ``id``."""


_KEPT: set[Callable[..., Any]] = set()
"""Functions whose results a block inside of another hands on to it."""


@contextmanager
def shared_results(
    recording: Any = None, given: Mapping[Callable[..., Any], Any] | None = None
) -> Iterator[dict[Any, tuple[Any, Any]]]:
    """Within the block, intermediate results that several analyses need are computed once.

    A block inside of another has the outer one's results, and releases what it computes itself, but for what
    most analyses begin with. *given* are results of *recording* that are known already, by the function that
    would compute them. The block is given its results, by function and arguments.
    """
    outer = _KNOWN.get()
    known = {(function, id(recording)): ((recording,), result) for function, result in (given or {}).items()}
    token = _KNOWN.set(known := (outer or {}) | known)
    try:
        yield known
    finally:
        _KNOWN.reset(token)
        if outer is not None:
            outer.update(most_needed(known))


def most_needed(known: Mapping[Any, tuple[Any, Any]]) -> dict[Any, tuple[Any, Any]]:
    """The results of a block that most analyses begin with; they are worth the memory that they take."""
    return {key: found for key, found in known.items() if key[0] in _KEPT}


def kept(function: Callable[Asked, Found]) -> Callable[Asked, Found]:
    """Mark a pure function as ``memoized`` does; most analyses begin with its result."""
    asked = memoized(function)
    _KEPT.add(asked)
    return asked


def memoized(function: Callable[Asked, Found]) -> Callable[Asked, Found]:
    """Mark a pure function with a frozen result: ``shared_results`` computes it once for the same objects."""

    @wraps(function)
    def asked(*arguments: Asked.args, **options: Asked.kwargs) -> Found:
        known = _KNOWN.get()
        if known is None or options:
            return function(*arguments, **options)
        key = asked, *map(id, arguments)
        if key not in known:
            known[key] = arguments, function(*arguments, **options)
        return known[key][1]

    return asked
