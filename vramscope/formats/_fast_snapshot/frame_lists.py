"""Which lists of frames stand inside of events? Each list of the same frames once."""

import hashlib
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GET = rb"(?:h.|j....)"
_CONTENTS = re.compile(rb"(?:\(" + _GET + rb"+e)*(?:" + _GET + rb"a)?", re.DOTALL)
_REFERENCES = re.compile(rb"j(....)|h(.)", re.DOTALL)

_SLOT_BITS = 16
_MOST_RECENT = 4096
_WIDTHS = (128, 256, 640)
"""Bytes of the longest lists that have slots in one table: stacks of 25, 50 and 125 frames."""

_FEW = 500
"""So many lists that are not known are learned before the others are looked up once more."""


class _ListNumbers(dict[bytes, int]):
    """The number of each list by its opcodes; −1 where these are something else."""

    __slots__ = ("frames", "highest")

    def __init__(self) -> None:
        self.frames: list[list[int]] = []
        self.highest: list[int] = []

    def __missing__(self, opcodes: bytes) -> int:
        if _CONTENTS.fullmatch(opcodes) is None:
            return -1
        number = self[opcodes] = len(self.frames)
        found = _REFERENCES.findall(opcodes)
        self.frames.append([int.from_bytes(long or short, "little") for long, short in found])
        self.highest.append(max(self.frames[-1], default=-1))
        return number


class _Recent:
    """Lists met before, found by their bytes without an object for each."""

    __slots__ = ("_entry", "_masks", "_n_entries", "_numbers", "_rows", "_sizes", "_weights", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows = np.zeros((_MOST_RECENT, width // 8), "<u8")
        self._sizes, self._numbers = np.full((2, _MOST_RECENT), -1, "i8")
        self._n_entries = 1
        """The first stands for all that are not known."""
        self._entry = np.zeros(1 << _SLOT_BITS, "i4")
        """Of each slot, which follows from the bytes; the newest list takes it."""
        bits = np.arange(width) < np.arange(width + 1)[:, None]
        self._masks = np.where(bits, np.uint8(255), np.uint8(0)).view("<u8")
        """Of each size."""
        any_numbers = hashlib.shake_128(b"slots").digest(width)
        self._weights = np.frombuffer(any_numbers, "<u8") | np.uint64(1)

    def find(
        self, data: bytes | bytearray, begin: NDArray[Any], size: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The list that each piece is, −1 where that is not known; and its slot. *data* reaches ``width``
        further than the last one begins."""
        width = max(-(-int(size.max()) // 8), 1)
        row = f"V{8 * width}"
        anywhere: NDArray[Any] = np.ndarray((len(data) - 8 * width + 1,), row, data, strides=(1,))
        rows = anywhere[begin].view("<u8").reshape(-1, width)
        rows &= self._masks[:, :width].copy().view(row)[:, 0][size].view("<u8").reshape(-1, width)
        slot = (rows @ self._weights[:width]) >> np.uint64(64 - _SLOT_BITS)
        entry = self._entry[slot]
        known = self._rows[: self._n_entries, :width].copy().view(row)[:, 0]
        number = np.where(self._sizes[entry] == size, self._numbers[entry], -1)
        differs = known[entry].view("<u8").reshape(-1, width) != rows
        number[np.flatnonzero(differs) // width] = -1
        return number, slot

    def learn(self, slot: int, opcodes: bytes, number: int) -> None:
        """The list that has this slot from now on."""
        if self._n_entries == _MOST_RECENT:
            self._entry[:], self._n_entries = 0, 1
        self._entry[slot] = entry = self._n_entries
        self._n_entries += 1
        self._rows[entry] = np.frombuffer(opcodes.ljust(self.width, b"\0"), "<u8")
        self._sizes[entry], self._numbers[entry] = len(opcodes), number


class FrameLists:
    """torch writes a list per call, of references to shared frames; nearly all repeat an earlier one."""

    __slots__ = ("_known", "_memo", "_numbers", "_recent")

    def __init__(self) -> None:
        self._known = _ListNumbers()
        self._recent: dict[int, _Recent] = {}
        """By width: each when it is first needed."""
        self._memo: list[NDArray[Any]] = []
        self._numbers: list[NDArray[Any]] = []

    @property
    def frames(self) -> list[list[int]]:
        """Of each list, the memo indices of its frames."""
        return self._known.frames

    def find(self, data: bytes | bytearray, begin: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
        """The list that each piece of *data* is the contents of; −1 where it is none.

        *data* reaches so far behind the last piece as the longest list that has a slot.
        """
        found, size = np.full(len(begin), -1, "i4"), end - begin
        least = 0
        for width in _WIDTHS:
            at = np.flatnonzero((size >= least) & (size <= width))
            if len(at):
                found[at] = self._found(data, begin[at], size[at], width)
            least = width + 1
        at = np.flatnonzero(size >= least)
        found[at] = [
            self._known[bytes(data[i:j])] for i, j in zip(begin[at].tolist(), end[at].tolist(), strict=True)
        ]
        return found

    def _found(
        self, data: bytes | bytearray, begin: NDArray[Any], size: NDArray[Any], width: int
    ) -> NDArray[Any]:
        """``find`` for lists that have a slot. Those of the first window are few, each very often."""
        recent = self._recent[width] = self._recent.get(width) or _Recent(width)
        found, rest, few = np.full(len(begin), -1, "i4"), np.arange(len(begin)), _FEW
        while len(rest):
            found[rest], slots = recent.find(data, begin[rest], size[rest])
            is_new = found[rest] < 0
            rest, slots = rest[is_new], slots[is_new]
            newest: dict[int, tuple[bytes, int]] = {}
            for i, slot in zip(rest[:few].tolist(), slots[:few].tolist(), strict=True):
                opcodes = bytes(data[begin[i] : begin[i] + size[i]])
                found[i] = number = self._known[opcodes]
                if number >= 0:
                    newest[slot] = opcodes, number
            for slot, (opcodes, number) in newest.items():
                recent.learn(slot, opcodes, number)
            rest, few = rest[few:], few * 4
        return found

    def highest(self) -> NDArray[Any]:
        """The highest memo index that each list refers to; −1 for an empty one, and behind them for −1."""
        return np.array([*self._known.highest, -1], "i8")

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
