"""Sums up allocated memory window by window, so that a curve can be drawn before the file is read."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.formats._fast_snapshot.decoded import Decoded
from vramscope.model.partial_curve import PartialCurve

_SIGNS = {b"alloc": 1, b"free_completed": -1}
_EVENTS_A_PART = 1024
"""5 million events are 4,900 parts, which a page joins into some hundred."""

ACTION = re.compile(rb"\x8c.(" + b"|".join(_SIGNS) + rb")\x94", re.DOTALL)
"""The definition of an action that changes what is allocated."""

_NUMBER = rb"(?:K.|M..|J....|\x8a(?:\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
_WORD_BYTES = rb"\x8c.([a-z_]+)\x94"


def _key(word: bytes) -> bytes:
    """Return the pattern of a key: its definition, or a reference to the memo."""
    return rb"(?:\x8c." + word + rb"\x94|h.|j....)"


_EVENT = re.compile(
    rb"\}\x94\(" + _key(b"action") + rb"(?:h(.)|j(....)|" + _WORD_BYTES + rb")"
    + _key(b"(?:addr|device_free)") + _NUMBER + _key(b"size") + rb"(" + _NUMBER + rb")" + _key(b"stream"),
    re.DOTALL,
)  # fmt: skip
"""The beginning of an event's dict with its action and size, as every version of torch writes it."""
_LONGEST = 100
"""Length in bytes of the longest text that the pattern matches."""


class PartialSums:
    """The curve over the events that are read so far."""

    __slots__ = ("_bounds", "_level", "_n_events", "_n_parts", "_offsets", "_rest", "_sign_of_memo", "_sizes")

    def __init__(self) -> None:
        self._sign_of_memo: dict[int, int] = {}
        self._bounds = np.empty((2, _EVENTS_A_PART), "i8")
        """The lowest and the highest level of each part; curves hold views of what is never written again."""
        self._n_parts = self._level = self._n_events = 0
        self._rest = b""
        """Opcodes after the last event, in which the next one may begin."""
        self._offsets: list[NDArray[Any]] = []
        self._sizes: list[NDArray[Any]] = []
        """Changes of allocated bytes at those offsets of the window."""

    def add_run(self, found: Decoded, at: slice) -> None:
        """Add the events *at* of the window."""
        self._rest = b""
        action = found.action[at]
        sign = np.zeros(int(action.max(initial=0)) + 1, "i8")
        for memo, each in self._sign_of_memo.items():
            if memo < len(sign):
                sign[memo] = each
        self._offsets.append(found.start[at].astype("i8"))
        self._sizes.append(sign[action] * found.numbers["size"][at].astype("i8"))

    def define(self, memo: int, word: bytes) -> None:
        """Note that *memo* is the index of the action *word*."""
        self._sign_of_memo[memo] = _SIGNS[word]

    def add_opcodes(self, opcodes: bytes | bytearray, offset: int) -> None:
        """Add the events whose dicts are in *opcodes*, which begin at *offset* of the window."""
        offsets, sizes, end = [], [], 0
        opcodes, offset = self._rest + opcodes, offset - len(self._rest)
        for event in _EVENT.finditer(opcodes):
            short, long, word, size = event.groups()
            memo = int.from_bytes(short or long or b"", "little")
            sign = _SIGNS.get(word, 0) if word is not None else self._sign_of_memo.get(memo, 0)
            offsets.append(offset + event.start())
            sizes.append(sign * _number(size))
            end = event.end()
        self._rest = bytes(opcodes[max(end, len(opcodes) - _LONGEST) :])
        if offsets:
            self._offsets.append(np.array(offsets, "i8"))
            self._sizes.append(np.array(sizes, "i8"))

    def close_window(self) -> PartialCurve:
        """Return the curve so far; offsets begin again with the next window."""
        if self._offsets:
            order = np.argsort(np.concatenate(self._offsets), kind="stable")
            self._append(self._level + np.cumsum(np.concatenate(self._sizes)[order]))
            self._offsets.clear()
            self._sizes.clear()
        low, high = self._bounds[:, : self._n_parts]
        return PartialCurve(self._n_events, low, high)

    def _append(self, levels: NDArray[Any]) -> None:
        n_parts = -(-len(levels) // _EVENTS_A_PART)
        starts = np.arange(n_parts) * len(levels) // n_parts
        end = self._n_parts + n_parts
        if end > self._bounds.shape[1]:
            grown = np.empty((2, 2 * end), "i8")
            grown[:, : self._n_parts] = self._bounds[:, : self._n_parts]
            self._bounds = grown
        np.minimum.reduceat(levels, starts, out=self._bounds[0, self._n_parts : end])
        np.maximum.reduceat(levels, starts, out=self._bounds[1, self._n_parts : end])
        self._n_parts = end
        self._n_events += len(levels)
        self._level = int(levels[-1])


def _number(opcode: bytes) -> int:
    """Return the number that an opcode pushes."""
    return int.from_bytes(opcode[2:] if opcode[:1] == b"\x8a" else opcode[1:], "little")
