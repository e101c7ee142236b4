"""Shares intermediate results between several analyses of one recording."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from vramscope.model.recording import Recording

Found = TypeVar("Found")

_KNOWN: ContextVar[dict[Any, tuple[Recording, Any]] | None] = ContextVar("known", default=None)
"""Results by function and recording. The recording is kept as well, so that no other gets the same ``id``."""


@contextmanager
def shared_results() -> Iterator[None]:
    """Within the block, intermediate results that several analyses need are computed once."""
    token = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def memoized(function: Callable[[Recording], Found]) -> Callable[[Recording], Found]:
    """Mark a pure function with a frozen result, which ``shared_results`` computes once per recording."""

    @wraps(function)
    def asked(recording: Recording) -> Found:
        known = _KNOWN.get()
        if known is None:
            return function(recording)
        key = function, id(recording)
        if key not in known:
            known[key] = recording, function(recording)
        found: Found = known[key][1]
        return found

    return asked
