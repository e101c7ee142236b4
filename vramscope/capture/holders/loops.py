"""Names what is held without a name, as a ``for`` statement holds what it iterates over."""

import types
from collections.abc import Collection, Iterator
from typing import Any

from vramscope.capture.holders.roots import Word


def words_of(things: Collection[Any]) -> Iterator[tuple[Any, Word]]:
    """Yield each object with its first step.

    The statement itself is not named: a look at the frames of the program would make objects that Python's
    collector counts, and it would run at other moments than without recording.
    """
    for thing in things:
        code = getattr(thing, "gi_code", None) if type(thing) is types.GeneratorType else None
        yield thing, ("unnamed", code.co_name if code is not None else type(thing).__name__)
