"""Several questions at once: what they all need is computed once, and forgotten when they are answered."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from vramscope.model.recording import Recording

Found = TypeVar("Found")

_KNOWN: ContextVar[dict[Any, tuple[Recording, Any]] | None] = ContextVar("known", default=None)
"""By function and recording, which is kept: else another one might come to lie where it was."""


@contextmanager
def together() -> Iterator[None]:
    """What is asked within shares the results of functions that are ``shared``."""
    token = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(token)


def shared(function: Callable[[Recording], Found]) -> Callable[[Recording], Found]:
    """A pure function whose frozen result several analyses need."""

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
