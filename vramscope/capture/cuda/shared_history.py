"""Shares torch's memory history with the program, since torch has only one per process.

While the program keeps a history, vramscope only reads it. The program's calls reach torch unchanged.
vramscope is called before each of them, to read entries that the call may discard, and after it, to know
whether the program keeps a history now.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_NAME = "_record_memory_history"


class HistoryInterceptor:
    """Wraps ``torch.cuda.memory._record_memory_history`` until ``remove``."""

    def __init__(self, before: Callable[[], None], after: Callable[[bool], None]) -> None:
        """Call *before* and *after* around each call; *after* receives whether a history is kept now.

        Neither may raise.
        """
        self._original = self._ours = original = getattr(torch.cuda.memory, _NAME, None)
        if original is None:
            return

        @functools.wraps(original)
        def watched(enabled: Any = "all", *args: Any, **kwargs: Any) -> Any:
            before()
            try:
                return original(enabled, *args, **kwargs)
            finally:
                after(enabled not in (None, False))

        self._ours = watched
        setattr(torch.cuda.memory, _NAME, watched)

    def remove(self) -> None:
        """Restore the original, unless someone else has wrapped it since."""
        if self._ours is not None and getattr(torch.cuda.memory, _NAME) is self._ours:
            setattr(torch.cuda.memory, _NAME, self._original)
