"""Converts torch's lists of frames to stack ids, each list once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vramscope.allocator.torch_history.events import Rows, checked
from vramscope.model.stacks import StackBuilder
from vramscope.model.table import Array

_HIGHEST_LINE = 2**31 - 1


class StackReader:
    """Assigns stack ids to lists of frames.

    torch shares the list objects of equal stacks and the dicts of equal frames within a snapshot, and pickle
    keeps that: three in four lists need no look at their frames.
    """

    __slots__ = ("_by_frames", "_by_list", "_frames", "_stacks")

    def __init__(self, stacks: StackBuilder) -> None:
        self._stacks = stacks
        # Keys are ids of objects that the snapshot keeps alive for as long as this reader lives.
        self._by_list: dict[int, int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._frames: dict[int, tuple[str, str, int]] = {}

    def column(self, rows: Rows) -> Array:
        """Stack ids of the ``frames`` of every row; 0 where there are none."""
        nothing: list[Any] = []
        self._by_list[id(nothing)] = 0
        lists = rows.column("frames", (list,), nothing)
        known = self._by_list
        for frames in {id(frames): frames for frames in lists}.values():
            if id(frames) not in known:
                known[id(frames)] = self._stack(frames, tuple(map(id, frames)))
        found = np.array([known[id(frames)] for frames in lists], dtype="i4")
        del known[id(nothing)]
        return found

    def ids(self, stacks: Sequence[list[Any]]) -> Array:
        """Stack ids of lists that live as long as the snapshot, followed by a 0 for row −1."""
        keys = [tuple(map(id, frames)) for frames in stacks]
        found = list(map(self._by_frames.get, keys))
        if None in found:
            found = [self._stack(frames, key) for frames, key in zip(stacks, keys, strict=True)]
        return np.array([*found, 0], dtype="i4")

    def _stack(self, frames: list[Any], key: tuple[int, ...]) -> int:
        stack_id = self._by_frames.get(key)
        if stack_id is None:
            stack_id = 0
            for frame in reversed(frames[: self._stacks.depth]):
                stack_id = self._stacks.push(stack_id, *self._frame(frame))
            self._by_frames[key] = stack_id
        return stack_id

    def _frame(self, frame: Any) -> tuple[str, str, int]:
        known = self._frames.get(id(frame))
        if known is None:
            known = self._frames[id(frame)] = _frame(frame)
        return known


def _frame(frame: Any) -> tuple[str, str, int]:
    given = checked(frame, dict, "a frame of a stack")
    line = checked(given.get("line", 0), int, "the line of a frame")
    return (
        _clean(checked(given.get("name", ""), str, "the name of a frame")),
        _clean(checked(given.get("filename", ""), str, "the filename of a frame")),
        line if 0 <= line <= _HIGHEST_LINE else 0,
    )


def _clean(text: str) -> str:
    """Replace halves of surrogate pairs, which cannot be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
