"""Finds the lists of frames inside events, each distinct list once."""

import hashlib
import re

import numpy as np

from vramscope.model.table import Array

_GET = rb"(?:h.|j....)"
_CONTENTS = re.compile(rb"(?:\(" + _GET + rb"+e)*(?:" + _GET + rb"a)?", re.DOTALL)
_REFERENCES = re.compile(rb"j(....)|h(.)", re.DOTALL)

_SLOT_BITS = 16
_MOST_RECENT = 4096
_WIDTHS = (128, 256, 640)
"""The longest lists in bytes of each table of slots: stacks of 25, 50 and 125 frames."""

_FEW = 500
"""The number of unknown lists that are learned before the others are looked up again."""


class _ListNumbers(dict[bytes, int]):
    """Maps the opcodes of a list to its number; −1 if they are not a list of frames."""

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
    """A cache of recent lists, looked up by their bytes without a Python object for each."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows = np.zeros((_MOST_RECENT, width // 8), "<u8")
        self._sizes, self._numbers = np.full((2, _MOST_RECENT), -1, "i8")
        self._n_entries = 1
        """Entry 0 stands for all lists that are not in the cache."""
        self._entry = np.zeros(1 << _SLOT_BITS, "i4")
        """The entry of each slot; the bytes of a list determine its slot, and the newest list gets it."""
        bits = np.arange(width) < np.arange(width + 1)[:, None]
        self._masks = np.where(bits, np.uint8(255), np.uint8(0)).view("<u8")
        """The mask of a list of each size."""
        any_numbers = hashlib.shake_128(b"slots").digest(width)
        self._weights = np.frombuffer(any_numbers, "<u8") | np.uint64(1)

    def find(self, data: bytes | bytearray, begin: Array, size: Array) -> tuple[Array, Array]:
        """Return the number of each piece's list (−1 if unknown) and its slot.

        *data* must reach ``width`` bytes beyond the beginning of the last piece.
        """
        width = max(-(-int(size.max()) // 8), 1)
        row = f"V{8 * width}"
        anywhere: Array = np.ndarray((len(data) - 8 * width + 1,), row, data, strides=(1,))
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
        if self._n_entries == _MOST_RECENT:
            self._entry[:], self._n_entries = 0, 1
        self._entry[slot] = entry = self._n_entries
        self._n_entries += 1
        self._rows[entry] = np.frombuffer(opcodes.ljust(self.width, b"\0"), "<u8")
        self._sizes[entry], self._numbers[entry] = len(opcodes), number


class FrameLists:
    """The distinct lists of frames of a file.

    torch writes a list per call, of references to shared frames; nearly all repeat an earlier one.
    """

    def __init__(self) -> None:
        self._known = _ListNumbers()
        self._recent: dict[int, _Recent] = {}
        """The cache of each width, made when it is first needed."""
        self._memo: list[Array] = []
        self._numbers: list[Array] = []

    @property
    def frames(self) -> list[list[int]]:
        """The memo indices of each list's frames."""
        return self._known.frames

    def find(self, data: bytes | bytearray, begin: Array, end: Array) -> Array:
        """Return the number of the list that each piece of *data* contains; −1 if it is not one.

        *data* must reach beyond the last piece by the length of the longest list that has a slot.
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

    def _found(self, data: bytes | bytearray, begin: Array, size: Array, width: int) -> Array:
        """Find lists that have a slot; the first window has few distinct lists, each very often."""
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

    def highest(self) -> Array:
        """Return the highest memo index of each list (−1 if empty), and at the end −1 for list −1."""
        return np.array([*self._known.highest, -1], "i8")

    def number(self, memo: Array, lists: Array) -> None:
        """Note which list each of the memo indices is; they are higher than all before."""
        if len(memo):
            self._memo.append(memo.astype("i4"))
            self._numbers.append(lists.astype("i4"))

    def numbers_of(self, memo: Array) -> Array:
        """Return the number of the list of each memo index; −1 for other objects."""
        found = np.full(len(memo), -1, "i4")
        piece = np.searchsorted([known[0] for known in self._memo], memo, side="right") - 1
        order = np.argsort(piece, kind="stable")
        pieces, first = np.unique(piece[order], return_index=True)
        # Without any index there is one part, of nothing.
        for i, rows in zip(pieces.tolist(), np.split(order, first[1:]), strict=False):
            if i >= 0:
                place = np.searchsorted(self._memo[i], memo[rows])
                place = np.minimum(place, len(self._memo[i]) - 1)
                is_list = self._memo[i][place] == memo[rows]
                found[rows[is_list]] = self._numbers[i][place[is_list]]
        return found

    def opcodes(self) -> list[bytes]:
        """Return the opcodes of the contents of each list."""
        return list(self._known)
