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


@contextmanager
def shared_results(
    recording: Any = None, given: Mapping[Callable[..., Any], Any] | None = None
) -> Iterator[None]:
    """Within the block, intermediate results that several analyses need are computed once.

    A block inside of another has the outer one's results, and releases what it computes itself. *given* are
    results of *recording* that are known already, by the function that would compute them.
    """
    known = {(function, id(recording)): ((recording,), result) for function, result in (given or {}).items()}
    token = _KNOWN.set((_KNOWN.get() or {}) | known)
    try:
        yield
    finally:
        _KNOWN.reset(token)


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
