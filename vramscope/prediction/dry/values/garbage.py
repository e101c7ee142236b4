"""When are tensors in reference cycles freed? When Python's collector runs, which counts objects.

A dry run makes other objects than a training on the card, so its own collector would run at other moments,
and not at the same ones each time. It is turned off, and collects after so many operators and before each
step of the optimizer. What is freed then says between which bounds the peak of the training lies.
"""

import gc
from collections.abc import Callable
from typing import Any

from vramscope.prediction.dry.shim.patches import Patches

_EVERY = 200
"""Operators between two searches among young objects; a model of 7 B parameters makes 30,000."""
_TELLS = 1.001
"""How much higher than the peak it has to be before it is worth a word."""

WHY = "what they hold is freed when Python's garbage collector runs, and when that is a dry run does not know"


class Garbage:
    """The tensors in reference cycles of one dry run."""

    def __init__(self, allocated_bytes: Callable[[], int]) -> None:
        self._allocated_bytes = allocated_bytes
        self._is_on = gc.isenabled()
        self._n_operators = 0
        self._since = 0
        self._freed = self._most_freed = 0
        self._least = self._most = 0

    def begin(self, patches: Patches) -> None:
        """Collect instead of Python until the patches are undone; the program's own calls count."""
        self._is_on = gc.isenabled()
        if not gc.get_freeze_count():
            gc.freeze()  # what is older than the program need not be searched
            patches.then(gc.unfreeze)
        if self._is_on:
            patches.then(gc.enable)
        gc.disable()
        patches.set(gc, "isenabled", lambda: self._is_on)
        patches.set(gc, "enable", lambda: setattr(self, "_is_on", True))
        patches.set(gc, "disable", lambda: setattr(self, "_is_on", False))
        patches.set(gc, "collect", self._asked(gc.collect))

    def operates(self) -> None:
        """Count an operator, after which it may be time to collect."""
        self._n_operators += 1
        if self._n_operators % _EVERY == 0:
            self.collect(1)

    def collect(self, generation: int = 2) -> None:
        """Free what lies in cycles, as the collector may have done, or not yet."""
        if not self._is_on:
            return
        before = self._allocated_bytes()
        _collect(generation)
        after = self._allocated_bytes()
        freed = before - after
        self._freed += freed
        self._most_freed = max(self._most_freed, freed)
        self._least = max(self._least, self._since - freed)
        self._since = after

    def note(self, allocated_bytes: int) -> None:
        """Receive what is allocated now, after each block."""
        self._since = max(self._since, allocated_bytes)
        self._most = max(self._most, allocated_bytes + self._freed)

    def least(self, peak_bytes: int) -> int:
        """The peak if every cycle were freed at once."""
        return min(peak_bytes, max(self._least, self._since - self._most_freed))

    def tells(self, peak_bytes: int) -> bool:
        """Whether the peak depends on when cycles are freed."""
        return self._most_freed > 0 and self._most > _TELLS * max(peak_bytes, 1)

    def _asked(self, collect: Callable[..., int]) -> Callable[..., int]:
        def collected(*arguments: Any, **options: Any) -> int:
            """The program collects, so what lay in cycles is gone on the card too."""
            found = collect(*arguments, **options)
            self._since, self._freed = self._allocated_bytes(), 0
            return found

        return collected


_collect = gc.collect
