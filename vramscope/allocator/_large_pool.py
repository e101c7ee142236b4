"""How large are the large blocks of a record? What was free behind each decides: each is followed."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.lives import Lives, stable_order
from vramscope.allocator.settings import SMALL_LIMIT, Settings
from vramscope.model.trace import Action, Trace

_TAKE, _GIVE_BACK = -1, -2
"""What is done with a block; steps from 0 on are rows of segment events."""


class LargePool:
    """The free large blocks while a record is followed, and the sizes that show.

    Free blocks are kept by both ends, so that each step is a few look-ups whatever the record holds.
    """

    __slots__ = (
        "_begin_of",
        "_end_of",
        "_settings",
        "_starts",
        "_unsure_ends",
        "boundaries",
        "n_never_known",
        "sizes",
        "strays",
        "unsure",
    )

    def __init__(self, settings: Settings, given: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
        address, sizes, unsure = given
        self._settings = settings
        self._starts: list[int] = address.tolist()
        self.sizes: list[int] = sizes.tolist()
        """Of the blocks; the rounded request until a block was taken."""
        self._end_of: dict[int, int] = {}
        self._begin_of: dict[int, int] = {}
        self.boundaries: set[int] = set()
        """Where segments begin: no block extends across one."""
        self.unsure = {self._starts[i] + self.sizes[i]: i for i in unsure.tolist()}
        """Blocks from before the trace whose end is not known, by the least that it can be."""
        self._unsure_ends = sorted(self.unsure)
        self.n_never_known = 0
        """Of those, how many were freed before anything showed their end."""
        self.strays: set[int] = set()
        """Blocks handed out where nothing was free."""

    def follow(self, trace: Trace, found: Lives) -> None:  # noqa: C901 a call per step would double its time
        """Lead the pool through the record; 0.4 µs an event."""
        boundaries, end_of, begin_of = self.boundaries, self._end_of, self._begin_of
        starts, sizes, largest_split = self._starts, self.sizes, self._settings.max_split_size
        for step, i in _steps(trace, found):
            if step == _TAKE:
                start, need = starts[i], sizes[i]
                if start not in end_of:
                    self._learn(start)
                end = end_of.pop(start, 0)
                remainder = end - start - need
                if remainder == 0:
                    begin_of.pop(end, None)
                elif remainder > SMALL_LIMIT and need < largest_split:  # as Settings.splits
                    end_of[start + need] = end
                    begin_of[end] = start + need
                else:
                    self._absorb(i, end, remainder)
            elif step == _GIVE_BACK:
                if i in self.strays:
                    continue
                start = starts[i]
                end = start + sizes[i]
                if end in self.unsure:
                    self._forget(i, end)
                if start in begin_of and start not in boundaries:
                    start = begin_of.pop(start)
                if end in end_of and end not in boundaries:
                    end = end_of.pop(end)
                    begin_of.pop(end, None)
                end_of[start] = end
                begin_of[end] = start
            else:
                self._move_segment(trace, step)

    def add_free(self, start: int, end: int) -> None:
        """A range is free."""
        self._end_of[start] = end
        self._begin_of[end] = start

    def _absorb(self, i: int, end: int, remainder: int) -> None:
        """Block *i* keeps a remainder too small to be a block; or nothing was free there."""
        self._begin_of.pop(end, None)
        if remainder < 0:  # as far as we know it is not free: the record lacks something
            self.strays.add(i)
        else:
            self.sizes[i] += remainder

    def _forget(self, i: int, end: int) -> None:
        if self.unsure[end] == i:
            del self.unsure[end]
            self.n_never_known += 1

    def _move_segment(self, trace: Trace, event: int) -> None:
        start, size = int(trace.address[event]), int(trace.size[event])
        if trace.action[event] == Action.SEGMENT_ALLOC:
            self.boundaries.add(start)
            self.add_free(start, start + size)
        else:
            self.boundaries.discard(start)
            self._begin_of.pop(self._end_of.pop(start, 0), None)

    def _learn(self, start: int) -> None:
        """A block lands behind one of unsure size while that lives: so far does that one reach."""
        rank = bisect_right(self._unsure_ends, start) - 1
        least = self._unsure_ends[rank] if rank >= 0 else 0
        if least not in self.unsure or least not in self._end_of or start - least > SMALL_LIMIT:
            return
        end = self._end_of[least]
        if start < end:
            i = self.unsure.pop(least)
            self.sizes[i] = start - self._starts[i]
            del self._end_of[least]
            self.add_free(start, end)


def _steps(trace: Trace, found: Lives) -> Iterable[tuple[int, int]]:
    """What is done (see ``_TAKE``) with which block, in the order of the events."""
    is_segment = (trace.action == Action.SEGMENT_ALLOC) | (trace.action == Action.SEGMENT_FREE)
    segment_events = np.flatnonzero(is_segment)
    ended, begun = np.flatnonzero(found.end >= 0), np.flatnonzero(found.alloc >= 0)
    event = np.concatenate([found.end[ended], segment_events, found.alloc[begun]])
    block = np.concatenate([ended, segment_events, begun])
    step = np.concatenate([np.full(len(ended), _GIVE_BACK), segment_events, np.full(len(begun), _TAKE)])
    order = stable_order(event.astype("u8"))  # a free that the record lacks comes before the next ALLOC
    return zip(step[order].tolist(), block[order].tolist(), strict=True)
