"""Shows who calls ``empty_cache()``, which the history shows only if it also takes the stack of every free.

No analysis asks for the stack of a free, and torch takes as long for it as for that of an allocation. So the
history has none (``context="alloc"``), except while the program empties the cache.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from vramscope.capture.torch_versions.private_functions import ACCELERATOR_EMPTY_CACHE, EMPTY_CACHE, found


class EmptiedCache:
    """Takes the stacks of frees while the program empties the cache, until ``remove``."""

    def __init__(self, take_stacks: Callable[[bool], None]) -> None:
        """Call *take_stacks* with True before each call and with False after it. It may not raise."""
        self._undo: list[Callable[[], None]] = []
        for function in (EMPTY_CACHE, ACCELERATOR_EMPTY_CACHE):  # every empty_cache() of torch calls one
            original = found(function)
            if original is not None:
                self._wrap(function.name, original, take_stacks)

    def _wrap(self, name: str, original: Callable[..., Any], take_stacks: Callable[[bool], None]) -> None:

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            take_stacks(True)
            try:
                return original(*args, **kwargs)
            finally:
                take_stacks(False)

        def undo() -> None:
            if getattr(torch._C, name) is watched:
                setattr(torch._C, name, original)

        setattr(torch._C, name, watched)
        self._undo.append(undo)

    def remove(self) -> None:
        """Restore the originals, unless someone else has wrapped them since."""
        while self._undo:
            self._undo.pop()()
