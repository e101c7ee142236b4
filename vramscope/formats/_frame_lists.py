"""Which lists of frames stand inside of events? Each list of the same frames once."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GET = rb"(?:h.|j....)"
_CONTENTS = re.compile(rb"(?:\(" + _GET + rb"+e)*(?:" + _GET + rb"a)?", re.DOTALL)
_REFERENCES = re.compile(rb"j(....)|h(.)", re.DOTALL)


class _Known(dict[bytes, int]):
    """The number of each list by its opcodes; −1 where these are something else."""

    __slots__ = ("frames",)

    def __init__(self) -> None:
        self.frames: list[list[int]] = []

    def __missing__(self, opcodes: bytes) -> int:
        if _CONTENTS.fullmatch(opcodes) is None:
            return -1
        number = self[opcodes] = len(self.frames)
        found = _REFERENCES.findall(opcodes)
        self.frames.append([int.from_bytes(long or short, "little") for long, short in found])
        return number


class FrameLists:
    """torch writes a list per call, of references to shared frames; nearly all repeat an earlier one."""

    __slots__ = ("_known", "_memo", "_numbers")

    def __init__(self) -> None:
        self._known = _Known()
        self._memo: list[NDArray[Any]] = []
        self._numbers: list[NDArray[Any]] = []

    @property
    def frames(self) -> list[list[int]]:
        """Of each list, the memo indices of its frames."""
        return self._known.frames

    def find(self, data: bytes, begin: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
        """The list that each piece of *data* is the contents of; −1 where it is none. 0.3 µs each."""
        known = self._known
        pieces = zip(begin.tolist(), end.tolist(), strict=True)
        return np.array([known[data[at:to]] for at, to in pieces], "i4")

    def highest(self) -> NDArray[Any]:
        """The highest memo index that each list refers to; −1 for an empty one, and behind them for −1."""
        return np.array([*(max(frames, default=-1) for frames in self.frames), -1], "i8")

    def number(self, memo: NDArray[Any], lists: NDArray[Any]) -> None:
        """These memo indices are these lists."""
        self._memo.append(memo.astype("i4"))
        self._numbers.append(lists.astype("i4"))

    def by_memo(self, n_memo: int) -> NDArray[Any]:
        """The list that each memo index is; −1 where it is something else."""
        found = np.full(n_memo, -1, "i4")
        for memo, lists in zip(self._memo, self._numbers, strict=True):
            found[memo] = lists
        return found

    def opcodes(self) -> list[bytes]:
        """What stands between the brackets of each list."""
        return list(self._known)
