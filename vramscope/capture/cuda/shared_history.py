"""The program may keep a history too: torch has one for everybody.

While it does, ours is only read. What it asks of torch is let through unchanged; we are told before, to read
what it may be about to throw away, and after, to know whose history it is now.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_NAME = "_record_memory_history"


class HistoryInterceptor:
    """Stands in front of ``torch.cuda.memory._record_memory_history`` until it is taken away."""

    def __init__(self, before: Callable[[], None], after: Callable[[bool], None]) -> None:
        """*after* gets whether a history is kept now. Neither may raise."""
        original = getattr(torch.cuda.memory, _NAME)

        @functools.wraps(original)
        def watched(enabled: Any = "all", *args: Any, **kwargs: Any) -> Any:
            before()
            try:
                return original(enabled, *args, **kwargs)
            finally:
                after(enabled not in (None, False))

        self._original, self._ours = original, watched
        setattr(torch.cuda.memory, _NAME, watched)

    def remove(self) -> None:
        """Stays where somebody has wrapped it since."""
        if getattr(torch.cuda.memory, _NAME) is self._ours:
            setattr(torch.cuda.memory, _NAME, self._original)
