"""Watches whether memory grows from step to step, and only then searches for what holds it.

The check at each step costs a subtraction. A search ends after 0.5 s of the thread's own CPU time, or 10 s
by the clock on a machine that runs 20 other programs (four times that if the program requests it itself). The
next search comes when three times as many steps have passed, and there are at most 6. One more, at the end of
a recorded block, names what is held once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

from vramscope.capture.holders import SearchResult, search
from vramscope.capture.holders.bounds import bounded_at
from vramscope.capture.holders.statement import kept_at
from vramscope.capture.hooks.open_phases import threads_at_work
from vramscope.model.codes import NoteCode
from vramscope.model.holders import Word
from vramscope.model.marks import Note

_RISES = 6
_LEAST_BYTES = 16 << 10
_LEAST_OF_A_BLOCK = 512
"""Rise of a list that keeps one number a step; it is searched for once, as each epoch may empty it."""
_BLOCK = 16
# Longest over shortest distance between rises: an evaluation comes every so many steps.
_MOST_UNEVEN = 1.5
# With what is released afterwards, 0.3 s at an end.
_WALK_S, _ASKED_WALK_S, _END_WALK_S = 0.5, 2.0, 0.28
_MOST_WALKS, _BACKOFF = 6, 3
_MOST_REPORTED = 5000

# The events that end a step, the most reliable first: once one is seen, those after it no longer count.
_RANKS = {"step": 0, "optimizer": 1, "backward": 2, "forward": 3}


AT_END: Word = ("end", "")
"""The last word of what holds a storage at a block's end."""


class Watch:
    """Watches the allocated bytes at the end of each step and starts the search when they grow."""

    __slots__ = (
        "_add_holder", "_blocks", "_floors", "_key", "_last", "_level", "_n_ticks", "_next_walk",
        "_note", "_others", "_rises", "_small_rises", "_was_small", "n_walks",
    )  # fmt: skip

    def __init__(
        self,
        level: Callable[[], int],
        add_holder: Callable[[Any, Sequence[Word]], None],
        note: Callable[[Note], None] = lambda _: None,
    ) -> None:
        self._level = level
        self._add_holder = add_holder
        self._note = note
        self._others: set[tuple[int, int]] = set()
        self._was_small = False
        self._next_walk = self.n_walks = 0
        self._key: tuple[int, int] = (len(_RANKS), 0)
        self._begin(self._key)

    def tick(self, kind: str, identity: int, frame: FrameType | None) -> None:
        """Check the level after a step of this *kind*; of several optimizers only the first one counts.

        One that steps again before the first one does takes over from it, as in the next phase of a training.
        """
        key = (_RANKS[kind], identity)
        if key[0] < self._key[0]:
            self._begin(key)
        if key[0] == self._key[0] and (key in self._others or key == self._key):
            self._key = key
            self._others.clear()
        self._others.add(key)
        if key != self._key or self.n_walks >= _MOST_WALKS:
            return
        if self._is_growing(self._level()) and self._n_ticks >= self._next_walk:
            self._next_walk = _BACKOFF * self._n_ticks
            self._was_small = True
            self.explain(frame, _WALK_S)
        elif self._small_rises >= _RISES and not self._was_small:
            self._was_small = True
            self.explain(frame, _WALK_S)
            self.n_walks -= 1  # what grows by more later is searched for as often as ever

    def explain(self, frame: FrameType | None, seconds: float = _ASKED_WALK_S) -> None:
        """Record the holder of every storage; a note reports where holders stay unknown."""
        self.n_walks += 1
        if threads_at_work():
            text = (
                "several threads use torch at once, so there was no search for what holds the memory: "
                "tensors of another thread may not be touched"
            )
            self._note(Note(NoteCode.HOLDERS_UNKNOWN, text))
            return
        found = search(seconds, frame)
        if not found.is_complete or len(found.ways) > _MOST_REPORTED:
            text = (
                f"the search for what holds the memory ended after {seconds:g} s or {_MOST_REPORTED} "
                "storages: the holders of the others are unknown"
            )
            self._note(Note(NoteCode.HOLDERS_INCOMPLETE, text))
        self._report(found)

    def look_at_end(self, frame: FrameType | None, error: BaseException | None) -> None:
        """Record which names hold storages at the end of a block that *error* ended, if anything did.

        Whatever stays unknown needs no note: nothing asked for it.
        """
        if not threads_at_work():
            self._report(search(_END_WALK_S, frame, at_end=True, error=error), AT_END)

    def _report(self, found: SearchResult, *beside: Word) -> None:
        for way in found.ways[:_MOST_REPORTED]:
            path = way.words, way.class_files
            self._add_holder(
                way.storage, (*way.words, *kept_at(*path), *bounded_at(*path), *way.view, *beside)
            )

    def _begin(self, key: tuple[int, int]) -> None:
        self._key = key
        self._last: deque[int] = deque(maxlen=_BLOCK)
        self._blocks: list[int] = []
        self._floors: list[tuple[int, int]] = []
        self._rises: int = 0
        self._small_rises: int = 0
        self._n_ticks: int = 0

    def _is_growing(self, level: int) -> bool:
        """Whether memory grows: six rises in a row or at even distances, or a minimum that rises twice.

        The minimum is that of 16 steps; it shows growth in jumps.
        """
        self._n_ticks += 1
        before = self._last[-1] if self._last else level
        self._rises = self._rises + 1 if level >= before + _LEAST_BYTES else 0
        self._small_rises = self._small_rises + 1 if level >= before + _LEAST_OF_A_BLOCK else 0
        self._last.append(level)
        is_risen = self._n_ticks % _BLOCK == 0 and self.has_risen()
        if self._n_ticks % _BLOCK == 0:
            self._blocks = [*self._blocks[-1:], min(self._last)]
        return is_risen or self._rises >= _RISES or self._rises_evenly(level)

    def has_risen(self) -> bool:
        """Whether the minimum of 16 steps has risen twice, the last of them included."""
        low = [*self._blocks, min(self._last, default=0)]
        return len(low) == 3 and low[2] > low[1] + _LEAST_BYTES and low[1] > low[0] + _LEAST_BYTES

    def _rises_evenly(self, level: int) -> bool:
        """Whether there were six rises at even distances, as evaluations make, that were never undone."""
        floors = self._floors
        while floors and floors[-1][1] > level:
            floors.pop()
        if floors and level < floors[-1][1] + _LEAST_BYTES:
            return False
        floors.append((self._n_ticks, level))
        del floors[: -_RISES - 1]
        gaps = [after[0] - before[0] for before, after in pairwise(floors)]
        return len(gaps) == _RISES and max(gaps) <= _MOST_UNEVEN * min(gaps)
